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
    case GGML_TYPE_Q5_0:
      return kernel::WeightType::kQ5_0;
    case GGML_TYPE_Q5_1:
      return kernel::WeightType::kQ5_1;
    case GGML_TYPE_Q8_0:
      return kernel::WeightType::kQ8_0;
    case GGML_TYPE_Q4_K:
      return kernel::WeightType::kQ4_K;
    case GGML_TYPE_Q5_K:
      return kernel::WeightType::kQ5_K;
    case GGML_TYPE_Q6_K:
      return kernel::WeightType::kQ6_K;
    case GGML_TYPE_F16:
      return kernel::WeightType::kF16;
    case GGML_TYPE_BF16:
      return kernel::WeightType::kBF16;
    case GGML_TYPE_F32:
      return kernel::WeightType::kF32;
    default:
      return std::nullopt;
  }
}

kernel::PackedMatrix::Source SourceOf(const Linear& layer, kernel::WeightType type) {
  return {type, static_cast<const std::byte*>(layer.weight->data),
          static_cast<uint32_t>(layer.weight->ne[1]),
          layer.bias == nullptr ? nullptr : static_cast<const float*>(layer.bias->data)};
}

}  // namespace

size_t Stack::weight_bytes() const {
  size_t bytes = 0;
  for (const Linear& layer : layers_) bytes += ggml_nbytes(layer.weight);
  return bytes;
}

Status Stack::Pack(int num_threads, kernel::WeightMemory* memory) {
  const auto inputs = static_cast<uint32_t>(layers_.front().weight->ne[0]);
  std::vector<Group> groups;
  for (const auto format :
       {kernel::InputFormat::kInt8, kernel::InputFormat::kBF16, kernel::InputFormat::kF32}) {
    Group group;
    std::vector<kernel::PackedMatrix::Source> sources;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto type = PackedType(layers_[i].weight->type);
      if (!type || kernel::FormatOf(*type) != format) continue;
      group.layers.push_back(i);
      sources.push_back(SourceOf(layers_[i], *type));
    }
    if (sources.empty()) continue;
    auto packed = kernel::PackedMatrix::Pack(inputs, sources, num_threads, memory);
    if (!packed.ok()) return packed.status();
    group.matrix = *std::move(packed);
    groups.push_back(std::move(group));
  }
  groups_ = std::move(groups);
  return Status::Ok();
}

}  // namespace kvlink::model
