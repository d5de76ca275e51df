// BF16 with AVX512-BF16 dot products: queries and weights are rounded to BF16.
//
// The instruction adds the products of a pair to a float sum in one step, as the processor defines
// it, so these bits are this processor family's own (HasBf16Dot is part of the numeric path).
#if defined(KVLINK_KERNEL_TILE_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_BF16_INL_H_
#undef KVLINK_KERNEL_TILE_BF16_INL_H_
#else
#define KVLINK_KERNEL_TILE_BF16_INL_H_
#endif

#include <array>
#include <cstring>
#include <utility>

#include "kernel/tile_pairs-inl.h"
#include "kernel/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3_DL
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512bf16")

inline constexpr int kBf16ScoreRows = 12;

inline void PackBf16(const float* HWY_RESTRICT q, float scale, uint32_t dims,
                     uint32_t* HWY_RESTRICT words, size_t stride, float*, int32_t*) {
  const __m256 factor = _mm256_set1_ps(scale);
  for (uint32_t d = 0; d < dims; d += 8, words += 4 * stride) {
    alignas(16) uint32_t four[4];
    const __m128bh pairs = _mm256_cvtneps_pbh(_mm256_mul_ps(_mm256_loadu_ps(q + d), factor));
    std::memcpy(four, &pairs, sizeof(four));
    for (size_t i = 0; i < 4; i++) words[i * stride] = four[i];
  }
}

HWY_INLINE __m512 DotBf16(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

template <int R, int C>
void ScoreBf16Columns(const uint32_t* HWY_RESTRICT words, uint32_t num_words,
                      const std::byte* HWY_RESTRICT k, size_t stride, const std::byte* prefetch,
                      float* HWY_RESTRICT scores) {
  constexpr size_t kStep = C * 64;
  __m512 sum[R][C];
  HWY_UNROLL(12)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(2)
    for (int c = 0; c < C; c++) sum[r][c] = _mm512_setzero_ps();
  }
  for (uint32_t w = 0; w < num_words; w++, words += R, k += 4 * stride) {
    PrefetchBytes<kStep>(prefetch + w * kStep);
    __m512i key[C];
    HWY_UNROLL(2)
    for (int c = 0; c < C; c++) key[c] = _mm512_loadu_si512(k + c * 64);
    HWY_UNROLL(12)
    for (int r = 0; r < R; r++) {
      const __m512i query = _mm512_set1_epi32(static_cast<int>(words[r]));
      HWY_UNROLL(2)
      for (int c = 0; c < C; c++) sum[r][c] = DotBf16(sum[r][c], key[c], query);
    }
  }
  HWY_UNROLL(12)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(2)
    for (int c = 0; c < C; c++) _mm512_storeu_ps(scores + r * kScoreStride + c * 16, sum[r][c]);
  }
}

using ScoreBf16Function = void (*)(const uint32_t*, uint32_t, const std::byte*, size_t,
                                   const std::byte*, float*);

template <int C, int... R>
constexpr std::array<ScoreBf16Function, sizeof...(R)> ScoreBf16Table(
    std::integer_sequence<int, R...>) {
  return {&ScoreBf16Columns<R + 1, C>...};
}

inline void ScoreBf16(const QueryGroup& queries, uint32_t dims, const KeyRun& keys,
                      const std::byte* prefetch, float* scores) {
  using Heights = std::make_integer_sequence<int, kBf16ScoreRows>;
  static constexpr auto kNarrow = ScoreBf16Table<1>(Heights());
  static constexpr auto kWide = ScoreBf16Table<2>(Heights());
  const std::byte* wanted = prefetch ? prefetch : keys.k;
  for (uint32_t t = 0; t < keys.num_tokens;) {
    const bool wide = keys.num_tokens - t > 16;
    const size_t done = size_t{t} * dims * 2;
    (wide ? kWide : kNarrow)[queries.rows - 1](queries.words, dims / 2, keys.k + size_t{t} * 4,
                                               keys.stride, wanted + done, scores + t);
    t += wide ? 32 : 16;
  }
}

// Weights of an even position and the next one as a pair of BF16, rounded as they are made: two
// bytes for four, ascending, overwrite nothing before it is read. Not looked into by callers: gcc
// 12 takes such a function for one without effect, and drops the call.
__attribute__((noipa)) float WeighToBf16(float* scores, uint32_t first, uint32_t last, float max) {
  const F32Tag d;
  const auto vmax = hn::Set(d, max);
  SumVectors sums = {hn::Zero(d), hn::Zero(d)};
  auto* out = reinterpret_cast<std::byte*>(scores);
  for (uint32_t t = first; t < last; t += kSumLanes) {
    const auto low = Exp2(d, hn::Sub(hn::LoadU(d, scores + t), vmax));
    const auto high = Exp2(d, hn::Sub(hn::LoadU(d, scores + t + kLanes), vmax));
    sums[0] = hn::Add(sums[0], low);
    sums[1] = hn::Add(sums[1], high);
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high.raw, low.raw);
    std::memcpy(out + 2 * size_t{t}, &rounded, sizeof(rounded));
  }
  return SumOf(sums);
}

struct Bf16Weights {
  static constexpr bool kScaled = false;
  static float Weigh(float* scores, uint32_t first, uint32_t last, float max, const uint16_t*,
                     float*) {
    return WeighToBf16(scores, first, last, max);
  }
  static void End(float* weights, uint32_t zero_from, uint32_t first, uint32_t last,
                  uint32_t zero_until, float) {
    auto* out = reinterpret_cast<std::byte*>(weights);
    if (zero_from < first) std::memset(out + 2 * size_t{zero_from}, 0, 2 * (first - zero_from));
    if (last < zero_until) std::memset(out + 2 * size_t{last}, 0, 2 * (zero_until - last));
  }
};

struct Bf16Pairs {
  static constexpr size_t kElementBytes = 2;
  using Sum = __m512;
  static HWY_INLINE Sum Zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE __m512i Load(const std::byte* v, __mmask32 mask) {
    return _mm512_maskz_loadu_epi16(mask, v);
  }
  static HWY_INLINE Sum Add(Sum sum, __m512i pairs, __m512i weights) {
    return DotBf16(sum, pairs, weights);
  }
  static HWY_INLINE __m512 Floats(Sum sum, const float*, int) { return sum; }
};

inline void WeighBf16(const float* weights, const float* scales, uint32_t rows,
                      const ValueRun* runs, uint32_t begin, uint32_t end, uint32_t dims,
                      float* records, uint32_t record_stride) {
  WeighPairs<Bf16Pairs>(weights, scales, rows, runs, begin, end, dims, records, record_stride);
}

#pragma GCC pop_options
#endif  // HWY_TARGET <= HWY_AVX3_DL

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
