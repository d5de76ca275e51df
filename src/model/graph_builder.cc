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

// One thread sums a whole row, in order, in double precision.
ggml_tensor* GraphBuilder::RmsNorm(ggml_tensor* x, ggml_tensor* weight, float epsilon) {
  return ggml_mul(context_, ggml_rms_norm(context_, x, epsilon), weight);
}

// Element by element; which elements of a row fall into the vector remainder depends on the columns
// only.
ggml_tensor* GraphBuilder::SwiGlu(ggml_tensor* gate, ggml_tensor* up) {
  return ggml_swiglu_split(context_, gate, up);
}

// ggml computes each element as one dot product of a weight row with one input row, quantised block
// by block, unless one of three paths takes several input rows together: llamafile's and repacked
// products (not built), and, chosen by ne[1] of the input at run time, the tiled product of
// K-quants (8 rows and more) and ARM's 2 x 2 dot products (an even number). Giving the rows as
// ne[2] (a batch of single rows, broadcast over one weight) keeps these two out, at no cost to the
// plain path.
ggml_tensor* GraphBuilder::MatMulAdd(const Linear& linear, ggml_tensor* input,
                                     ggml_tensor* residual) {
  const int64_t rows = input->ne[1];
  ggml_tensor* single_rows = ggml_reshape_3d(context_, input, input->ne[0], 1, rows);
  ggml_tensor* product = ggml_mul_mat(context_, linear.weight, single_rows);
  product = ggml_reshape_2d(context_, product, linear.weight->ne[1], rows);
  if (linear.bias != nullptr) product = ggml_add(context_, product, linear.bias);
  if (residual != nullptr) product = ggml_add(context_, product, residual);
  return product;
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
