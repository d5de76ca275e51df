#include "model/decoder_reader.h"

#include <cmath>
#include <utility>

namespace kvlink::model {

DecoderReader::DecoderReader(const GgufFile& file, const std::string& architecture,
                             const NetworkOptions& options)
    : keys_(file, architecture), options_(options) {}

void DecoderReader::ReadSizes() {
  Dimensions& d = parts_.dimensions;
  d.context_train = keys_.Uint("context_length", 1, 1u << 30);
  d.embedding = keys_.Uint("embedding_length", 1, 1u << 20);
  d.num_layers = keys_.Uint("block_count", 1, 1024);
  d.num_heads = keys_.Uint("attention.head_count", 1, 4096);
  d.num_kv_heads = keys_.UintOr("attention.head_count_kv", d.num_heads, 1, 4096);
  parts_.norm_epsilon = keys_.Float("attention.layer_norm_rms_epsilon", 0.0f, 1.0f);
  if (!ok()) return;
  if (d.num_heads % d.num_kv_heads != 0) {
    keys_.Refuse(
        StatusCode::kDataLoss, "attention.head_count", std::to_string(d.num_heads),
        "is not a multiple of the " + std::to_string(d.num_kv_heads) + " heads of K and V");
  }
  d.head_dim = keys_.UintOr("attention.key_length", d.embedding / d.num_heads, 1, 4096);
  const uint32_t value_dim =
      keys_.UintOr("attention.value_length", d.embedding / d.num_heads, 1, 4096);
  if (d.head_dim == 0 || value_dim != d.head_dim) {
    keys_.Fail(StatusCode::kUnimplemented,
               "head dimensions of K and V must be equal and not 0, seen " +
                   std::to_string(d.head_dim) + " and " + std::to_string(value_dim));
  }
  // A file of experts only may have no width of another feed-forward part.
  d.feed_forward = keys_.Has("expert_feed_forward_length")
                       ? keys_.UintOr("feed_forward_length", 0, 0, 1u << 22)
                       : keys_.Uint("feed_forward_length", 1, 1u << 22);
}

void DecoderReader::ReadExperts() {
  if (!ok()) return;
  parts_.num_experts = keys_.UintOr("expert_count", 0, 0, 4096);
  if (parts_.num_experts == 0) return;
  parts_.num_experts_used = keys_.Uint("expert_used_count", 1, parts_.num_experts);
}

void DecoderReader::ReadAttention(bool neox) {
  if (!ok()) return;
  kernel::LayerParams layer;
  layer.scale = 1.0f / std::sqrt(static_cast<float>(parts_.dimensions.head_dim));
  layer.rope.neox = neox;
  ReadRope(layer.rope);
  parts_.attention = {std::move(layer)};
}

void DecoderReader::ReadAttentionScale() {
  if (!ok()) return;
  const float scale = keys_.FloatOr("attention.scale", 0.0f, 0.0f, 1e6f);
  if (scale != 0.0f) parts_.attention.front().scale = scale;
}

void DecoderReader::ReadRope(kernel::RopeParams& rope) {
  const Dimensions& d = parts_.dimensions;
  rope.num_rot = keys_.UintOr("rope.dimension_count", d.head_dim, 2, d.head_dim);
  if (rope.num_rot % 2 != 0)
    keys_.Refuse(StatusCode::kDataLoss, "rope.dimension_count", std::to_string(rope.num_rot),
                 "is not even");
  rope.freq_base = keys_.FloatOr("rope.freq_base", 10000.0f, 1.0f, 1e12f);
  rope.orig_context =
      keys_.UintOr("rope.scaling.original_context_length", d.context_train, 0, 1u << 30);
  if (rope.orig_context == 0) rope.orig_context = d.context_train;

  const std::string scaling = keys_.TextOr("rope.scaling.type", "linear");
  if (scaling != "none" && scaling != "linear" && scaling != "yarn" && scaling != "longrope") {
    keys_.Fail(StatusCode::kUnimplemented,
               "'" + keys_.FullKey("rope.scaling.type") + "': '" + scaling +
                   "' is not supported (supported: none, linear, yarn, longrope)");
    return;
  }
  // 0 means 1. Old files have the linear factor under another name.
  float factor =
      keys_.FloatOr(keys_.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear",
                    0.0f, 0.0f, 1e6f);
  if (factor == 0.0f || scaling == "none") factor = 1.0f;
  if (factor < 1e-3f)
    keys_.Refuse(StatusCode::kDataLoss, "rope.scaling.factor", std::to_string(factor),
                 "is below 0.001");
  rope.freq_scale = 1.0f / factor;
  if (scaling == "yarn") ReadYarn(rope);
  rope.attn_factor *= keys_.FloatOr("rope.scaling.attn_factor", 1.0f, 0.0f, 1e6f);
  ReadRopeFactors(rope);
}

// As llama_context does: the rotation itself scales by 1 + 0.1 ln(factor), which is cancelled here
// and put back only for factors above 1.
void DecoderReader::ReadYarn(kernel::RopeParams& rope) {
  rope.ext_factor = 1.0f;
  const float factor = 1.0f / rope.freq_scale;
  const float magnitude = factor <= 1.0f ? 1.0f : 0.1f * std::log(factor) + 1.0f;
  rope.attn_factor = magnitude / (1.0f + 0.1f * std::log(factor));
}

// One factor a pair of dimensions: llama3's, or one of two lists, by the longest sequence that will
// be run. It is the same list for every position, so that a page does not depend on what follows.
void DecoderReader::ReadRopeFactors(kernel::RopeParams& rope) {
  if (!ok()) return;
  const uint32_t count = rope.num_rot / 2;
  ggml_tensor* factors = keys_.VectorIfPresent("rope_freqs.weight", count);
  ggml_tensor* long_factors = keys_.VectorIfPresent("rope_factors_long.weight", count);
  ggml_tensor* short_factors = keys_.VectorIfPresent("rope_factors_short.weight", count);
  const uint32_t context =
      options_.context != 0 ? options_.context : parts_.dimensions.context_train;
  if (factors == nullptr) factors = context > rope.orig_context ? long_factors : short_factors;
  if (factors == nullptr || !ok()) return;
  const float* begin = static_cast<const float*>(factors->data);
  rope.freq_factors.assign(begin, begin + count);
  for (const float value : rope.freq_factors) {
    if (!(value > 0.0f && value < 1e6f)) {
      keys_.Fail(StatusCode::kDataLoss, std::string("tensor '") + factors->name +
                                            "': " + std::to_string(value) +
                                            " is not between 0 and 1000000");
      return;
    }
  }
}

Linear DecoderReader::ReadLinear(const std::string& name, uint32_t inputs, uint32_t outputs) {
  return {keys_.Matrix(name + ".weight", inputs, outputs),
          keys_.VectorIfPresent(name + ".bias", outputs)};
}

ggml_tensor* DecoderReader::Slice(const ggml_tensor* whole, int axis, uint32_t first,
                                  uint32_t count) {
  if (whole == nullptr) return nullptr;
  ggml_tensor* part = parts_.slices.emplace_back(std::make_unique<ggml_tensor>(*whole)).get();
  part->data = static_cast<std::byte*>(whole->data) + first * whole->nb[axis];
  part->ne[axis] = count;
  for (int i = axis + 1; i < GGML_MAX_DIMS; ++i) {
    part->nb[i] = part->nb[i - 1] * static_cast<size_t>(part->ne[i - 1]);
  }
  return part;
}

Linear DecoderReader::Slice(const Linear& fused, uint32_t first, uint32_t rows) {
  return {Slice(fused.weight, 1, first, rows), Slice(fused.bias, 0, first, rows)};
}

Stack DecoderReader::ReadQkv(const std::string& prefix) {
  const Dimensions& d = parts_.dimensions;
  const uint32_t q = d.num_heads * d.head_dim, kv = d.num_kv_heads * d.head_dim;
  if (!keys_.HasTensor(prefix + "attn_qkv.weight")) {
    return {ReadLinear(prefix + "attn_q", d.embedding, q),
            ReadLinear(prefix + "attn_k", d.embedding, kv),
            ReadLinear(prefix + "attn_v", d.embedding, kv)};
  }
  const Linear fused = ReadLinear(prefix + "attn_qkv", d.embedding, q + 2 * kv);
  return {Slice(fused, 0, q), Slice(fused, q, kv), Slice(fused, q + kv, kv)};
}

Stack DecoderReader::ReadGateUp(const std::string& prefix, bool gate_in_up) {
  const Dimensions& d = parts_.dimensions;
  if (!gate_in_up) {
    return {ReadLinear(prefix + "ffn_gate", d.embedding, d.feed_forward),
            ReadLinear(prefix + "ffn_up", d.embedding, d.feed_forward)};
  }
  const Linear fused = ReadLinear(prefix + "ffn_up", d.embedding, 2 * d.feed_forward);
  return {Slice(fused, 0, d.feed_forward), Slice(fused, d.feed_forward, d.feed_forward)};
}

void DecoderReader::ReadExpertTensors(const std::string& prefix, DecoderLayer& layer) {
  const Dimensions& d = parts_.dimensions;
  const uint32_t count = parts_.num_experts;
  Experts& experts = layer.experts;
  experts.num_used = parts_.num_experts_used;
  experts.router = {ReadLinear(prefix + "ffn_gate_inp", d.embedding, count)};
  experts.gate_weights =
      keys_.Matrices(prefix + "ffn_gate_exps.weight", d.embedding, d.feed_forward, count);
  experts.up_weights =
      keys_.Matrices(prefix + "ffn_up_exps.weight", d.embedding, d.feed_forward, count);
  experts.down_weights =
      keys_.Matrices(prefix + "ffn_down_exps.weight", d.feed_forward, d.embedding, count);
  if (!ok()) return;
  for (uint32_t e = 0; e < count; ++e) {
    experts.gate_up.push_back({Linear{Slice(experts.gate_weights, 2, e, 1), nullptr},
                               Linear{Slice(experts.up_weights, 2, e, 1), nullptr}});
    experts.down.push_back({Linear{Slice(experts.down_weights, 2, e, 1), nullptr}});
  }
  // ggml multiplies 8 and more rows of one expert by another path, with other bits, but for tensors
  // that have something of their own attached.
  for (ggml_tensor* tensor : {experts.gate_weights, experts.up_weights, experts.down_weights})
    tensor->extra = tensor;
}

void DecoderReader::ReadLayer(uint32_t index, const LayerForm& form, DecoderLayer& layer) {
  const Dimensions& d = parts_.dimensions;
  const std::string prefix = "blk." + std::to_string(index) + ".";
  layer.attention_norm = keys_.Vector(prefix + "attn_norm.weight", d.embedding);
  layer.qkv = ReadQkv(prefix);
  if (form.head_norms) {
    layer.q_norm = keys_.Vector(prefix + "attn_q_norm.weight", d.head_dim);
    layer.k_norm = keys_.Vector(prefix + "attn_k_norm.weight", d.head_dim);
  }
  layer.o = {ReadLinear(prefix + "attn_output", d.num_heads * d.head_dim, d.embedding)};
  layer.ffn_norm = keys_.Vector(prefix + "ffn_norm.weight", d.embedding);
  if (form.post_norms) {
    layer.attention_post_norm = keys_.Vector(prefix + "post_attention_norm.weight", d.embedding);
    layer.ffn_post_norm = keys_.Vector(prefix + "post_ffw_norm.weight", d.embedding);
  }
  if (parts_.num_experts > 0) {
    ReadExpertTensors(prefix, layer);
  } else {
    layer.gate_up = ReadGateUp(prefix, form.gate_in_up);
    layer.down = {ReadLinear(prefix + "ffn_down", d.feed_forward, d.embedding)};
  }
}

void DecoderReader::ReadTensors(const LayerForm& form) {
  if (!ok()) return;
  Dimensions& d = parts_.dimensions;
  d.vocab_size = keys_.RowsOf("token_embd.weight", d.embedding);
  parts_.embedding = keys_.Matrix("token_embd.weight", d.embedding, d.vocab_size);
  parts_.output_norm = keys_.Vector("output_norm.weight", d.embedding);
  // Tied to the embeddings where the file has none.
  ggml_tensor* output = keys_.MatrixIfPresent("output.weight", d.embedding, d.vocab_size);
  parts_.output = {Linear{output != nullptr ? output : parts_.embedding,
                          keys_.VectorIfPresent("output.bias", d.vocab_size)}};
  parts_.layers.resize(d.num_layers);
  for (uint32_t i = 0; i < d.num_layers && ok(); ++i) ReadLayer(i, form, parts_.layers[i]);
}

Result<std::unique_ptr<Network>> DecoderReader::Finish() {
  keys_.RefuseIgnoredKeys();
  keys_.RequireAllTensorsUsed();
  if (!ok()) return keys_.status();
  return std::unique_ptr<Network>(std::make_unique<Decoder>(std::move(parts_)));
}

}  // namespace kvlink::model
