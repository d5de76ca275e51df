// Two positions of V side by side, as products of pairs want them (AVX-512): what Q8_0 with VNNI
// and BF16 dot products have in common.
//
// A unit is 32 dimensions of two positions, interleaved within 128-bit lanes into two vectors of 16
// sums: dimensions {8 j + i} and {8 j + 4 + i}, i < 4. The order is put right when sums are stored.
#if defined(KVLINK_KERNEL_TILE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_PAIRS_INL_H_
#undef KVLINK_KERNEL_TILE_PAIRS_INL_H_
#else
#define KVLINK_KERNEL_TILE_PAIRS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernel/simd-inl.h"
#include "kernel/tile_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3_DL
// Templates are compiled for the instructions switched on where they are defined; without
// intrinsics for BF16 the compiler makes none of those.
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512bf16")

inline constexpr uint32_t kUnitDims = 32;
inline constexpr int kPairRows = 12;

// Sums of one unit -> the first `dims` of its 32 floats.
HWY_INLINE void StoreUnit(__m512 low, __m512 high, uint32_t dims, float* out) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const __mmask32 mask = dims >= 32 ? ~__mmask32{0} : (__mmask32{1} << dims) - 1;
  _mm512_mask_storeu_ps(out, static_cast<__mmask16>(mask),
                        _mm512_permutex2var_ps(low, first, high));
  _mm512_mask_storeu_ps(out + 16, static_cast<__mmask16>(mask >> 16),
                        _mm512_permutex2var_ps(low, second, high));
}

// The sums of R rows over U units from `column` on. P gives Load (32 elements), Add and Floats.
template <class P, int R, int U>
void WeighUnits(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT scales,
                const ValueRun* runs, uint32_t begin, uint32_t end, uint32_t column, uint32_t dims,
                float* HWY_RESTRICT records, size_t record_stride) {
  constexpr size_t kStep = U * kUnitDims * P::kElementBytes;
  const uint32_t last = std::min(dims - column - (U - 1) * kUnitDims, kUnitDims);  // of unit U - 1
  const __mmask32 mask = last == 32 ? ~__mmask32{0} : (__mmask32{1} << last) - 1;
  const size_t row_bytes = size_t{dims} * P::kElementBytes;
  typename P::Sum sum[R][U][2];
  HWY_UNROLL(12)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(2)
    for (int u = 0; u < U; u++) sum[r][u][0] = sum[r][u][1] = P::Zero();
  }
  // Weights of an even position and the next one are one word.
  const auto add = [&](uint32_t even, const std::byte* v, const std::byte* next)
      __attribute__((always_inline)) {
    __m512i pair[U][2];
    HWY_UNROLL(2)
    for (int u = 0; u < U; u++) {
      const __mmask32 m = u + 1 < U ? ~__mmask32{0} : mask;
      const size_t offset = static_cast<size_t>(u) * kUnitDims * P::kElementBytes;
      const __m512i a = v == nullptr ? _mm512_setzero_si512() : P::Load(v + offset, m);
      const __m512i b = next == nullptr ? _mm512_setzero_si512() : P::Load(next + offset, m);
      pair[u][0] = _mm512_unpacklo_epi16(a, b);
      pair[u][1] = _mm512_unpackhi_epi16(a, b);
    }
    const auto* word = reinterpret_cast<const int32_t*>(weights) + even / 2;
    HWY_UNROLL(12)
    for (int r = 0; r < R; r++) {
      const __m512i w = _mm512_set1_epi32(word[r * kScoreStride]);
      HWY_UNROLL(2)
      for (int u = 0; u < U; u++) {
        sum[r][u][0] = P::Add(sum[r][u][0], pair[u][0], w);
        sum[r][u][1] = P::Add(sum[r][u][1], pair[u][1], w);
      }
    }
  };
  for (uint32_t t = begin; t < end; runs++) {
    const uint32_t run_end = std::min(t + runs->num_tokens, end);
    const std::byte* v = runs->v + column * P::kElementBytes;
    const std::byte* prefetch =
        (runs->prefetch ? runs->prefetch : runs->v) + column * P::kElementBytes * runs->num_tokens;
    if (t % 2 == 1) {
      add(t - 1, nullptr, v);
      t++, v += row_bytes, prefetch += kStep;
    }
    for (; t + 1 < run_end; t += 2, v += 2 * row_bytes, prefetch += 2 * kStep) {
      PrefetchBytes<2 * kStep>(prefetch);
      add(t, v, v + row_bytes);
    }
    if (t < run_end) {
      add(t, v, nullptr);
      t++;
    }
  }
  HWY_UNROLL(12)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(2)
    for (int u = 0; u < U; u++) {
      StoreUnit(P::Floats(sum[r][u][0], scales, r), P::Floats(sum[r][u][1], scales, r),
                u + 1 < U ? kUnitDims : last, records + r * record_stride + column + u * kUnitDims);
    }
  }
}

using PairFunction = void (*)(const float*, const float*, const ValueRun*, uint32_t, uint32_t,
                              uint32_t, uint32_t, float*, size_t);

template <class P, int U, int... R>
constexpr std::array<PairFunction, sizeof...(R)> PairTable(std::integer_sequence<int, R...>) {
  return {&WeighUnits<P, R + 1, U>...};
}

template <class P>
void WeighPairs(const float* weights, const float* scales, uint32_t rows, const ValueRun* runs,
                uint32_t begin, uint32_t end, uint32_t dims, float* records,
                uint32_t record_stride) {
  static constexpr auto kOne = PairTable<P, 1>(std::make_integer_sequence<int, kPairRows>());
  static constexpr auto kTwo = PairTable<P, 2>(std::make_integer_sequence<int, kPairRows / 2>());
  for (uint32_t column = 0; column < dims;) {
    const bool two = rows <= kPairRows / 2 && dims - column > kUnitDims;
    (two ? kTwo[rows - 1] : kOne[rows - 1])(weights, scales, runs, begin, end, column, dims,
                                            records, record_stride);
    column += two ? 2 * kUnitDims : kUnitDims;
  }
}

#pragma GCC pop_options
#endif  // HWY_TARGET <= HWY_AVX3_DL

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
