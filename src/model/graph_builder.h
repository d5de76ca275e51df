// GraphBuilder: the operations that networks are written in, as nodes of a ggml graph.
//
// Invariant: what an operation computes for one row depends on that row only, to the last bit: not
// on the number of rows, nor on the number of threads. Exact reuse rests on this; each function's
// comment in the .cc says why it holds. Shapes are written [rows, columns]; ggml's own order is the
// reverse.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ggml.h"
#include "kernel/paged_attention.h"

namespace kvlink::model {

// y = W x + b. weight [outputs, inputs]; bias [outputs] or null.
struct Linear {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;
};

// What the attention nodes of one layer work with. Graphs keep pointers to it.
struct AttentionLayer {
  kernel::PagedAttention* attention = nullptr;
  uint32_t layer = 0;
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
  ggml_tensor* RmsNorm(ggml_tensor* x, ggml_tensor* weight, float epsilon);
  // silu(gate) * up
  ggml_tensor* SwiGlu(ggml_tensor* gate, ggml_tensor* up);
  // [rows, n] -> [outputs, n]
  ggml_tensor* OutputRows(ggml_tensor* x);

  // Products of several layers with one input [rows, inputs] -> [rows, outputs] each. Every matrix
  // product of every network goes through these two, so that a faster one has one place to go.
  template <size_t n>
  std::array<ggml_tensor*, n> MatMul(const std::array<const Linear*, n>& linears,
                                     ggml_tensor* input) {
    std::array<ggml_tensor*, n> results;
    for (size_t i = 0; i < n; ++i) results[i] = MatMulAdd(*linears[i], input, nullptr);
    return results;
  }
  // residual may be null.
  ggml_tensor* MatMulAdd(const Linear& linear, ggml_tensor* input, ggml_tensor* residual);

  // Rotates q and k, writes k and v into the pages. Returns the rotated q [rows, heads * head_dim].
  ggml_tensor* WriteKv(uint32_t layer, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v);
  // rotated q -> attention over each row's context [rows, heads * head_dim]
  ggml_tensor* Attend(uint32_t layer, ggml_tensor* q);

 private:
  ggml_context* context_;
  std::span<AttentionLayer> layers_;
  uint32_t num_rows_, num_outputs_;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* output_rows_ = nullptr;
};

}  // namespace kvlink::model
