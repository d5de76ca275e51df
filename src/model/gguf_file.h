// GgufFile: one GGUF file, mapped read-only; its keys, and its tensors whose data point into the
// map.
//
// Bad magic and a header or data cut off are found here; what the keys and tensors of one
// architecture can get wrong is found by GgufReader (gguf_reader.h).
//
// The file must not shrink while it is mapped (as with any mapped file, that is SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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
  // Gives the mapped pages back to the system, all of them or those that lie wholly in `range`, a
  // part of bytes(); a later read brings them in again.
  void DropResidentPages() const { DropResidentPages(bytes_); }
  void DropResidentPages(std::span<const std::byte> range) const;
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

}  // namespace kvlink::model
