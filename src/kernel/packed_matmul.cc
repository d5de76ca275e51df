#include "kernel/packed_matmul.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "kernel/f16.h"
#include "kernel/packed_layout.h"

// Highway compiles the part below once per instruction set and picks one at run time. AVX3_DL has
// the int8 dot product.
#define HWY_WANT_AVX3_DL 1
#include "kernel/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/packed_matmul.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "kernel/packed_matmul-inl.h"
#include "kernel/packed_quantize-inl.h"

#if HWY_ONCE
namespace kvlink::kernel {

HWY_EXPORT(QuantizeRows);
HWY_EXPORT(RmsNormQuantizeRows);
HWY_EXPORT(SwiGluQuantizeRows);
HWY_EXPORT(MultiplyPanels);
HWY_EXPORT(SwiGluPanels);
HWY_EXPORT(TargetIsa);
HWY_EXPORT(MultipliesBF16);

Isa MultiplyIsa() { return HWY_DYNAMIC_DISPATCH(TargetIsa)(); }

InputFormat FormatOf(WeightType type) {
  if (!IsFloat(type)) return InputFormat::kInt8;
  const bool native = type == WeightType::kBF16 && HWY_DYNAMIC_DISPATCH(MultipliesBF16)();
  return native ? InputFormat::kBF16 : InputFormat::kF32;
}

void Quantize(InputFormat format, const float* x, size_t x_stride, uint32_t inputs, std::byte* out,
              uint32_t begin, uint32_t end) {
  HWY_DYNAMIC_DISPATCH(QuantizeRows)(format, x, x_stride, inputs, out, begin, end);
}

void RmsNormQuantize(InputFormat format, const float* x, size_t x_stride, uint32_t inputs,
                     const float* weight, float eps, std::byte* out, uint32_t begin, uint32_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormQuantizeRows)
  (format, x, x_stride, inputs, weight, eps, out, begin, end);
}

void SwiGluQuantize(InputFormat format, const float* x, size_t x_stride, uint32_t inputs,
                    std::byte* out, uint32_t begin, uint32_t end) {
  HWY_DYNAMIC_DISPATCH(SwiGluQuantizeRows)(format, x, x_stride, inputs, out, begin, end);
}

void Multiply(const PackedMatrix& w, InputRows x, float* y, size_t y_stride, const float* residual,
              size_t residual_stride, uint32_t panel_begin, uint32_t panel_end) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanels)
  (w, x, y, y_stride, residual, residual_stride, panel_begin, panel_end);
}

void FetchPanels(const PackedMatrix& w, uint32_t panel, size_t bytes) {
  for (const PackedMatrix::Part& part : w.parts()) {
    if (panel - part.first_panel >= part.panels) continue;
    const std::byte* data = part.data + (panel - part.first_panel) * part.panel_bytes;
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i);
  }
}

// Panels of both halves must begin at the same outputs; parts begin at panels of their own.
bool TakesSwiGlu(const PackedMatrix& w) {
  static_assert(kPanelRows == kQuantBlock);
  return w.format() == InputFormat::kInt8 && w.rows() % (2 * kPanelRows) == 0 &&
         w.panels() * kPanelRows == w.rows();
}

void MultiplySwiGlu(const PackedMatrix& w, InputRows x, std::byte* out, uint32_t block_begin,
                    uint32_t block_end) {
  HWY_DYNAMIC_DISPATCH(SwiGluPanels)
  (w, x, out, InputRowBytes(InputFormat::kInt8, w.rows() / 2), block_begin, block_end);
}

}  // namespace kvlink::kernel
#endif  // HWY_ONCE
