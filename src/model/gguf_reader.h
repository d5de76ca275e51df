// GgufReader: the keys and tensors of one architecture in a GGUF file.
//
// What a file can get wrong besides its framing is found here, before anything is computed: keys of
// the wrong type, absurd values, tensors of the wrong shape or type, tensors that nobody asked for.
// The first error sticks, so that a reader of hyper-parameters is a plain list of lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ggml.h"
#include "kvlink/status.h"
#include "model/gguf_file.h"

namespace kvlink::model {

class GgufReader {
 public:
  // Keys below are written without the architecture: "block_count" is "llama.block_count".
  GgufReader(const GgufFile& file, std::string architecture);

  const Status& status() const { return status_; }
  // Adds the path; only the first error counts.
  void Fail(StatusCode code, const std::string& message);

  // As Fail: "'llama.rope.dimension_count': 63 is not even".
  void Refuse(StatusCode code, const std::string& key, const std::string& value,
              const std::string& words);
  std::string FullKey(const std::string& key) const { return architecture_ + "." + key; }

  bool Has(const std::string& key);
  // Of any integer type, or an array of equal values (one a layer). An error unless in [min, max].
  uint32_t Uint(const std::string& key, uint32_t min, uint32_t max);
  uint32_t UintOr(const std::string& key, uint32_t fallback, uint32_t min, uint32_t max);
  float Float(const std::string& key, float min, float max);
  float FloatOr(const std::string& key, float fallback, float min, float max);
  bool BoolOr(const std::string& key, bool fallback);
  std::string TextOr(const std::string& key, const std::string& fallback);
  // Which layers a pattern is about: an array of one flag a layer, or a number n (or the fallback)
  // for "all but the last of every n layers", 0 being all.
  std::vector<bool> LayerPattern(const std::string& key, uint32_t num_layers, uint32_t fallback);
  // An error when the file has a key that would change the computation (a list in the .cc), with
  // another value than the one that changes nothing, and nobody asked for it.
  void RefuseIgnoredKeys();

  // [rows, columns], of a type that products can read. Null after an error.
  ggml_tensor* Matrix(const std::string& name, uint32_t columns, uint32_t rows);
  // [count, rows, columns]
  ggml_tensor* Matrices(const std::string& name, uint32_t columns, uint32_t rows, uint32_t count);
  bool HasTensor(const std::string& name) const;
  // F32 [size]; null when absent.
  ggml_tensor* Vector(const std::string& name, uint32_t size);
  ggml_tensor* VectorIfPresent(const std::string& name, uint32_t size);
  ggml_tensor* MatrixIfPresent(const std::string& name, uint32_t columns, uint32_t rows);
  // Rows of a matrix whose column count is known; 0 after an error.
  uint32_t RowsOf(const std::string& name, uint32_t columns);
  // An error when the file has a tensor that was never asked for: it would be left out of the
  // computation silently.
  void RequireAllTensorsUsed();

 private:
  std::optional<double> Number(const std::string& key, bool integer);
  ggml_tensor* Find(const std::string& name);
  bool CheckShape(const ggml_tensor* tensor, int64_t columns, int64_t rows, int64_t count = 1);
  bool CheckWeightType(const ggml_tensor* tensor);

  const GgufFile& file_;
  const std::string architecture_;
  Status status_;
  std::set<std::string, std::less<>> used_tensors_, asked_keys_;
};

}  // namespace kvlink::model
