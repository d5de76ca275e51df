// The architecture `llama`: Llama 1 to 3, SmolLM2, TinyLlama, Mistral.
//
//   x = embedding[token]
//   each layer:  x += O attend(rope(Q h), rope(K h), V h)   with h = rms_norm(x)
//                x += D (silu(G h) * (U h))                 with h = rms_norm(x)
//   logits = W rms_norm(x)
#include <cmath>
#include <string>
#include <vector>

#include "model/families.h"
#include "model/gguf_reader.h"

namespace kvlink::model {
namespace {

struct Layer {
  ggml_tensor* attention_norm = nullptr;
  Stack qkv, o;
  ggml_tensor* ffn_norm = nullptr;
  Stack gate_up, down;
};

class Llama : public Network {
 public:
  Status Load(const GgufFile& file);

  const Dimensions& dimensions() const override { return dimensions_; }
  const kernel::RopeParams& rope() const override { return rope_; }
  float attention_scale() const override { return attention_scale_; }
  ggml_tensor* Build(GraphBuilder& graph) const override;
  std::vector<Stack*> Stacks() override;

 private:
  void ReadHyperParameters(GgufReader& reader);
  void ReadRope(GgufReader& reader);
  void ReadYarn(GgufReader& reader);
  void ReadTensors(GgufReader& reader);

  Dimensions dimensions_;
  kernel::RopeParams rope_;
  float attention_scale_ = 0;
  float norm_epsilon_ = 0;
  ggml_tensor* embedding_ = nullptr;
  std::vector<Layer> layers_;
  ggml_tensor* output_norm_ = nullptr;
  Stack output_;
};

ggml_tensor* Llama::Build(GraphBuilder& graph) const {
  ggml_tensor* x = graph.Embed(embedding_);
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool last = i + 1 == layers_.size();
    const auto qkv =
        graph.MatMul(layer.qkv, graph.RmsNorm(x, layer.attention_norm, &norm_epsilon_));
    ggml_tensor* q = graph.WriteKv(i, qkv[0], qkv[1], qkv[2]);
    if (last && graph.num_outputs() == 0) return q;
    ggml_tensor* attended = graph.Attend(i, q);
    if (last) {
      attended = graph.OutputRows(attended);
      x = graph.OutputRows(x);
    }
    x = graph.MatMulAdd(layer.o, GraphBuilder::Plain(attended), x);
    const auto gate_up =
        graph.MatMul(layer.gate_up, graph.RmsNorm(x, layer.ffn_norm, &norm_epsilon_));
    x = graph.MatMulAdd(layer.down, graph.SwiGlu(gate_up), x);
  }
  return graph.MatMulAdd(output_, graph.RmsNorm(x, output_norm_, &norm_epsilon_), nullptr);
}

std::vector<Stack*> Llama::Stacks() {
  std::vector<Stack*> stacks;
  for (Layer& layer : layers_) {
    for (Stack* stack : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      stacks.push_back(stack);
  }
  stacks.push_back(&output_);
  return stacks;
}

void Llama::ReadHyperParameters(GgufReader& reader) {
  Dimensions& d = dimensions_;
  d.context_train = reader.Uint("context_length", 1, 1u << 30);
  d.embedding = reader.Uint("embedding_length", 1, 1u << 20);
  d.num_layers = reader.Uint("block_count", 1, 1024);
  d.feed_forward = reader.Uint("feed_forward_length", 1, 1u << 22);
  d.num_heads = reader.Uint("attention.head_count", 1, 4096);
  d.num_kv_heads = reader.UintOr("attention.head_count_kv", d.num_heads, 1, 4096);
  norm_epsilon_ = reader.Float("attention.layer_norm_rms_epsilon", 0.0f, 1.0f);
  if (!reader.status().ok()) return;

  if (reader.UintOr("expert_count", 0, 0, UINT32_MAX) > 0) {
    reader.Fail(StatusCode::kUnimplemented,
                "mixture of experts (llama.expert_count > 0) is not supported");
  }
  if (reader.UintOr("attention.sliding_window", 0, 0, UINT32_MAX) > 0) {
    reader.Fail(StatusCode::kUnimplemented,
                "sliding windows (llama.attention.sliding_window) are not supported");
  }
  if (d.num_heads % d.num_kv_heads != 0) {
    reader.Fail(StatusCode::kDataLoss,
                "'llama.attention.head_count': " + std::to_string(d.num_heads) +
                    " is not a multiple of 'llama.attention.head_count_kv': " +
                    std::to_string(d.num_kv_heads));
  }
  d.head_dim = reader.UintOr("attention.key_length", d.embedding / d.num_heads, 1, 4096);
  const uint32_t value_dim = reader.UintOr("attention.value_length", d.head_dim, 1, 4096);
  if (d.head_dim == 0 || value_dim != d.head_dim) {
    reader.Fail(StatusCode::kUnimplemented,
                "head dimensions of K and V must be equal and not 0, seen " +
                    std::to_string(d.head_dim) + " and " + std::to_string(value_dim));
  }
  if (!reader.status().ok()) return;
  attention_scale_ = reader.FloatOr("attention.scale", 0.0f, 0.0f, 1e6f);
  if (attention_scale_ == 0.0f) attention_scale_ = 1.0f / std::sqrt(static_cast<float>(d.head_dim));
}

void Llama::ReadRope(GgufReader& reader) {
  rope_.num_rot =
      reader.UintOr("rope.dimension_count", dimensions_.head_dim, 2, dimensions_.head_dim);
  if (rope_.num_rot % 2 != 0) {
    reader.Fail(StatusCode::kDataLoss,
                "'llama.rope.dimension_count': " + std::to_string(rope_.num_rot) + " is not even");
  }
  rope_.freq_base = reader.FloatOr("rope.freq_base", 10000.0f, 1.0f, 1e12f);
  rope_.orig_context =
      reader.UintOr("rope.scaling.original_context_length", dimensions_.context_train, 0, 1u << 30);
  if (rope_.orig_context == 0) rope_.orig_context = dimensions_.context_train;

  const std::string scaling = reader.TextOr("rope.scaling.type", "linear");
  if (scaling != "none" && scaling != "linear" && scaling != "yarn") {
    reader.Fail(StatusCode::kUnimplemented,
                "'llama.rope.scaling.type': '" + scaling +
                    "' is not supported (supported: none, linear, yarn)");
    return;
  }
  // 0 means 1. Old files have the linear factor under another name.
  float factor = reader.FloatOr(
      reader.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear", 0.0f, 0.0f,
      1e6f);
  if (factor == 0.0f || scaling == "none") factor = 1.0f;
  if (factor < 1e-3f) {
    reader.Fail(StatusCode::kDataLoss,
                "'llama.rope.scaling.factor': " + std::to_string(factor) + " is below 0.001");
  }
  rope_.freq_scale = 1.0f / factor;
  if (scaling == "yarn") ReadYarn(reader);
  rope_.attn_factor *= reader.FloatOr("rope.scaling.attn_factor", 1.0f, 0.0f, 1e6f);

  if (ggml_tensor* factors = reader.VectorIfPresent("rope_freqs.weight", rope_.num_rot / 2)) {
    const float* begin = static_cast<const float*>(factors->data);
    rope_.freq_factors.assign(begin, begin + rope_.num_rot / 2);
    for (const float value : rope_.freq_factors) {
      if (!(value > 0.0f && value < 1e6f)) {
        reader.Fail(StatusCode::kDataLoss, "tensor 'rope_freqs.weight': " + std::to_string(value) +
                                               " is not between 0 and 1000000");
        return;
      }
    }
  }
}

// As llama_context does: the rotation itself scales by 1 + 0.1 ln(factor), which is cancelled here
// and put back only for factors above 1.
void Llama::ReadYarn(GgufReader& reader) {
  rope_.ext_factor = 1.0f;
  const float factor = 1.0f / rope_.freq_scale;
  const float magnitude = factor <= 1.0f ? 1.0f : 0.1f * std::log(factor) + 1.0f;
  rope_.attn_factor = magnitude / (1.0f + 0.1f * std::log(factor));
  if (reader.FloatOr("rope.scaling.yarn_log_multiplier", 0.0f, 0.0f, 1e6f) != 0.0f) {
    reader.Fail(StatusCode::kUnimplemented,
                "'llama.rope.scaling.yarn_log_multiplier' is not supported");
  }
}

void Llama::ReadTensors(GgufReader& reader) {
  Dimensions& d = dimensions_;
  const uint32_t q_dim = d.num_heads * d.head_dim, kv_dim = d.num_kv_heads * d.head_dim;
  d.vocab_size = reader.RowsOf("token_embd.weight", d.embedding);
  embedding_ = reader.Matrix("token_embd.weight", d.embedding, d.vocab_size);
  output_norm_ = reader.Vector("output_norm.weight", d.embedding);
  ggml_tensor* output = reader.MatrixIfPresent("output.weight", d.embedding, d.vocab_size);
  output_ = {Linear{output != nullptr ? output : embedding_, nullptr}};  // tied, where it has none

  layers_.resize(d.num_layers);
  for (uint32_t i = 0; i < d.num_layers && reader.status().ok(); ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const auto linear = [&](const char* name, uint32_t inputs, uint32_t outputs) {
      return Linear{reader.Matrix(prefix + name + ".weight", inputs, outputs),
                    reader.VectorIfPresent(prefix + name + ".bias", outputs)};
    };
    Layer& layer = layers_[i];
    layer.attention_norm = reader.Vector(prefix + "attn_norm.weight", d.embedding);
    layer.qkv = {linear("attn_q", d.embedding, q_dim), linear("attn_k", d.embedding, kv_dim),
                 linear("attn_v", d.embedding, kv_dim)};
    layer.o = {linear("attn_output", q_dim, d.embedding)};
    layer.ffn_norm = reader.Vector(prefix + "ffn_norm.weight", d.embedding);
    layer.gate_up = {linear("ffn_gate", d.embedding, d.feed_forward),
                     linear("ffn_up", d.embedding, d.feed_forward)};
    layer.down = {linear("ffn_down", d.feed_forward, d.embedding)};
  }
}

Status Llama::Load(const GgufFile& file) {
  GgufReader reader(file, "llama");
  for (const auto step : {&Llama::ReadHyperParameters, &Llama::ReadRope, &Llama::ReadTensors}) {
    (this->*step)(reader);
    if (!reader.status().ok()) return reader.status();
  }
  reader.RequireAllTensorsUsed();
  return reader.status();
}

}  // namespace

Result<std::unique_ptr<Network>> LoadLlama(const GgufFile& file) {
  auto llama = std::make_unique<Llama>();
  if (Status status = llama->Load(file); !status.ok()) return status;
  return std::unique_ptr<Network>(std::move(llama));
}

}  // namespace kvlink::model
