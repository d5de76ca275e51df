// GGUF, versions 2 and 3: magic, version, counts, key-value pairs, a list of tensors with offsets,
// then the tensors' bytes, aligned. A tensor is taken to go on to the next one, so that its size
// needs no table of types; what fills the alignment belongs to it.
#include <algorithm>

#include "base/endian.h"
#include "ckpt/layout.h"

namespace kvlink::ckpt {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kString = 8, kArray = 9;
constexpr int kMaxNesting = 4;
constexpr uint32_t kMaxDimensions = 8;

// Bytes of a value of a fixed size; 0: it has none.
uint64_t FixedSize(uint32_t type) {
  constexpr uint64_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kSizes) ? kSizes[type] : 0;
}

bool Skip(std::string_view& in, uint64_t bytes) {
  if (bytes > in.size()) return false;
  in.remove_prefix(bytes);
  return true;
}

bool TakeString(std::string_view& in, std::string_view& text) {
  uint64_t length = 0;
  if (!base::TakeLe(in, length) || length > in.size()) return false;
  text = in.substr(0, length);
  in.remove_prefix(length);
  return true;
}

bool SkipValue(std::string_view& in, uint32_t type, int nesting) {
  std::string_view text;
  if (type == kString) return TakeString(in, text);
  if (type != kArray) return FixedSize(type) > 0 && Skip(in, FixedSize(type));
  uint32_t element = 0;
  uint64_t count = 0;
  if (nesting == kMaxNesting || !base::TakeLe(in, element) || !base::TakeLe(in, count)) {
    return false;
  }
  if (FixedSize(element) > 0) {
    return count <= in.size() / FixedSize(element) && Skip(in, count * FixedSize(element));
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (!SkipValue(in, element, nesting + 1)) return false;
  }
  return true;
}

// Reads the pairs, for the alignment alone.
bool TakePairs(std::string_view& in, uint64_t count, uint32_t* alignment) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view key;
    uint32_t type = 0;
    if (!TakeString(in, key) || !base::TakeLe(in, type)) return false;
    if (key == "general.alignment" && type == 4) {
      std::string_view value = in;
      if (!base::TakeLe(value, *alignment)) return false;
    }
    if (!SkipValue(in, type, 0)) return false;
  }
  return *alignment > 0;
}

uint32_t ElementBytes(uint32_t type) {
  switch (type) {
    case 0:  // F32
      return 4;
    case 1:   // F16
    case 30:  // BF16
      return 2;
    case 28:  // F64
      return 8;
    default:  // quantised: blocks of bytes
      return 1;
  }
}

bool TakeTensor(std::string_view& in, TensorPlace* tensor) {
  std::string_view name;
  uint32_t dimensions = 0, type = 0;
  if (!TakeString(in, name) || !base::TakeLe(in, dimensions) || dimensions > kMaxDimensions ||
      !Skip(in, dimensions * sizeof(uint64_t)) || !base::TakeLe(in, type) ||
      !base::TakeLe(in, tensor->offset)) {
    return false;
  }
  tensor->name = name;
  tensor->element_bytes = ElementBytes(type);
  return true;
}

}  // namespace

std::vector<TensorPlace> ParseGguf(std::string_view head, uint64_t file_size) {
  std::string_view in = head;
  uint32_t version = 0, alignment = 32;
  uint64_t num_tensors = 0, num_pairs = 0;
  if (!in.starts_with(kMagic) || !Skip(in, kMagic.size()) || !base::TakeLe(in, version) ||
      version < 2 || version > 3 || !base::TakeLe(in, num_tensors) ||
      !base::TakeLe(in, num_pairs) || !TakePairs(in, num_pairs, &alignment)) {
    return {};
  }
  std::vector<TensorPlace> tensors;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    TensorPlace tensor;
    if (!TakeTensor(in, &tensor)) return {};
    tensors.push_back(std::move(tensor));
  }
  const uint64_t header = head.size() - in.size();
  const uint64_t data_start = (header + alignment - 1) / alignment * alignment;
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (data_start > file_size || tensors[i].offset >= file_size - data_start) return {};
    const uint64_t end = i + 1 < tensors.size() ? tensors[i + 1].offset : file_size - data_start;
    if (end < tensors[i].offset) return {};
    tensors[i].offset += data_start;
    tensors[i].size = end + data_start - tensors[i].offset;
  }
  return tensors;
}

}  // namespace kvlink::ckpt
