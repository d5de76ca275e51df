// GgufFile: one GGUF file, mapped read-only; its keys, and its tensors whose data point into the
// map.
//
// Everything that a file can get wrong is found here, before anything is computed: bad magic, cut
// off header or data, keys of the wrong type, absurd values, tensors of the wrong shape or type.
// GgufReader reads the keys and tensors of one architecture; its first error sticks, so that a
// reader of hyper-parameters is a plain list of lines.
//
// The file must not shrink while it is mapped (as with any mapped file, that is SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "ggml.h"
#include "gguf.h"
#include "kvlink/status.h"

namespace kvlink::model {

class GgufFile {
 public:
  // kNotFound: no such file. kDataLoss: not a GGUF file, corrupt, or cut off. kUnimplemented: one
  // part of a split model.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const gguf_context* keys() const { return keys_; }
  ggml_context* tensors() const { return tensors_; }
  // Gives the mapped pages back to the system; a later read brings them in again.
  void DropResidentPages() const;
  // A string key, empty when absent or not a string.
  std::string Text(const char* key) const;

 private:
  explicit GgufFile(std::string path) : path_(std::move(path)) {}
  Status Map();
  Status Parse();
  Status PointTensorsIntoMap();

  std::string path_;
  std::span<const std::byte> bytes_;
  gguf_context* keys_ = nullptr;
  ggml_context* tensors_ = nullptr;
};

class GgufReader {
 public:
  // Keys below are written without the architecture: "block_count" is "llama.block_count".
  GgufReader(const GgufFile& file, std::string architecture);

  const Status& status() const { return status_; }
  void Fail(StatusCode code,
            const std::string& message);  // adds the path; only the first error counts

  bool Has(const std::string& key) const;
  // Of any integer type, or an array of equal values (one a layer). An error unless in [min, max].
  uint32_t Uint(const std::string& key, uint32_t min, uint32_t max);
  uint32_t UintOr(const std::string& key, uint32_t fallback, uint32_t min, uint32_t max);
  float Float(const std::string& key, float min, float max);
  float FloatOr(const std::string& key, float fallback, float min, float max);
  std::string TextOr(const std::string& key, const std::string& fallback);

  // [rows, columns], of a type that products can read. Null after an error.
  ggml_tensor* Matrix(const std::string& name, uint32_t columns, uint32_t rows);
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
  std::string FullKey(const std::string& key) const { return architecture_ + "." + key; }
  std::optional<double> Number(const std::string& key, bool integer);
  ggml_tensor* Find(const std::string& name);
  bool CheckShape(const ggml_tensor* tensor, int64_t columns, int64_t rows);

  const GgufFile& file_;
  const std::string architecture_;
  Status status_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace kvlink::model
