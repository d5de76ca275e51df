// Vectors of the int8 product: how bytes are multiplied and weights unpacked, compiled once per
// instruction set (Highway's foreach_target pattern).
//
//   VNNI, NEON with dot products   four bytes into an int32 lane at a time
//   AVX2, AVX-512 without VNNI     bytes to int16 pairs, as many as cannot overflow, then to int32
//   NEON without them              int16 products, added by pairs
//   anything else                  nothing here: plain C++
#if defined(KVLINK_KERNEL_PACKED_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_PACKED_DOT_INL_H_
#undef KVLINK_KERNEL_PACKED_DOT_INL_H_
#else
#define KVLINK_KERNEL_PACKED_DOT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL
// Highway checks VNNI before it picks this target, but does not switch the instructions on; BF16 is
// for the one function that asks the processor first. All files of the product must agree on these
// options, or its functions could not be inlined into one another.
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512bf16")
#endif
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON

using IntF = hn::CappedTag<float, 16>;
using IntI = hn::RebindToSigned<IntF>;
using IntU8 = hn::Repartition<uint8_t, IntF>;
using IntI16 = hn::Repartition<int16_t, IntF>;
using VF = hn::Vec<IntF>;
using VI = hn::Vec<IntI>;
using VU8 = hn::Vec<IntU8>;
using VI16 = hn::Vec<IntI16>;
constexpr uint32_t kColumnLanes = hn::MaxLanes(IntF());
constexpr uint32_t kPanelColumns = kPanelRows / kColumnLanes;

// Rows of the highest tile; columns of a tile. Where registers are few, the accumulators stay in
// memory: that costs a load and a store a block, but the tile can be higher, and loads of
// activations and weights are what limits it.
#if HWY_TARGET <= HWY_AVX3
constexpr bool kSumsInMemory = false;
constexpr uint32_t IntTileRows(uint32_t) { return 5; }
constexpr uint32_t IntTileColumns(uint32_t) { return 2; }
#elif HWY_TARGET == HWY_AVX2
constexpr bool kSumsInMemory = true;
constexpr uint32_t IntTileRows(uint32_t) { return 6; }
constexpr uint32_t IntTileColumns(uint32_t rows) { return rows == 1 ? 4 : 2; }
#else
constexpr bool kSumsInMemory = false;
constexpr uint32_t IntTileRows(uint32_t) { return 4; }
constexpr uint32_t IntTileColumns(uint32_t) { return 2; }
#endif

// How the int8 dot product of this target works.
#if HWY_TARGET <= HWY_AVX3_DL
constexpr bool kPairwise = false;     // sums pass through int16
constexpr bool kSignedBytes = false;  // 8-bit weights are multiplied signed, without an offset
HWY_INLINE VI Dot(VI sum, VU8 u, VI x) { return VI{_mm512_dpbusd_epi32(sum.raw, u.raw, x.raw)}; }
#elif HWY_TARGET == HWY_NEON
constexpr bool kPairwise = false;
constexpr bool kSignedBytes = true;
HWY_INLINE VI Dot(VI sum, VU8 u, VI x) {
  const int8x16_t a = vreinterpretq_s8_u8(u.raw), b = vreinterpretq_s8_s32(x.raw);
#ifdef __ARM_FEATURE_DOTPROD
  return VI(vdotq_s32(sum.raw, a, b));
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
  return VI(vaddq_s32(sum.raw, vpaddq_s32(low, high)));
#endif
}
#else
constexpr bool kPairwise = true;
constexpr bool kSignedBytes = true;
#if HWY_TARGET == HWY_AVX2
HWY_INLINE VI16 Pairs(VU8 u, VI x) { return VI16{_mm256_maddubs_epi16(u.raw, x.raw)}; }
HWY_INLINE VI PairSums(VI16 v) { return VI{_mm256_madd_epi16(v.raw, _mm256_set1_epi16(1))}; }
// Signed weights w: |w| <= 128 and |x| <= 127, so that a pair stays inside int16.
HWY_INLINE VI16 SignedPairs(VU8 w, VI x) {
  return VI16{_mm256_maddubs_epi16(_mm256_abs_epi8(w.raw), _mm256_sign_epi8(x.raw, w.raw))};
}
#else
HWY_INLINE VI16 Pairs(VU8 u, VI x) { return VI16{_mm512_maddubs_epi16(u.raw, x.raw)}; }
HWY_INLINE VI PairSums(VI16 v) { return VI{_mm512_madd_epi16(v.raw, _mm512_set1_epi16(1))}; }
HWY_INLINE VI16 SignedPairs(VU8 w, VI x) {
  const __m512i minus_x = _mm512_sub_epi8(_mm512_setzero_si512(), x.raw);
  const __m512i x_sign = _mm512_mask_blend_epi8(_mm512_movepi8_mask(w.raw), x.raw, minus_x);
  return VI16{_mm512_maddubs_epi16(_mm512_abs_epi8(w.raw), x_sign)};
}
#endif
// Keeps the compiler from collecting all products of a block before it adds the first: it would
// spill them.
template <class V>
HWY_INLINE void AddNow(V& sum) {
  asm("" : "+v"(sum.raw));
}

// Vectors of `bits` whose pairs fit one int16: pairs are at most 2 * 127 * (2^bits - 1).
constexpr uint32_t PairSteps(uint32_t bits) {
  return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}
#endif

// Weight vector kJ of a block: unsigned bytes, but signed ones of 8 bits where kSignedBytes.
template <WeightType kType, uint32_t kJ>
HWY_INLINE VU8 Unpack(const uint8_t* quants) {
  constexpr PackedLayout kLayout = LayoutOf(kType);
  const IntU8 du;
  const hn::Repartition<uint16_t, IntU8> d16;
  if constexpr (kLayout.bits == 8) {
    const VU8 v = hn::LoadU(du, quants + kJ * 64);
    return kSignedBytes ? hn::Xor(v, hn::Set(du, 0x80)) : v;
  } else {
    const VU8 v = hn::LoadU(du, quants + kJ % 4 * 64);
    const VU8 shifted = kJ < 4 ? v : hn::BitCast(du, hn::ShiftRight<4>(hn::BitCast(d16, v)));
    const VU8 low = hn::And(shifted, hn::Set(du, 15));
    if constexpr (kLayout.bits == 4) {
      return low;
    } else {
      constexpr bool kFive = kLayout.bits == 5;
      const auto high = hn::BitCast(d16, hn::LoadU(du, quants + 256 + (kFive ? 0 : kJ / 4 * 64)));
      constexpr int kLeft = 4 - static_cast<int>(kFive ? kJ : 2 * (kJ % 4));
      const auto at_place = kLeft > 0   ? hn::ShiftLeft<(kLeft > 0 ? kLeft : 0)>(high)
                            : kLeft < 0 ? hn::ShiftRight<(kLeft < 0 ? -kLeft : 0)>(high)
                                        : high;
      return hn::OrAnd(low, hn::BitCast(du, at_place), hn::Set(du, kFive ? 0x10 : 0x30));
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC pop_options
#endif
HWY_AFTER_NAMESPACE();
#endif
