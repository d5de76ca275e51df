// The operations of GraphBuilder that only some families need.
#include "model/graph_builder.h"

#include <cmath>

namespace kvlink::model {
namespace {

// dst [rows, n] = sum over e of weights [rows, experts] * outputs [rows, experts, n], in the order
// of the experts.
void WeightedSumNode(ggml_tensor* dst, int thread, int num_threads, void*) {
  const ggml_tensor *outputs = dst->src[0], *weights = dst->src[1];
  const int64_t begin = dst->ne[1] * thread / num_threads;
  const int64_t end = dst->ne[1] * (thread + 1) / num_threads;
  for (int64_t row = begin; row < end; ++row) {
    const auto at = [row](const ggml_tensor* t, int axis) {
      return reinterpret_cast<const float*>(static_cast<const std::byte*>(t->data) +
                                            static_cast<size_t>(row) * t->nb[axis]);
    };
    auto* sum = const_cast<float*>(at(dst, 1));
    const float *x = at(outputs, 2), *w = at(weights, 1);
    for (int64_t i = 0; i < dst->ne[0]; ++i) sum[i] = w[0] * x[i];
    for (int64_t e = 1; e < outputs->ne[1]; ++e) {
      x += outputs->nb[1] / sizeof(float);
      for (int64_t i = 0; i < dst->ne[0]; ++i) sum[i] += w[e] * x[i];
    }
  }
}

}  // namespace

// The four below work element by element, or on one head of one row.
ggml_tensor* GraphBuilder::Scale(ggml_tensor* x, float factor) {
  return factor == 1.0f ? x : ggml_scale(context_, x, factor);
}

ggml_tensor* GraphBuilder::Add(ggml_tensor* x, ggml_tensor* y) { return ggml_add(context_, x, y); }

ggml_tensor* GraphBuilder::SoftCap(ggml_tensor* x, float cap) {
  if (cap == 0.0f) return x;
  return ggml_scale(context_, ggml_tanh(context_, ggml_scale(context_, x, 1.0f / cap)), cap);
}

ggml_tensor* GraphBuilder::HeadNorm(ggml_tensor* x, ggml_tensor* weight, float epsilon) {
  const int64_t head_dim = weight->ne[0], rows = x->ne[1];
  ggml_tensor* heads = ggml_view_3d(context_, x, head_dim, x->ne[0] / head_dim, rows,
                                    static_cast<size_t>(head_dim) * sizeof(float), x->nb[1], 0);
  heads = ggml_mul(context_, ggml_rms_norm(context_, heads, epsilon), weight);
  return ggml_reshape_2d(context_, heads, x->ne[0], rows);
}

// Softmax, sorting and sums stay within a row. ggml multiplies the rows of one expert together but,
// as the experts' tensors are marked (DecoderReader), always as one dot product an element.
ggml_tensor* GraphBuilder::MixExperts(const Experts& experts, const Input& input) {
  ggml_tensor* x = Floats(input);
  const int64_t rows = x->ne[1], count = experts.gate->ne[2], used = experts.num_used;
  ggml_tensor* probabilities =
      ggml_soft_max(context_, MatMulAdd(experts.router, Plain(x), /*residual=*/nullptr));
  ggml_tensor* chosen =
      ggml_argsort_top_k(context_, probabilities, static_cast<int>(used));  // [rows, used]
  ggml_tensor* weights =
      ggml_get_rows(context_, ggml_reshape_3d(context_, probabilities, 1, count, rows), chosen);
  weights = ggml_reshape_2d(context_, weights, used, rows);
  // Not by less than F16's smallest normal number, as llama.cpp.
  constexpr float kLeastSum = 6.103515625e-5f;
  ggml_tensor* sums = ggml_clamp(context_, ggml_sum_rows(context_, weights), kLeastSum, INFINITY);
  weights = ggml_div(context_, weights, sums);

  x = ggml_reshape_3d(context_, x, x->ne[0], 1, rows);
  ggml_tensor* gate = ggml_mul_mat_id(context_, experts.gate, x, chosen);  // [rows, used, width]
  ggml_tensor* up = ggml_mul_mat_id(context_, experts.up, x, chosen);
  ggml_tensor* outputs =
      ggml_mul_mat_id(context_, experts.down, ggml_swiglu_split(context_, gate, up), chosen);
  return Custom(GGML_TYPE_F32, outputs->ne[0], rows, {outputs, weights}, WeightedSumNode, nullptr,
                static_cast<uint32_t>(rows));
}

}  // namespace kvlink::model
