// Vector helpers shared by the kernels, compiled once per instruction set (include it inside
// Highway's foreach_target pattern).
//
// The conversion of KV elements lives here and nowhere else.
#if defined(KVLINK_KERNEL_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_SIMD_INL_H_
#undef KVLINK_KERNEL_SIMD_INL_H_
#else
#define KVLINK_KERNEL_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The widest float vector, up to 16 lanes.
using F32Tag = hn::CappedTag<float, 16>;
inline constexpr size_t kLanes = hn::MaxLanes(F32Tag());

template <class D>
using F32Vec = hn::Vec<D>;

// KV elements (F16) <-> float.
template <class D>
HWY_INLINE hn::Vec<D> LoadKv(D d, const uint16_t* p) {
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
}

// Saturates to the finite range; NaN becomes 0, so that a page never holds what would spoil a
// neighbour's row through a weight of 0.
template <class D>
HWY_INLINE void StoreKv(D d, hn::Vec<D> v, uint16_t* p) {
  const hn::Rebind<hwy::float16_t, D> dh;
  const auto finite = hn::IfThenZeroElse(hn::IsNaN(v), v);
  const auto clamped = hn::Clamp(finite, hn::Set(d, -65504.0f), hn::Set(d, 65504.0f));
  hn::StoreU(hn::DemoteTo(dh, clamped), dh, reinterpret_cast<hwy::float16_t*>(p));
}

inline constexpr float kSmallestExponent = -100.0f;

// 2^x for x <= 0, relative error below 1e-7; exactly 1 at 0, exactly 0 below -100 (so that a weight
// times an F16 value is never subnormal) and for NaN.
// Cody-Waite: x = n + f with f in [-1/2, 1/2]; the polynomial is the Chebyshev interpolant of
// (2^f - 1) / f, of relative error 5e-9.
template <class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto in_range = hn::Ge(x, hn::Set(d, kSmallestExponent));
  const auto clamped = hn::Max(x, hn::Set(d, kSmallestExponent));
  const auto n = hn::Round(clamped);
  const auto f = hn::Sub(clamped, n);
  auto p = hn::Set(d, 0.000154531629f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.00133908634f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.00961808256f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555035711f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240226508f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147188f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::NearestInt(n));
  const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(in_range, scaled);
}

HWY_INLINE float Exp2(float x) {
  const hn::CappedTag<float, 4> d;
  return hn::GetLane(Exp2(d, hn::Set(d, x)));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
