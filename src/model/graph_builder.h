// GraphBuilder: the operations that networks are written in, as nodes of a ggml graph.
//
// Invariant: what an operation computes for one row depends on that row only, to the last bit: not
// on the number of rows, nor on the number of threads. Exact reuse rests on this; each function's
// comment in the .cc says why it holds. Shapes are written [rows, columns]; ggml's own order is the
// reverse.
#pragma once

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

// What a product reads, [rows, n]: computed as floats or as int8, whichever the product's weights
// want, when the first product asks for it.
struct Input {
  enum class Kind { kPlain, kRmsNorm, kSwiGlu } kind = Kind::kPlain;
  ggml_tensor* x = nullptr;        // kSwiGlu: the gate
  ggml_tensor* weight = nullptr;   // kRmsNorm: [n]; kSwiGlu: up
  const float* epsilon = nullptr;  // kRmsNorm; must outlive the graph
  ggml_tensor* stacked = nullptr;  // kSwiGlu: {gate, up} [rows, 2 n] when they lie together
};

class GraphBuilder {
 public:
  // `layers` must outlive the graph and stay in place.
  GraphBuilder(ggml_context* context, std::span<AttentionLayer> layers, uint32_t num_rows,
               uint32_t num_outputs);

  uint32_t num_rows() const { return num_rows_; }
  uint32_t num_outputs() const { return num_outputs_; }
  // Inputs to fill before each computation: token ids [rows]; row indices [outputs], null when all
  // rows are outputs.
  ggml_tensor* tokens() const { return tokens_; }
  ggml_tensor* output_rows() const { return output_rows_; }

  // table [vocabulary, n] -> [rows, n]
  ggml_tensor* Embed(ggml_tensor* table);
  // x / sqrt(mean(x^2) + epsilon) * weight
  Input RmsNorm(ggml_tensor* x, ggml_tensor* weight, const float* epsilon) const {
    return {Input::Kind::kRmsNorm, x, weight, epsilon, nullptr};
  }
  // silu(gate) * up, of the two results of one stack
  Input SwiGlu(const std::vector<ggml_tensor*>& gate_up) const;
  // [rows, n] -> [outputs, n]
  ggml_tensor* OutputRows(ggml_tensor* x);

  // Products of a stack with one input -> [rows, outputs] for each of its layers. Every matrix
  // product of every network goes through these two.
  std::vector<ggml_tensor*> MatMul(const Stack& stack, const Input& input);
  // A stack of one; residual may be null.
  ggml_tensor* MatMulAdd(const Stack& stack, const Input& input, ggml_tensor* residual);
  static Input Plain(ggml_tensor* x) { return {Input::Kind::kPlain, x, nullptr, nullptr, nullptr}; }

  // Rotates q and k, writes k and v into the pages. Returns the rotated q [rows, heads * head_dim].
  ggml_tensor* WriteKv(uint32_t layer, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v);
  // rotated q -> attention over each row's context [rows, heads * head_dim]
  ggml_tensor* Attend(uint32_t layer, ggml_tensor* q);

 private:
  ggml_tensor* Floats(const Input& input);
  ggml_tensor* Quantized(const Input& input);
  ggml_tensor* Product(const Linear& linear, ggml_tensor* input);
  ggml_tensor* PackedProduct(const Stack& stack, const Input& input, ggml_tensor* residual);

  ggml_context* context_;
  std::span<AttentionLayer> layers_;
  uint32_t num_rows_, num_outputs_;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* output_rows_ = nullptr;
};

}  // namespace kvlink::model
