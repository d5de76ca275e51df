#include "model/graph_builder.h"

namespace kvlink::model {
namespace {

const float* Data(const ggml_tensor* tensor) { return static_cast<const float*>(tensor->data); }
size_t Stride(const ggml_tensor* tensor) { return tensor->nb[1] / sizeof(float); }

void WriteKvNode(ggml_tensor* dst, int thread, int num_threads, void* userdata) {
  const auto* layer = static_cast<const AttentionLayer*>(userdata);
  const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
  layer->attention->Write(layer->layer, Data(q), Stride(q), Data(k), Stride(k), Data(v), Stride(v),
                          static_cast<float*>(dst->data), Stride(dst), thread, num_threads);
}

void AttendNode(ggml_tensor* dst, int thread, int num_threads, void* userdata) {
  const auto* layer = static_cast<const AttentionLayer*>(userdata);
  const ggml_tensor* q = dst->src[0];
  layer->attention->Attend(layer->layer, Data(q), Stride(q), static_cast<float*>(dst->data),
                           Stride(dst), thread, num_threads);
}

// Rows [begin, end) of a node that works row by row.
struct RowRange {
  RowRange(const ggml_tensor* dst, int thread, int num_threads)
      : begin(static_cast<uint32_t>(dst->ne[1] * thread / num_threads)),
        end(static_cast<uint32_t>(dst->ne[1] * (thread + 1) / num_threads)) {}
  uint32_t begin, end;
};

std::byte* Bytes(const ggml_tensor* tensor) { return static_cast<std::byte*>(tensor->data); }

void QuantizeNode(ggml_tensor* dst, int thread, int num_threads, void*) {
  const ggml_tensor* x = dst->src[0];
  const RowRange rows(dst, thread, num_threads);
  kernel::Quantize(Data(x), Stride(x), static_cast<uint32_t>(x->ne[0]), Bytes(dst), rows.begin,
                   rows.end);
}

void RmsNormQuantizeNode(ggml_tensor* dst, int thread, int num_threads, void* userdata) {
  const ggml_tensor *x = dst->src[0], *weight = dst->src[1];
  const RowRange rows(dst, thread, num_threads);
  kernel::RmsNormQuantize(Data(x), Stride(x), static_cast<uint32_t>(x->ne[0]), Data(weight),
                          *static_cast<const float*>(userdata), Bytes(dst), rows.begin, rows.end);
}

void SwiGluQuantizeNode(ggml_tensor* dst, int thread, int num_threads, void*) {
  const ggml_tensor* gate_up = dst->src[0];
  const RowRange rows(dst, thread, num_threads);
  kernel::SwiGluQuantize(Data(gate_up), Stride(gate_up), static_cast<uint32_t>(gate_up->ne[0] / 2),
                         Bytes(dst), rows.begin, rows.end);
}

void PackedProductNode(ggml_tensor* dst, int thread, int num_threads, void* userdata) {
  const auto& matrix = *static_cast<const kernel::PackedMatrix*>(userdata);
  const ggml_tensor *x = dst->src[0], *residual = dst->src[1];
  const uint64_t panels = matrix.panels();
  kernel::Multiply(matrix, Bytes(x), static_cast<uint32_t>(dst->ne[1]),
                   static_cast<float*>(dst->data), Stride(dst), residual ? Data(residual) : nullptr,
                   residual ? Stride(residual) : 0,
                   static_cast<uint32_t>(panels * thread / num_threads),
                   static_cast<uint32_t>(panels * (thread + 1) / num_threads));
}

}  // namespace

GraphBuilder::GraphBuilder(ggml_context* context, std::span<AttentionLayer> layers,
                           uint32_t num_rows, uint32_t num_outputs)
    : context_(context), layers_(layers), num_rows_(num_rows), num_outputs_(num_outputs) {
  tokens_ = ggml_new_tensor_1d(context_, GGML_TYPE_I32, num_rows);
  ggml_set_input(tokens_);
  if (num_outputs > 0 && num_outputs < num_rows) {
    output_rows_ = ggml_new_tensor_1d(context_, GGML_TYPE_I32, num_outputs);
    ggml_set_input(output_rows_);
  }
}

// Copies or dequantises row by row.
ggml_tensor* GraphBuilder::Embed(ggml_tensor* table) {
  return ggml_get_rows(context_, table, tokens_);
}

ggml_tensor* GraphBuilder::OutputRows(ggml_tensor* x) {
  return output_rows_ == nullptr ? x : ggml_get_rows(context_, x, output_rows_);
}

Input GraphBuilder::SwiGlu(const std::vector<ggml_tensor*>& gate_up) const {
  const ggml_tensor *gate = gate_up[0], *up = gate_up[1];
  const bool together = gate->view_src != nullptr && gate->view_src == up->view_src;
  return {Input::Kind::kSwiGlu, gate_up[0], gate_up[1], nullptr,
          together ? gate->view_src : nullptr};
}

// RMS norm: one thread sums a whole row, in order, in double precision. SwiGLU: element by element;
// which elements of a row fall into the vector remainder depends on the columns only.
ggml_tensor* GraphBuilder::Floats(const Input& input) {
  switch (input.kind) {
    case Input::Kind::kPlain:
      return input.x;
    case Input::Kind::kRmsNorm:
      return ggml_mul(context_, ggml_rms_norm(context_, input.x, *input.epsilon), input.weight);
    case Input::Kind::kSwiGlu:
      return input.stacked != nullptr ? ggml_swiglu(context_, input.stacked)
                                      : ggml_swiglu_split(context_, input.x, input.weight);
  }
  return nullptr;
}

// kernel::Quantize and its fused forms work row by row.
ggml_tensor* GraphBuilder::Quantized(const Input& input) {
  const int64_t rows = input.x->ne[1];
  const auto node = [&](std::vector<ggml_tensor*> sources, int64_t inputs, ggml_custom_op_t op,
                        void* userdata) {
    const auto bytes =
        static_cast<int64_t>(kernel::QuantizedRowBytes(static_cast<uint32_t>(inputs)));
    return ggml_custom_4d(context_, GGML_TYPE_I8, bytes, rows, 1, 1, sources.data(),
                          static_cast<int>(sources.size()), op, GGML_N_TASKS_MAX, userdata);
  };
  if (input.kind == Input::Kind::kRmsNorm) {
    return node({input.x, input.weight}, input.x->ne[0], RmsNormQuantizeNode,
                const_cast<float*>(input.epsilon));
  }
  if (input.kind == Input::Kind::kSwiGlu && input.stacked != nullptr) {
    return node({input.stacked}, input.stacked->ne[0] / 2, SwiGluQuantizeNode, nullptr);
  }
  ggml_tensor* x = Floats(input);
  return node({x}, x->ne[0], QuantizeNode, nullptr);
}

// ggml computes each element as one dot product of a weight row with one input row, quantised block
// by block, unless one of three paths takes several input rows together: llamafile's and repacked
// products (not built), and, chosen by ne[1] of the input at run time, the tiled product of
// K-quants (8 rows and more) and ARM's 2 x 2 dot products (an even number). Giving the rows as
// ne[2] (a batch of single rows, broadcast over one weight) keeps these two out, at no cost to the
// plain path.
ggml_tensor* GraphBuilder::Product(const Linear& linear, ggml_tensor* input) {
  const int64_t rows = input->ne[1];
  ggml_tensor* single_rows = ggml_reshape_3d(context_, input, input->ne[0], 1, rows);
  ggml_tensor* product = ggml_mul_mat(context_, linear.weight, single_rows);
  product = ggml_reshape_2d(context_, product, linear.weight->ne[1], rows);
  return linear.bias == nullptr ? product : ggml_add(context_, product, linear.bias);
}

// kernel::Multiply's first invariant.
ggml_tensor* GraphBuilder::PackedProduct(const Stack& stack, const Input& input,
                                         ggml_tensor* residual) {
  ggml_tensor* quantized = Quantized(input);
  ggml_tensor* sources[] = {quantized, residual};
  return ggml_custom_4d(context_, GGML_TYPE_F32, stack.matrix().rows(), quantized->ne[1], 1, 1,
                        sources, residual != nullptr ? 2 : 1, PackedProductNode, GGML_N_TASKS_MAX,
                        const_cast<kernel::PackedMatrix*>(&stack.matrix()));
}

std::vector<ggml_tensor*> GraphBuilder::MatMul(const Stack& stack, const Input& input) {
  std::vector<ggml_tensor*> results;
  if (!stack.packed()) {
    ggml_tensor* floats = Floats(input);
    for (const Linear& layer : stack.layers()) results.push_back(Product(layer, floats));
    return results;
  }
  ggml_tensor* stacked = PackedProduct(stack, input, nullptr);
  size_t offset = 0;
  for (const Linear& layer : stack.layers()) {
    results.push_back(ggml_view_2d(context_, stacked, layer.weight->ne[1], stacked->ne[1],
                                   stacked->nb[1], offset));
    offset += static_cast<size_t>(layer.weight->ne[1]) * sizeof(float);
  }
  return results;
}

ggml_tensor* GraphBuilder::MatMulAdd(const Stack& stack, const Input& input,
                                     ggml_tensor* residual) {
  if (stack.packed()) return PackedProduct(stack, input, residual);
  ggml_tensor* product = Product(stack.layers().front(), Floats(input));
  return residual == nullptr ? product : ggml_add(context_, product, residual);
}

// kernel::PagedAttention's first invariant. Two nodes, because the threads meet between nodes only.
ggml_tensor* GraphBuilder::WriteKv(uint32_t layer, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v) {
  ggml_tensor* inputs[] = {q, k, v};
  return ggml_custom_4d(context_, GGML_TYPE_F32, q->ne[0], q->ne[1], 1, 1, inputs, 3, WriteKvNode,
                        GGML_N_TASKS_MAX, &layers_[layer]);
}

ggml_tensor* GraphBuilder::Attend(uint32_t layer, ggml_tensor* q) {
  return ggml_custom_4d(context_, GGML_TYPE_F32, q->ne[0], q->ne[1], 1, 1, &q, 1, AttendNode,
                        GGML_N_TASKS_MAX, &layers_[layer]);
}

}  // namespace kvlink::model
