#include "model/linear.h"

#include <optional>
#include <utility>

namespace kvlink::model {
namespace {

std::optional<kernel::WeightType> PackedType(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
      return kernel::WeightType::kQ4_0;
    case GGML_TYPE_Q4_1:
      return kernel::WeightType::kQ4_1;
    case GGML_TYPE_Q8_0:
      return kernel::WeightType::kQ8_0;
    default:
      return std::nullopt;
  }
}

}  // namespace

size_t Stack::weight_bytes() const {
  size_t bytes = 0;
  for (const Linear& layer : layers_) bytes += ggml_nbytes(layer.weight);
  return bytes;
}

Status Stack::Pack(int num_threads) {
  const ggml_type type = layers_.front().weight->type;
  const auto packed_type = PackedType(type);
  if (!packed_type) return Status::Ok();
  std::vector<kernel::PackedMatrix::Source> sources;
  for (const Linear& layer : layers_) {
    if (layer.weight->type != type || layer.bias != nullptr) return Status::Ok();
    sources.push_back({*packed_type, static_cast<const std::byte*>(layer.weight->data),
                       static_cast<uint32_t>(layer.weight->ne[1]), nullptr});
  }
  const auto inputs = static_cast<uint32_t>(layers_.front().weight->ne[0]);
  auto packed = kernel::PackedMatrix::Pack(inputs, sources, num_threads);
  if (!packed.ok()) return packed.status();
  packed_ = *std::move(packed);
  return Status::Ok();
}

}  // namespace kvlink::model
