// The operations of GraphBuilder that only some families need.
#include "model/graph_builder.h"
#include "model/row_ops.h"

namespace kvlink::model {
namespace {

const float* Row(const ggml_tensor* tensor, int64_t row) {
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(tensor->data) +
                                        static_cast<size_t>(row) * tensor->nb[1]);
}

// Calls function(row, out, columns) for the piece's rows of a node of floats.
template <typename Function>
void ForRows(ggml_tensor* dst, int piece, int num_pieces, Function function) {
  const int64_t begin = dst->ne[1] * piece / num_pieces;
  const int64_t end = dst->ne[1] * (piece + 1) / num_pieces;
  for (int64_t row = begin; row < end; ++row)
    function(row, const_cast<float*>(Row(dst, row)), static_cast<uint32_t>(dst->ne[0]));
}

float Number(const void* userdata) { return *static_cast<const float*>(userdata); }

void ScaleNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  ForRows(dst, piece, num_pieces, [&](int64_t row, float* out, uint32_t n) {
    const float* x = Row(dst->src[0], row);
    for (uint32_t i = 0; i < n; ++i) out[i] = x[i] * Number(userdata);
  });
}

void SoftCapNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  ForRows(dst, piece, num_pieces, [&](int64_t row, float* out, uint32_t n) {
    SoftCapRow(Row(dst->src[0], row), Number(userdata), n, out);
  });
}

void AddScaledNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  ForRows(dst, piece, num_pieces, [&](int64_t row, float* out, uint32_t n) {
    const float *x = Row(dst->src[0], row), *y = Row(dst->src[1], row);
    for (uint32_t i = 0; i < n; ++i) out[i] = x[i] + y[i] * Number(userdata);
  });
}

void AddNormedNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  ForRows(dst, piece, num_pieces, [&](int64_t row, float* out, uint32_t n) {
    const float *x = Row(dst->src[0], row), *y = Row(dst->src[1], row);
    RmsNormRow(y, Row(dst->src[2], 0), Number(userdata), n, out);
    for (uint32_t i = 0; i < n; ++i) out[i] += x[i];
  });
}

// dst [rows, heads * n], each head normed with the weight [n]; one head is the whole row's norm.
void NormNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const ggml_tensor* weight = dst->src[1];
  const auto head_dim = static_cast<uint32_t>(weight->ne[0]);
  ForRows(dst, piece, num_pieces, [&](int64_t row, float* out, uint32_t n) {
    const float* x = Row(dst->src[0], row);
    for (uint32_t i = 0; i < n; i += head_dim)
      RmsNormRow(x + i, Row(weight, 0), Number(userdata), head_dim, out + i);
  });
}

void GeGluNode(ggml_tensor* dst, int piece, int num_pieces, void*) {
  ForRows(dst, piece, num_pieces, [&](int64_t row, float* out, uint32_t n) {
    GeGluRow(Row(dst->src[0], row), Row(dst->src[1], row), n, out);
  });
}

}  // namespace

ggml_tensor* GraphBuilder::RowNode(ggml_tensor* like, std::vector<ggml_tensor*> sources,
                                   ggml_custom_op_t op, const float* number) {
  return Custom(GGML_TYPE_F32, like->ne[0], like->ne[1], std::move(sources), op,
                const_cast<float*>(number), static_cast<uint32_t>(like->ne[1]));
}

ggml_tensor* GraphBuilder::Scale(ggml_tensor* x, const float* factor) {
  return *factor == 1.0f ? x : RowNode(x, {x}, ScaleNode, factor);
}

ggml_tensor* GraphBuilder::SoftCap(ggml_tensor* x, const float* cap) {
  return *cap == 0.0f ? x : RowNode(x, {x}, SoftCapNode, cap);
}

ggml_tensor* GraphBuilder::AddScaled(ggml_tensor* x, ggml_tensor* y, const float* factor) {
  return RowNode(x, {x, y}, AddScaledNode, factor);
}

ggml_tensor* GraphBuilder::AddNormed(ggml_tensor* x, ggml_tensor* y, ggml_tensor* weight,
                                     const float* epsilon) {
  return RowNode(x, {x, y, weight}, AddNormedNode, epsilon);
}

ggml_tensor* GraphBuilder::HeadNorm(ggml_tensor* x, ggml_tensor* weight, const float* epsilon) {
  return RowNode(x, {x, weight}, NormNode, epsilon);
}

ggml_tensor* GraphBuilder::GeGluFloats(const Input& input) {
  return RowNode(input.x, {input.x, input.weight}, GeGluNode, nullptr);
}

}  // namespace kvlink::model
