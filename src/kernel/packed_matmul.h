// PackedMatmul: y = W x (+ residual) with quantised weights, packed once at load, and activations
// quantised per row.
//
// Weights lie in panels of 16 output rows: for every block of 32 inputs the 16 rows' 4-byte groups
// are interleaved, so that one vector of 16 lanes holds four inputs of 16 rows and an int8 dot
// product needs no shuffle. Activations are quantised per 32 inputs to int8 (scale = max |x| / 127,
// round to nearest even), as ggml's Q8_1.
//     y[r] = sum_b  d[r,b] * dx[b] * (sum_i u[r,b,i] * q[b,i])  +  m[r,b] * dx[b] * (sum_i q[b,i])
// with w = d * u + m for every supported type (Q4_0: m = -8 d, Q4_1 as stored, Q8_0: u = q + 128, m
// = -128 d).
//
// Invariants
//   1. A row's result depends on that row only: blocks are added in order, one accumulator a row
//   and output, whatever the
//      number of rows, the tile height or the thread that computes it.
//   2. Nothing is allocated outside Pack.
// Threads: a PackedMatrix is immutable after Pack and Multiply may run on any number of threads
// over disjoint panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernel/isa.h"
#include "kvlink/status.h"

namespace kvlink::kernel {

enum class WeightType : uint8_t { kQ4_0, kQ4_1, kQ8_0 };

inline constexpr uint32_t kPanelRows = 16;
inline constexpr uint32_t kQuantBlock = 32;

class PackedMatrix {
 public:
  PackedMatrix() = default;

  // One source: `rows` rows of `inputs` weights in ggml's layout of `type`.
  struct Source {
    const std::byte* data = nullptr;
    uint32_t rows = 0;
  };
  // Sources are stacked (fused QKV, gate and up). kInvalidArgument: inputs not a multiple of 32, no
  // rows. `threads` pack in parallel.
  static Result<PackedMatrix> Pack(WeightType type, uint32_t inputs,
                                   std::span<const Source> sources, int threads);

  uint32_t rows() const { return rows_; }
  uint32_t inputs() const { return inputs_; }
  uint32_t panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  size_t bytes() const { return panel_bytes_ * panels(); }
  bool wide() const { return wide_; }  // 8-bit weights
  const std::byte* panel(uint32_t p) const { return data_.get() + p * panel_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  uint32_t rows_ = 0, inputs_ = 0;
  bool wide_ = false;
  size_t panel_bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

// Bytes of one quantised activation row: int8 [inputs], float scale [inputs / 32], float scale *
// sum [inputs / 32].
constexpr size_t QuantizedRowBytes(uint32_t inputs) {
  return (inputs + inputs / kQuantBlock * 2 * sizeof(float) + 63) / 64 * 64;
}

// Activation rows [begin, end): x [rows, inputs] with a stride in floats -> out [rows] of
// QuantizedRowBytes. The three differ in what they compute first: nothing; RMS norm (x / sqrt(mean
// x^2 + eps) * weight); SwiGLU (silu(gate) * up, a row of x being {gate [inputs], up [inputs]}).
void Quantize(const float* x, size_t x_stride, uint32_t inputs, std::byte* out, uint32_t begin,
              uint32_t end);
void RmsNormQuantize(const float* x, size_t x_stride, uint32_t inputs, const float* weight,
                     float eps, std::byte* out, uint32_t begin, uint32_t end);
void SwiGluQuantize(const float* x, size_t x_stride, uint32_t inputs, std::byte* out,
                    uint32_t begin, uint32_t end);

// y [rows, w.rows()] (stride in floats) = W x + residual for x = `num` quantised rows, over panels
// [panel_begin, panel_end). residual may be null or equal y.
void Multiply(const PackedMatrix& w, const std::byte* x, uint32_t num, float* y, size_t y_stride,
              const float* residual, size_t residual_stride, uint32_t panel_begin,
              uint32_t panel_end);

// The instruction set that Multiply takes in this process: CurrentIsa().
Isa MultiplyIsa();

}  // namespace kvlink::kernel
