// Decoder: the network that the supported families are cases of.
//
//   x = embedding_scale * embedding[token]
//   each layer:
//     h = norm(x)  x += residual_scale * post(O attend(rope(q_norm(Q h)), rope(k_norm(K h)), V h))
//     h = norm(x)  x += residual_scale * post(F h)
//   logits = cap(logit_scale * W norm(x))
//
//   F h = D (act(G h) * (U h)), or a mixture of such experts (graph_builder.h)
//   norm(x) = x / sqrt(mean(x^2) + epsilon) * weight; q_norm and k_norm work on each head
//   cap(y) = c tanh(y / c)
// A family file reads a file's keys and tensors into DecoderParts; what the family does not have
// stays null (norms), 1 (scales) or 0 (cap) and costs nothing. Immutable once loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/network.h"

namespace kvlink::model {

enum class Activation { kSilu, kGelu };

struct DecoderLayer {
  ggml_tensor *attention_norm = nullptr, *attention_post_norm = nullptr;  // [embedding]
  ggml_tensor *q_norm = nullptr, *k_norm = nullptr;                       // [head_dim]
  Stack qkv, o;
  ggml_tensor *ffn_norm = nullptr, *ffn_post_norm = nullptr;  // [embedding]
  Stack gate_up, down;                                        // without experts
  Experts experts;
};

struct DecoderParts {
  Dimensions dimensions;
  std::vector<kernel::LayerParams> attention;  // one for all layers, or one a layer
  float norm_epsilon = 0;
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  float logit_softcap = 0;
  Activation activation = Activation::kSilu;
  uint32_t num_experts = 0, num_experts_used = 0;

  ggml_tensor* embedding = nullptr;  // [vocabulary, embedding]
  std::vector<DecoderLayer> layers;
  ggml_tensor* output_norm = nullptr;
  Stack output;
  // Rows of the file's fused tensors, as tensors of their own.
  std::vector<std::unique_ptr<ggml_tensor>> slices;
};

class Decoder : public Network {
 public:
  explicit Decoder(DecoderParts parts) : parts_(std::move(parts)) {}

  const Dimensions& dimensions() const override { return parts_.dimensions; }
  const std::vector<kernel::LayerParams>& attention() const override { return parts_.attention; }
  ggml_tensor* Build(GraphBuilder& graph) const override;
  std::vector<Stack*> Stacks() override;

 private:
  Input Norm(GraphBuilder& graph, ggml_tensor* x, ggml_tensor* weight) const;
  ggml_tensor* HeadNorm(GraphBuilder& graph, ggml_tensor* x, ggml_tensor* weight) const;
  ggml_tensor* WriteKv(GraphBuilder& graph, uint32_t layer, ggml_tensor* x) const;
  ggml_tensor* FeedForward(GraphBuilder& graph, const DecoderLayer& layer, ggml_tensor* x) const;
  // x + residual_scale * post(W input)
  ggml_tensor* AddProduct(GraphBuilder& graph, const Stack& w, const Input& input,
                          ggml_tensor* post_norm, ggml_tensor* x) const;
  ggml_tensor* AddResidual(GraphBuilder& graph, ggml_tensor* y, ggml_tensor* post_norm,
                           ggml_tensor* x) const;

  const DecoderParts& parts() const { return parts_; }
  DecoderParts parts_;
};

}  // namespace kvlink::model
