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

}  // namespace kvlink::kernel
#endif  // HWY_ONCE
