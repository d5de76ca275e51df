// GraphBuilder: the operations that networks are written in, as nodes of a ggml graph.
//
// Invariant: what an operation computes for one row depends on that row only, to the last bit: not
// on the number of rows, nor on the number of threads. Exact reuse rests on this; each function's
// comment in the .cc says why it holds. Shapes are written [rows, columns]; ggml's own order is the
// reverse.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ggml.h"
#include "kernel/paged_attention.h"
#include "model/linear.h"

namespace kvlink::model {

// What the attention nodes of one layer work with. Graphs keep pointers to it.
struct AttentionLayer {
  kernel::PagedAttention* attention = nullptr;
  uint32_t layer = 0;
};

// What a product reads, [rows, n]: computed in the format that the product's weights want, when a
// product asks for it.
struct Input {
  // kPrepared: x is in that format already.
  enum class Kind { kPlain, kRmsNorm, kSwiGlu, kGeGlu, kPrepared } kind = Kind::kPlain;
  ggml_tensor* x = nullptr;        // kSwiGlu, kGeGlu: the gate
  ggml_tensor* weight = nullptr;   // kRmsNorm: [n]; kSwiGlu, kGeGlu: up
  const float* epsilon = nullptr;  // kRmsNorm; must outlive the graph
  ggml_tensor* stacked = nullptr;  // kSwiGlu, kGeGlu: {gate, up} [rows, 2 n] when they lie together
};

// A mixture of feed-forward parts, of which each row takes `num_used`.
struct Experts {
  uint32_t num_experts() const { return static_cast<uint32_t>(gate_up.size()); }
  // Whether each expert's gate and up are one packed matrix, and its down another. The types of all
  // experts of a layer are the same.
  bool packed() const {
    return num_experts() > 0 && gate_up[0].groups().size() == 1 &&
           gate_up[0].groups()[0].layers.size() == 2 && down[0].packed();
  }

  uint32_t num_used = 0;
  Stack router;                      // [experts, n]
  std::vector<Stack> gate_up, down;  // of each expert
  // The same weights as they lie in the file: [experts, width, n] twice, [experts, n, width].
  ggml_tensor *gate_weights = nullptr, *up_weights = nullptr, *down_weights = nullptr;
};

// An operation of ours: op(tensor, piece, num_pieces, userdata) does one piece of it.
struct CustomNode {
  ggml_tensor* tensor = nullptr;
  ggml_custom_op_t op = nullptr;
  void* userdata = nullptr;
  // Rows or panels that can be cut into pieces for whoever is free; 0: one piece for each thread,
  // by its number.
  uint32_t units = 0;
  // Slices of rows that are cut, too: pieces 0 to n - 1 are of the first one.
  uint32_t row_slices = 1;
  // Asks for memory that a piece will read; may be null.
  void (*fetch)(const ggml_tensor* tensor, int piece, int num_pieces, void* userdata) = nullptr;
};

// What one of a product's pieces computes.
struct ProductPiece {
  // Slices of so many rows, so that a piece is worth reading its panels for.
  static constexpr uint32_t kSliceRows = 128;
  static uint32_t RowSlices(int64_t rows) {
    return std::max<uint32_t>(1, static_cast<uint32_t>(rows) / kSliceRows);
  }
  ProductPiece(int64_t rows, uint32_t panels, int piece, int num_pieces);

  uint32_t row_begin, row_end, panel_begin, panel_end;
};

// What a graph depends on, beside the network.
struct GraphShape {
  uint32_t num_rows = 0, num_outputs = 0;
  // Layers [first_layer, end_layer) of the network, as in LayerBatch.
  uint32_t first_layer = 0, end_layer = 0;
  bool writes_next = false;
  std::vector<uint32_t> kept_layers;  // whose input stays readable after the computation
  bool operator==(const GraphShape&) const = default;
};

class GraphBuilder {
 public:
  // `layers` must outlive the graph and stay in place.
  GraphBuilder(ggml_context* context, std::span<AttentionLayer> layers, const GraphShape& shape);

  const std::vector<CustomNode>& custom_nodes() const { return custom_nodes_; }

  const GraphShape& shape() const { return shape_; }
  uint32_t num_rows() const { return shape_.num_rows; }
  uint32_t num_outputs() const { return shape_.num_outputs; }
  // Inputs to fill before each computation: token ids [rows]; row indices [outputs], null when all
  // rows are outputs.
  ggml_tensor* tokens() const { return tokens_; }
  ggml_tensor* output_rows() const { return output_rows_; }
  // [rows, n], likewise; null when the graph begins with the tokens.
  ggml_tensor* residual() const { return residual_; }
  ggml_tensor* ReadResidual(int64_t n);
  // What `layer` reads, [rows, n]: kept, when the shape says so.
  void PassResidual(uint32_t layer, ggml_tensor* x);
  const std::vector<ggml_tensor*>& kept() const { return kept_; }  // by shape().kept_layers
  // Nodes to compute beside the result.
  void AlsoCompute(ggml_tensor* node) { also_.push_back(node); }
  const std::vector<ggml_tensor*>& also() const { return also_; }

  // table [vocabulary, n] -> [rows, n]
  ggml_tensor* Embed(ggml_tensor* table);
  // x / sqrt(mean(x^2) + epsilon) * weight
  Input RmsNorm(ggml_tensor* x, ggml_tensor* weight, const float* epsilon) const {
    return {Input::Kind::kRmsNorm, x, weight, epsilon, nullptr};
  }
  // silu(gate) * up, of the two products of one stack with `input`, for `next` to read
  Input SwiGlu(const Stack& gate_up, const Input& input, const Stack& next);
  // gelu(gate) * up, gelu by its tanh approximation
  Input GeGlu(const std::vector<ggml_tensor*>& gate_up) const;
  // [rows, n] -> [outputs, n]
  ggml_tensor* OutputRows(ggml_tensor* x);

  // Products of a stack with one input -> [rows, outputs] for each of its layers. Every matrix
  // product of every network goes through these two.
  std::vector<ggml_tensor*> MatMul(const Stack& stack, const Input& input);
  // A stack of one; residual may be null.
  ggml_tensor* MatMulAdd(const Stack& stack, const Input& input, ggml_tensor* residual);
  static Input Plain(ggml_tensor* x) { return {Input::Kind::kPlain, x, nullptr, nullptr, nullptr}; }

  // Operations that only some families need (graph_blocks.cc). Numbers must outlive the graph.
  ggml_tensor* Scale(ggml_tensor* x, const float* factor);  // x itself for 1
  ggml_tensor* SoftCap(ggml_tensor* x, const float* cap);   // cap * tanh(x / cap); x itself for 0
  // x + factor * y
  ggml_tensor* AddScaled(ggml_tensor* x, ggml_tensor* y, const float* factor);
  // x + rms_norm(y) * weight
  ggml_tensor* AddNormed(ggml_tensor* x, ggml_tensor* y, ggml_tensor* weight, const float* epsilon);
  // RMS norm of each head: x [rows, heads * n], weight [n]
  ggml_tensor* HeadNorm(ggml_tensor* x, ggml_tensor* weight, const float* epsilon);
  // sum over the row's experts e: w_e * down_e (silu(gate_e x) * up_e x), [rows, n]. The experts
  // are those with the largest softmax of the router's products, and w are these, divided by their
  // sum.
  ggml_tensor* MixExperts(const Experts& experts, const Input& input);
  // The input as floats [rows, n].
  ggml_tensor* Floats(const Input& input);

  // Rotates q and k, writes k and v into the pages. Returns the rotated q [rows, heads * head_dim].
  ggml_tensor* WriteKv(uint32_t layer, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v);
  // rotated q -> attention over each row's context [rows, heads * head_dim]
  ggml_tensor* Attend(uint32_t layer, ggml_tensor* q);

 private:
  // [columns, rows] of `type`; what `op` computes of `sources`.
  ggml_tensor* Custom(ggml_type type, int64_t columns, int64_t rows,
                      std::vector<ggml_tensor*> sources, ggml_custom_op_t op, void* userdata,
                      uint32_t units, uint32_t row_slices = 1);
  ggml_tensor* GetRows(ggml_tensor* table, ggml_tensor* indices);
  // A node of the shape of `like` that works row by row.
  ggml_tensor* RowNode(ggml_tensor* like, std::vector<ggml_tensor*> sources, ggml_custom_op_t op,
                       const float* number);
  ggml_tensor* GeGluFloats(const Input& input);
  ggml_tensor* Prepared(const Input& input, kernel::InputFormat format);
  ggml_tensor* Product(const Linear& linear, ggml_tensor* input);
  ggml_tensor* PackedProduct(const kernel::PackedMatrix& matrix, const Input& input,
                             ggml_tensor* residual);

  ggml_context* context_;
  std::span<AttentionLayer> layers_;
  const GraphShape shape_;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* output_rows_ = nullptr;
  ggml_tensor* residual_ = nullptr;
  std::vector<ggml_tensor*> also_, kept_;
  std::vector<CustomNode> custom_nodes_;
};

}  // namespace kvlink::model
