// safetensors: u64 length of the header, the header as JSON, the tensors' bytes.
//
//   {"name": {"dtype": "BF16", "shape": [...], "data_offsets": [begin, end]}, "__metadata__": {}}
#include <nlohmann/json.hpp>

#include "base/endian.h"
#include "ckpt/layout.h"

namespace kvlink::ckpt {
namespace {

uint32_t ElementBytes(const std::string& dtype) {
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  return 1;
}

// False: not a tensor's description.
bool ParseTensor(const nlohmann::json& value, uint64_t data_start, uint64_t file_size,
                 TensorPlace* tensor) {
  if (!value.is_object()) return false;
  const auto dtype = value.find("dtype"), offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string() || offsets == value.end() ||
      !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return false;
  }
  const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > file_size - data_start) return false;
  tensor->offset = data_start + begin;
  tensor->size = end - begin;
  tensor->element_bytes = ElementBytes(dtype->get<std::string>());
  return true;
}

}  // namespace

std::vector<TensorPlace> ParseSafetensors(std::string_view head, uint64_t file_size) {
  std::string_view rest = head;
  uint64_t length = 0;
  if (!base::TakeLe(rest, length) || length > rest.size()) return {};
  const auto header = nlohmann::json::parse(rest.substr(0, length), nullptr, false);
  if (!header.is_object()) return {};
  const uint64_t data_start = sizeof(length) + length;
  std::vector<TensorPlace> tensors;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    TensorPlace tensor{.name = name};
    if (!ParseTensor(value, data_start, file_size, &tensor)) return {};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace kvlink::ckpt
