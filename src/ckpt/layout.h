// Layout: the parts of a checkpoint file, in the order in which they lie there: header, tensors,
// what is between them. Parts tell where to cut, so that a tensor is found again wherever it lies,
// and how wide its numbers are; a file that is in no known format is one part, and is stored all
// the same.
//
// Formats: safetensors, GGUF (versions 2 and 3). Bytes of a file are untrusted: sizes and offsets
// are checked, nesting is bounded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/file_io.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

struct Part {
  std::string name;  // a tensor's, or "(header)", "(between)", "(file)"
  uint64_t offset = 0, size = 0;
  uint32_t element_bytes = 1;  // 1, 2, 4 or 8: width of the numbers
};

struct Layout {
  std::string format;       // safetensors, gguf or raw
  std::vector<Part> parts;  // cover the file: ascending, without gaps
};

// An error is the system's only; a malformed file is raw.
Result<Layout> ReadLayout(const File& file, const std::string& path, uint64_t size);

// A tensor as a format's header has it, before it is checked against the file.
struct TensorPlace {
  std::string name;
  uint64_t offset = 0, size = 0;  // in the file
  uint32_t element_bytes = 1;
};

// From the first bytes of a file of `file_size` bytes (`head` may be all of it). Empty: not in this
// format.
std::vector<TensorPlace> ParseSafetensors(std::string_view head, uint64_t file_size);
std::vector<TensorPlace> ParseGguf(std::string_view head, uint64_t file_size);

// Header, tensors and gaps as parts that cover [0, file_size). Empty: tensors overlap or lie
// outside.
std::vector<Part> CoverFile(std::vector<TensorPlace> tensors, uint64_t file_size);

}  // namespace kvlink::ckpt
