#include "model/graph_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

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

void GetRowsNode(ggml_tensor* dst, int thread, int num_threads, void*) {
  const ggml_tensor *table = dst->src[0], *indices = dst->src[1];
  const ggml_to_float_t to_float = ggml_get_type_traits(table->type)->to_float;
  const RowRange rows(dst, thread, num_threads);
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const auto index = static_cast<size_t>(static_cast<const int32_t*>(indices->data)[row]);
    const std::byte* from = Bytes(table) + index * table->nb[1];
    auto* to = reinterpret_cast<float*>(Bytes(dst) + row * dst->nb[1]);
    if (table->type == GGML_TYPE_F32) {
      std::memcpy(to, from, static_cast<size_t>(dst->ne[0]) * sizeof(float));
    } else {
      to_float(from, to, dst->ne[0]);
    }
  }
}

// What a node of Prepared holds.
kernel::InputFormat FormatOf(const ggml_tensor* tensor) {
  return tensor->type == GGML_TYPE_I8     ? kernel::InputFormat::kInt8
         : tensor->type == GGML_TYPE_BF16 ? kernel::InputFormat::kBF16
                                          : kernel::InputFormat::kF32;
}

void QuantizeNode(ggml_tensor* dst, int thread, int num_threads, void*) {
  const ggml_tensor* x = dst->src[0];
  const RowRange rows(dst, thread, num_threads);
  kernel::Quantize(FormatOf(dst), Data(x), Stride(x), static_cast<uint32_t>(x->ne[0]), Bytes(dst),
                   rows.begin, rows.end);
}

void RmsNormQuantizeNode(ggml_tensor* dst, int thread, int num_threads, void* userdata) {
  const ggml_tensor *x = dst->src[0], *weight = dst->src[1];
  const RowRange rows(dst, thread, num_threads);
  kernel::RmsNormQuantize(FormatOf(dst), Data(x), Stride(x), static_cast<uint32_t>(x->ne[0]),
                          Data(weight), *static_cast<const float*>(userdata), Bytes(dst),
                          rows.begin, rows.end);
}

void SwiGluQuantizeNode(ggml_tensor* dst, int thread, int num_threads, void*) {
  const ggml_tensor* gate_up = dst->src[0];
  const RowRange rows(dst, thread, num_threads);
  kernel::SwiGluQuantize(FormatOf(dst), Data(gate_up), Stride(gate_up),
                         static_cast<uint32_t>(gate_up->ne[0] / 2), Bytes(dst), rows.begin,
                         rows.end);
}

void PackedProductNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const auto& matrix = *static_cast<const kernel::PackedMatrix*>(userdata);
  const ggml_tensor *x = dst->src[0], *residual = dst->src[1];
  const ProductPiece p(dst->ne[1], matrix.panels(), piece, num_pieces);
  kernel::Multiply(matrix, {Bytes(x) + p.row_begin * x->nb[1], x->nb[1], p.row_end - p.row_begin},
                   static_cast<float*>(dst->data) + p.row_begin * Stride(dst), Stride(dst),
                   residual ? Data(residual) + p.row_begin * Stride(residual) : nullptr,
                   residual ? Stride(residual) : 0, p.panel_begin, p.panel_end);
}

void SwiGluProductNode(ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const auto& matrix = *static_cast<const kernel::PackedMatrix*>(userdata);
  const ggml_tensor* x = dst->src[0];
  const ProductPiece p(dst->ne[1], matrix.panels() / 2, piece, num_pieces);
  kernel::MultiplySwiGlu(matrix,
                         {Bytes(x) + p.row_begin * x->nb[1], x->nb[1], p.row_end - p.row_begin},
                         Bytes(dst) + p.row_begin * dst->nb[1], p.panel_begin, p.panel_end);
}

// What a product may find in the first-level cache when it begins; the kernel asks for the rest.
constexpr size_t kFetchBytes = 16384;

void FetchProduct(const ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const auto& matrix = *static_cast<const kernel::PackedMatrix*>(userdata);
  const ProductPiece p(dst->ne[1], matrix.panels(), piece, num_pieces);
  kernel::FetchPanels(matrix, p.panel_begin, kFetchBytes);
}

void FetchSwiGluProduct(const ggml_tensor* dst, int piece, int num_pieces, void* userdata) {
  const auto& matrix = *static_cast<const kernel::PackedMatrix*>(userdata);
  const uint32_t half = matrix.panels() / 2;
  const ProductPiece p(dst->ne[1], half, piece, num_pieces);
  kernel::FetchPanels(matrix, p.panel_begin, kFetchBytes / 2);
  kernel::FetchPanels(matrix, half + p.panel_begin, kFetchBytes / 2);
}

}  // namespace

ProductPiece::ProductPiece(int64_t rows, uint32_t panels, int piece, int num_pieces) {
  const auto n = static_cast<uint32_t>(num_pieces), i = static_cast<uint32_t>(piece);
  // Fewer pieces than slices: the kernel cuts rows itself.
  const uint32_t slices = n % RowSlices(rows) == 0 ? RowSlices(rows) : 1;
  const uint32_t groups = n / slices, slice = i / groups, group = i % groups;
  const auto num_rows = static_cast<uint64_t>(rows);
  row_begin = static_cast<uint32_t>(num_rows * slice / slices);
  row_end = static_cast<uint32_t>(num_rows * (slice + 1) / slices);
  panel_begin = static_cast<uint32_t>(uint64_t{panels} * group / groups);
  panel_end = static_cast<uint32_t>(uint64_t{panels} * (group + 1) / groups);
}

GraphBuilder::GraphBuilder(ggml_context* context, std::span<AttentionLayer> layers,
                           const GraphShape& shape)
    : context_(context), layers_(layers), shape_(shape) {
  tokens_ = ggml_new_tensor_1d(context_, GGML_TYPE_I32, num_rows());
  ggml_set_input(tokens_);
  if (num_outputs() > 0 && num_outputs() < num_rows()) {
    output_rows_ = ggml_new_tensor_1d(context_, GGML_TYPE_I32, num_outputs());
    ggml_set_input(output_rows_);
  }
}

ggml_tensor* GraphBuilder::ReadResidual(int64_t n) {
  residual_ = ggml_new_tensor_2d(context_, GGML_TYPE_F32, n, num_rows());
  ggml_set_input(residual_);
  return residual_;
}

void GraphBuilder::PassResidual(uint32_t layer, ggml_tensor* x) {
  const auto& layers = shape_.kept_layers;
  if (std::find(layers.begin(), layers.end(), layer) == layers.end()) return;
  ggml_set_output(x);
  kept_.push_back(x);
}

ggml_tensor* GraphBuilder::Custom(ggml_type type, int64_t columns, int64_t rows,
                                  std::vector<ggml_tensor*> sources, ggml_custom_op_t op,
                                  void* userdata, uint32_t units, uint32_t row_slices) {
  ggml_tensor* node =
      ggml_custom_4d(context_, type, columns, rows, 1, 1, sources.data(),
                     static_cast<int>(sources.size()), op, GGML_N_TASKS_MAX, userdata);
  custom_nodes_.push_back({node, op, userdata, units, row_slices, nullptr});
  return node;
}

// Copies or dequantises row by row.
ggml_tensor* GraphBuilder::GetRows(ggml_tensor* table, ggml_tensor* indices) {
  return Custom(GGML_TYPE_F32, table->ne[0], indices->ne[0], {table, indices}, GetRowsNode, nullptr,
                static_cast<uint32_t>(indices->ne[0]));
}

ggml_tensor* GraphBuilder::Embed(ggml_tensor* table) { return GetRows(table, tokens_); }

ggml_tensor* GraphBuilder::OutputRows(ggml_tensor* x) {
  return output_rows_ == nullptr ? x : GetRows(x, output_rows_);
}

namespace {

Input Gated(Input::Kind kind, const std::vector<ggml_tensor*>& gate_up) {
  const ggml_tensor *gate = gate_up[0], *up = gate_up[1];
  const bool together = gate->view_src != nullptr && gate->view_src == up->view_src;
  return {kind, gate_up[0], gate_up[1], nullptr, together ? gate->view_src : nullptr};
}

}  // namespace

// kernel::MultiplySwiGlu gives the bits of the product, the gate and their quantising one by one.
Input GraphBuilder::SwiGlu(const Stack& gate_up, const Input& input, const Stack& next) {
  const auto reads_int8 = [](const Stack& stack) {
    return stack.groups().size() == 1 &&
           stack.groups()[0].matrix.format() == kernel::InputFormat::kInt8;
  };
  const auto outputs = [&](size_t layer) { return gate_up.layers()[layer].weight->ne[1]; };
  const bool fused = reads_int8(gate_up) && reads_int8(next) &&
                     gate_up.groups()[0].layers.size() == 2 && outputs(0) == outputs(1) &&
                     kernel::TakesSwiGlu(gate_up.groups()[0].matrix);
  if (!fused) return Gated(Input::Kind::kSwiGlu, MatMul(gate_up, input));
  const kernel::PackedMatrix& matrix = gate_up.groups()[0].matrix;
  ggml_tensor* x = Prepared(input, matrix.format());
  const int64_t rows = x->ne[1];
  const size_t bytes =
      kernel::InputRowBytes(kernel::InputFormat::kInt8, static_cast<uint32_t>(outputs(0)));
  ggml_tensor* node = Custom(GGML_TYPE_I8, static_cast<int64_t>(bytes), rows, {x},
                             SwiGluProductNode, const_cast<kernel::PackedMatrix*>(&matrix),
                             matrix.panels() / 2, ProductPiece::RowSlices(rows));
  custom_nodes_.back().fetch = FetchSwiGluProduct;
  return {Input::Kind::kPrepared, node, nullptr, nullptr, nullptr};
}

Input GraphBuilder::GeGlu(const std::vector<ggml_tensor*>& gate_up) const {
  return Gated(Input::Kind::kGeGlu, gate_up);
}

// A row of RMS norm is summed by one thread in an order that depends on the columns only. SwiGLU
// and GeGLU: element by element; which elements of a row fall into the vector remainder depends on
// the columns only.
ggml_tensor* GraphBuilder::Floats(const Input& input) {
  switch (input.kind) {
    case Input::Kind::kPlain:
      return input.x;
    case Input::Kind::kRmsNorm:
      return HeadNorm(input.x, input.weight, input.epsilon);  // a row as one head
    case Input::Kind::kSwiGlu:
      return input.stacked != nullptr ? ggml_swiglu(context_, input.stacked)
                                      : ggml_swiglu_split(context_, input.x, input.weight);
    case Input::Kind::kGeGlu:
      return GeGluFloats(input);
    case Input::Kind::kPrepared:
      break;  // no floats to be had
  }
  return nullptr;
}

// kernel::Quantize and its fused forms work row by row.
ggml_tensor* GraphBuilder::Prepared(const Input& input, kernel::InputFormat format) {
  if (input.kind == Input::Kind::kPrepared) {
    KVLINK_CHECK(FormatOf(input.x) == format) << "prepared for another product";
    return input.x;
  }
  const int64_t rows = input.x->ne[1];
  const auto node = [&](std::vector<ggml_tensor*> sources, int64_t inputs, ggml_custom_op_t op,
                        void* userdata) {
    const auto n = static_cast<uint32_t>(inputs);
    const ggml_type type = format == kernel::InputFormat::kInt8   ? GGML_TYPE_I8
                           : format == kernel::InputFormat::kBF16 ? GGML_TYPE_BF16
                                                                  : GGML_TYPE_F32;
    const auto columns =
        static_cast<int64_t>(kernel::InputRowBytes(format, n) / ggml_type_size(type));
    return Custom(type, columns, rows, std::move(sources), op, userdata,
                  static_cast<uint32_t>(rows));
  };
  if (input.kind == Input::Kind::kRmsNorm) {
    return node({input.x, input.weight}, input.x->ne[0], RmsNormQuantizeNode,
                const_cast<float*>(input.epsilon));
  }
  if (input.kind == Input::Kind::kSwiGlu && input.stacked != nullptr) {
    return node({input.stacked}, input.stacked->ne[0] / 2, SwiGluQuantizeNode, nullptr);
  }
  ggml_tensor* x = Floats(input);
  if (format == kernel::InputFormat::kF32) return x;
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
ggml_tensor* GraphBuilder::PackedProduct(const kernel::PackedMatrix& matrix, const Input& input,
                                         ggml_tensor* residual) {
  std::vector<ggml_tensor*> sources = {Prepared(input, matrix.format())};
  const int64_t rows = sources[0]->ne[1];
  if (residual != nullptr) sources.push_back(residual);
  ggml_tensor* node = Custom(GGML_TYPE_F32, matrix.rows(), rows, std::move(sources),
                             PackedProductNode, const_cast<kernel::PackedMatrix*>(&matrix),
                             matrix.panels(), ProductPiece::RowSlices(rows));
  custom_nodes_.back().fetch = FetchProduct;
  return node;
}

std::vector<ggml_tensor*> GraphBuilder::MatMul(const Stack& stack, const Input& input) {
  std::vector<ggml_tensor*> results(stack.layers().size());
  for (const Stack::Group& group : stack.groups()) {
    ggml_tensor* stacked = PackedProduct(group.matrix, input, nullptr);
    size_t offset = 0;
    for (const size_t i : group.layers) {
      const int64_t outputs = stack.layers()[i].weight->ne[1];
      results[i] = ggml_view_2d(context_, stacked, outputs, stacked->ne[1], stacked->nb[1], offset);
      offset += static_cast<size_t>(outputs) * sizeof(float);
    }
  }
  ggml_tensor* floats = nullptr;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] != nullptr) continue;
    if (floats == nullptr) floats = Floats(input);
    results[i] = Product(stack.layers()[i], floats);
  }
  return results;
}

ggml_tensor* GraphBuilder::MatMulAdd(const Stack& stack, const Input& input,
                                     ggml_tensor* residual) {
  if (stack.packed()) return PackedProduct(stack.groups().front().matrix, input, residual);
  ggml_tensor* product = Product(stack.layers().front(), Floats(input));
  return residual == nullptr ? product : ggml_add(context_, product, residual);
}

// kernel::PagedAttention's first invariant. Two nodes, because the threads meet between nodes only.
ggml_tensor* GraphBuilder::WriteKv(uint32_t layer, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v) {
  return Custom(GGML_TYPE_F32, q->ne[0], q->ne[1], {q, k, v}, WriteKvNode, &layers_[layer], 0);
}

ggml_tensor* GraphBuilder::Attend(uint32_t layer, ggml_tensor* q) {
  return Custom(GGML_TYPE_F32, q->ne[0], q->ne[1], {q}, AttendNode, &layers_[layer], 0);
}

}  // namespace kvlink::model
