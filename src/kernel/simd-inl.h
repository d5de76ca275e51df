// Vector helpers shared by the kernels, compiled once per instruction set (include it inside
// Highway's foreach_target pattern).
//
// The conversion of 16-bit KV elements lives here and nowhere else.
#if defined(KVLINK_KERNEL_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_SIMD_INL_H_
#undef KVLINK_KERNEL_SIMD_INL_H_
#else
#define KVLINK_KERNEL_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
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

template <size_t kBytes>
HWY_INLINE void PrefetchBytes(const std::byte* p) {
  HWY_UNROLL(4)
  for (size_t i = 0; i < kBytes; i += 64) hwy::Prefetch(p + i);
}

// NaN becomes 0, so that a page never holds what would spoil a neighbour's row through a weight of
// 0; others saturate.
template <class D>
HWY_INLINE hn::Vec<D> Finite(D d, hn::Vec<D> v, float limit) {
  const auto number = hn::IfThenZeroElse(hn::IsNaN(v), v);
  return hn::Clamp(number, hn::Set(d, -limit), hn::Set(d, limit));
}

struct F16Elements {
  static constexpr size_t kKeyStep = 2;  // bytes from one token's group of K to the next

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* p) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
  }
  // Dimension `dim` of the tokens from t on.
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadKeys(D d, const std::byte* k, size_t stride, size_t dim,
                                        size_t t) {
    return Load(d, reinterpret_cast<const uint16_t*>(k) + dim * stride + t);
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint16_t* p) {
    const hn::Rebind<hwy::float16_t, D> dh;
    hn::StoreU(hn::DemoteTo(dh, Finite(d, v, 65504.0f)), dh, reinterpret_cast<hwy::float16_t*>(p));
  }
};

struct Bf16Elements {
  static constexpr size_t kKeyStep = 4;
  static constexpr float kLargest = 3.3895314e38f;
  // Smaller ones become 0, so that a weight times a value is never subnormal (a weight is at least
  // 2^-100): multiply-adds that flush subnormals and those that do not then agree on zeros.
  static constexpr float kSmallest = 1.4901161e-8f;  // 2^-26

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* p) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadKeys(D d, const std::byte* k, size_t stride, size_t dim,
                                        size_t t) {
    const hn::RebindToUnsigned<D> du;
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(k) + dim / 2 * stride + t);
    return hn::BitCast(
        d, dim % 2 == 0 ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(du, 0xffff0000u)));
  }
  // Round to nearest, ties to even.
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint16_t* p) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto finite = Finite(d, v, kLargest);
    const auto kept = hn::IfThenElseZero(hn::Ge(hn::Abs(finite), hn::Set(d, kSmallest)), finite);
    const auto bits = hn::BitCast(du, kept);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(rounded))), d16, p);
  }
};

inline constexpr float kSmallestExponent = -100.0f;

// 2^x for x <= 0, relative error below 2e-7; exactly 1 at 0, exactly 0 below -100 (so that a weight
// times an F16 value is never subnormal) and for NaN.
// Cody-Waite: x = n + f with f in [-1/2, 1/2]; the polynomial is the minimax (Remez) one of degree
// 5 with the value 1 at 0, of relative error 9e-8.
template <class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto in_range = hn::Ge(x, hn::Set(d, kSmallestExponent));
#if HWY_TARGET <= HWY_AVX3
  constexpr bool kScaleInstruction = hn::MaxLanes(D()) == 16;  // masks what is out of range
#else
  constexpr bool kScaleInstruction = false;
#endif
  const auto clamped = kScaleInstruction ? x : hn::Max(x, hn::Set(d, kSmallestExponent));
  const auto n = hn::Round(clamped);
  const auto f = hn::Sub(clamped, n);
  auto p = hn::Set(d, 0.00132647273f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.00967151299f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555073359f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240222424f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147004f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kScaleInstruction) {
    return hn::Vec<D>{_mm512_maskz_scalef_ps(in_range.raw, p.raw, n.raw)};
  }
#endif
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
