// PackedMatmul: y = W x (+ bias) (+ residual), with weights packed once at load.
//
// Quantised weights are multiplied as int8: the activations are quantised per 32 inputs to int8
// (scale = max |x| / 127, round to nearest even), as ggml's Q8_1, and every type is a form of
// w = d * u + m per block with unsigned u (packed_layout.h says how they lie in memory), so
//     y[r] = sum_b  d[r,b] * dx[b] * (sum_i u[r,b,i] * q[b,i])  +  m[r,b] * dx[b] * (sum_i q[b,i]).
// Float weights are multiplied as floats (BF16 by pairs where the processor can).
//
// Invariants
//   1. A row's result depends on that row only: blocks are added in order, one accumulator a row
//      and output, whatever the number of rows, the tile height or the thread that computes it.
//   2. Integer types give the same bits on every instruction set. (Floats do too, but for BF16,
//      whose inputs are rounded to BF16 where that is multiplied natively.)
//   3. Nothing is allocated outside Pack.
// Threads: a PackedMatrix is immutable after Pack and Multiply may run on any number of threads
// over disjoint panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernel/isa.h"
#include "kernel/weight_memory.h"
#include "kvlink/status.h"

namespace kvlink::kernel {

// ggml's block formats of the same names.
enum class WeightType : uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF16,
  kBF16,
  kF32,
};

// What a product reads. kInt8: QuantBlocks. kBF16: 16-bit floats, padded to whole pairs.
enum class InputFormat : uint8_t { kInt8, kBF16, kF32 };

inline constexpr uint32_t kPanelRows = 32;  // output rows that lie together
inline constexpr uint32_t kQuantBlock = 32;

// 32 quantised activations.
struct QuantBlock {
  int8_t q[kQuantBlock];
  float scale;            // x = scale * q
  float scaled_sum;       // scale * sum of q
  int32_t minus_sum;      // -(sum of q)
  int32_t minus_sum_end;  // -(sum of the last 16)
};

class PackedMatrix {
 public:
  // `rows` rows of weights in ggml's layout of `type`; bias [rows] or null.
  struct Source {
    WeightType type = WeightType::kF32;
    const std::byte* data = nullptr;
    uint32_t rows = 0;
    const float* bias = nullptr;
  };
  // Neighbouring sources of one type, in panels of kPanelRows.
  struct Part {
    WeightType type = WeightType::kF32;
    uint32_t first_row = 0, rows = 0, first_panel = 0, panels = 0;
    size_t panel_bytes = 0;
    const std::byte* data = nullptr;
  };

  PackedMatrix() = default;
  // Sources are stacked (fused QKV, gate and up); `threads` pack in parallel. kInvalidArgument:
  // inputs not whole blocks of a type, no rows, types that read different formats.
  // kResourceExhausted: no memory. `memory`: where to lie; null: in memory of its own.
  static Result<PackedMatrix> Pack(uint32_t inputs, std::span<const Source> sources, int threads,
                                   WeightMemory* memory = nullptr);

  uint32_t rows() const { return rows_; }
  uint32_t inputs() const { return inputs_; }
  uint32_t panels() const { return panels_; }
  InputFormat format() const { return format_; }
  size_t bytes() const { return bytes_; }
  std::span<const Part> parts() const { return parts_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }  // [rows]

 private:
  Status Plan(uint32_t inputs, std::span<const Source> sources);
  Status Allocate(WeightMemory& memory);

  uint32_t rows_ = 0, inputs_ = 0, panels_ = 0;
  InputFormat format_ = InputFormat::kF32;
  size_t bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<float> bias_;
  std::shared_ptr<std::byte[]> data_;
};

// What products with weights of `type` read in this process.
InputFormat FormatOf(WeightType type);
// Weights come in blocks of so many inputs, and so many bytes.
uint32_t InputsOfBlock(WeightType type);
size_t BytesOfBlock(WeightType type);

// Bytes of one activation row.
constexpr size_t InputRowBytes(InputFormat format, uint32_t inputs) {
  return format == InputFormat::kInt8   ? inputs / kQuantBlock * sizeof(QuantBlock)
         : format == InputFormat::kBF16 ? (inputs + 1) / 2 * size_t{4}
                                        : inputs * sizeof(float);
}

// Activation rows [begin, end): x [rows, inputs] with a stride in floats -> out [rows] of
// InputRowBytes. The first three differ in what they compute first: nothing; RMS norm (x /
// sqrt(mean x^2 + eps) * weight); SwiGLU (silu(gate) * up, a row of x being {gate [inputs], up
// [inputs]}).
void Quantize(InputFormat format, const float* x, size_t x_stride, uint32_t inputs, std::byte* out,
              uint32_t begin, uint32_t end);
void RmsNormQuantize(InputFormat format, const float* x, size_t x_stride, uint32_t inputs,
                     const float* weight, float eps, std::byte* out, uint32_t begin, uint32_t end);
void SwiGluQuantize(InputFormat format, const float* x, size_t x_stride, uint32_t inputs,
                    std::byte* out, uint32_t begin, uint32_t end);

// Activations of a product: `num` rows in the format of its weights.
struct InputRows {
  const std::byte* data = nullptr;
  size_t stride = 0;  // bytes
  uint32_t num = 0;
};

// y [num, w.rows()] (stride in floats) = W x + bias + residual, over panels [panel_begin,
// panel_end). residual may be null or equal y.
void Multiply(const PackedMatrix& w, InputRows x, float* y, size_t y_stride, const float* residual,
              size_t residual_stride, uint32_t panel_begin, uint32_t panel_end);

// Asks for the first `bytes` of the weights from a panel on, for a product that is about to begin.
void FetchPanels(const PackedMatrix& w, uint32_t panel, size_t bytes);

// Whether MultiplySwiGlu takes w's rows as {gate [n], up [n]}.
bool TakesSwiGlu(const PackedMatrix& w);

// SwiGLU of a product, quantised for the next one: out [num] rows of InputRowBytes(kInt8, n) =
// silu(gate) * up, to the bits of Multiply and SwiGluQuantize, without a pass over memory between
// them. Blocks [block_begin, block_end) of kQuantBlock of the n outputs. Requires: TakesSwiGlu(w).
void MultiplySwiGlu(const PackedMatrix& w, InputRows x, std::byte* out, uint32_t block_begin,
                    uint32_t block_end);

// The instruction set that Multiply takes in this process: CurrentIsa().
Isa MultiplyIsa();

}  // namespace kvlink::kernel
