#include "ckpt/layout.h"

#include <algorithm>
#include <utility>

#include "base/endian.h"

namespace kvlink::ckpt {
namespace {

constexpr uint64_t kMaxHead = uint64_t{128} << 20;  // of a header; vocabularies are some megabytes

// How much of the file its header can take; 0: it is in no known format.
uint64_t HeadBytes(std::string_view start, uint64_t file_size) {
  if (start.starts_with("GGUF")) return std::min(file_size, kMaxHead);
  uint64_t length = 0;
  if (!base::TakeLe(start, length) || length > kMaxHead) return 0;
  return length <= file_size - sizeof(length) ? length + sizeof(length) : 0;
}

}  // namespace

std::vector<Part> CoverFile(std::vector<TensorPlace> tensors, uint64_t file_size) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.size) < std::pair(b.offset, b.size);
  });
  std::vector<Part> parts;
  uint64_t end = 0;
  for (TensorPlace& tensor : tensors) {
    if (tensor.offset < end || tensor.offset > file_size ||
        tensor.size > file_size - tensor.offset) {
      return {};
    }
    if (tensor.size == 0) continue;
    if (tensor.offset > end) {
      parts.push_back({end == 0 ? "(header)" : "(between)", end, tensor.offset - end, 1});
    }
    parts.push_back({std::move(tensor.name), tensor.offset, tensor.size, tensor.element_bytes});
    end = tensor.offset + tensor.size;
  }
  if (parts.empty()) return {};
  if (end < file_size) parts.push_back({"(between)", end, file_size - end, 1});
  return parts;
}

Result<Layout> ReadLayout(const File& file, const std::string& path, uint64_t size) {
  const Result<std::string> start = ReadAt(file, path, 0, std::min<uint64_t>(size, 8));
  if (!start.ok()) return start.status();
  const Result<std::string> head = ReadAt(file, path, 0, HeadBytes(*start, size));
  if (!head.ok()) return head.status();
  if (auto parts = CoverFile(ParseGguf(*head, size), size); !parts.empty()) {
    return Layout{"gguf", std::move(parts)};
  }
  if (auto parts = CoverFile(ParseSafetensors(*head, size), size); !parts.empty()) {
    return Layout{"safetensors", std::move(parts)};
  }
  Layout raw{"raw", {}};
  if (size > 0) raw.parts.push_back({"(file)", 0, size, 1});
  return raw;
}

}  // namespace kvlink::ckpt
