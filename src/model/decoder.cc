#include "model/decoder.h"

namespace kvlink::model {

Input Decoder::Norm(GraphBuilder& graph, ggml_tensor* x, ggml_tensor* weight) const {
  return graph.RmsNorm(x, weight, &parts_.norm_epsilon);
}

ggml_tensor* Decoder::HeadNorm(GraphBuilder& graph, ggml_tensor* x, ggml_tensor* weight) const {
  return weight == nullptr ? x : graph.HeadNorm(x, weight, &parts_.norm_epsilon);
}

ggml_tensor* Decoder::AddResidual(GraphBuilder& graph, ggml_tensor* y, ggml_tensor* post_norm,
                                  ggml_tensor* x) const {
  if (post_norm == nullptr) return graph.AddScaled(x, y, &parts_.residual_scale);
  if (parts_.residual_scale == 1.0f) return graph.AddNormed(x, y, post_norm, &parts_.norm_epsilon);
  return graph.AddScaled(x, graph.Floats(Norm(graph, y, post_norm)), &parts_.residual_scale);
}

ggml_tensor* Decoder::AddProduct(GraphBuilder& graph, const Stack& w, const Input& input,
                                 ggml_tensor* post_norm, ggml_tensor* x) const {
  if (post_norm == nullptr && parts_.residual_scale == 1.0f) return graph.MatMulAdd(w, input, x);
  return AddResidual(graph, graph.MatMulAdd(w, input, nullptr), post_norm, x);
}

ggml_tensor* Decoder::FeedForward(GraphBuilder& graph, const DecoderLayer& layer,
                                  ggml_tensor* x) const {
  const Input input = Norm(graph, x, layer.ffn_norm);
  if (parts_.num_experts > 0) {
    return AddResidual(graph, graph.MixExperts(layer.experts, input), layer.ffn_post_norm, x);
  }
  const Input activated = parts_.activation == Activation::kSilu
                              ? graph.SwiGlu(layer.gate_up, input, layer.down)
                              : graph.GeGlu(graph.MatMul(layer.gate_up, input));
  return AddProduct(graph, layer.down, activated, layer.ffn_post_norm, x);
}

// The rotated queries of layer i; K and V are written.
ggml_tensor* Decoder::WriteKv(GraphBuilder& graph, uint32_t i, ggml_tensor* x) const {
  const DecoderLayer& layer = parts_.layers[i];
  const auto qkv = graph.MatMul(layer.qkv, Norm(graph, x, layer.attention_norm));
  return graph.WriteKv(i, HeadNorm(graph, qkv[0], layer.q_norm),
                       HeadNorm(graph, qkv[1], layer.k_norm), qkv[2]);
}

ggml_tensor* Decoder::Build(GraphBuilder& graph) const {
  const auto num_layers = static_cast<uint32_t>(parts_.layers.size());
  const uint32_t begin = graph.shape().first_layer, end = graph.shape().end_layer;
  ggml_tensor* x = begin == 0 ? graph.Scale(graph.Embed(parts_.embedding), &parts_.embedding_scale)
                              : graph.ReadResidual(parts_.dimensions.embedding);
  for (uint32_t i = begin; i < end; ++i) {
    const DecoderLayer& layer = parts_.layers[i];
    const bool last = i + 1 == num_layers;
    graph.PassResidual(i, x);
    ggml_tensor* q = WriteKv(graph, i, x);
    if (last && graph.num_outputs() == 0) return q;
    ggml_tensor* attended = graph.Attend(i, q);
    if (last) {
      attended = graph.OutputRows(attended);
      x = graph.OutputRows(x);
    }
    x = AddProduct(graph, layer.o, GraphBuilder::Plain(attended), layer.attention_post_norm, x);
    x = FeedForward(graph, layer, x);
  }
  if (end < num_layers) {
    if (graph.shape().writes_next) graph.AlsoCompute(WriteKv(graph, end, x));
    return x;
  }
  ggml_tensor* logits = graph.MatMulAdd(parts_.output, Norm(graph, x, parts_.output_norm), nullptr);
  return graph.SoftCap(graph.Scale(logits, &parts_.logit_scale), &parts_.logit_softcap);
}

std::vector<Stack*> Decoder::Stacks() {
  std::vector<Stack*> stacks;
  for (DecoderLayer& layer : parts_.layers) {
    for (Stack* stack :
         {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.experts.router}) {
      if (!stack->layers().empty()) stacks.push_back(stack);
    }
    for (Stack& stack : layer.experts.gate_up) stacks.push_back(&stack);
    for (Stack& stack : layer.experts.down) stacks.push_back(&stack);
  }
  stacks.push_back(&parts_.output);
  return stacks;
}

}  // namespace kvlink::model
