// Q8_0: int8 queries and keys, int16 weights and int8 values. Integer sums are exact and floats are
// multiplied in one order, so that all instruction sets give the same bits.
//
//   score[t]  = (sum_d q_d k_dt) * q_scale * k_scale_t
//   record[d] = (sum_t w_t v_td) * w_scale   w_t of 2^(s_t - m) * v_scale_t, in steps of w_scale
// A chunk's sums fit: kMaxHeadDim * 127 * 127 < 2^24 (exact as floats too) and kChunkTokens * 32767
// * 127 < 2^31.
#if defined(KVLINK_KERNEL_TILE_Q8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_Q8_INL_H_
#undef KVLINK_KERNEL_TILE_Q8_INL_H_
#else
#define KVLINK_KERNEL_TILE_Q8_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernel/tile_pairs-inl.h"
#include "kernel/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL
// Highway checks VNNI before it picks this target, but does not switch the instructions on.
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#endif
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace {

static_assert(kMaxHeadDim * 127 * 127 < 1 << 24 && uint64_t{kChunkTokens} * 32767 * 127 < 1u << 31);

// ---- elements ---------------------------------------------------------------------------------

// x = element * scale, elements in +-127.
inline void QuantizeVector(const float* HWY_RESTRICT x, float factor, uint32_t dims,
                           int8_t* HWY_RESTRICT out) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto scale = hn::Set(d, factor);
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(hn::CappedTag<float, 8>())) {
    const auto element = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), scale));
    hn::StoreU(hn::DemoteTo(d8, element), d8, out + i);
  }
}

inline float LargestOf(const float* HWY_RESTRICT x, uint32_t dims) {
  const hn::CappedTag<float, 8> d;
  auto largest = hn::Zero(d);
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(hn::CappedTag<float, 8>()))
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

inline void PackInt8(const float* HWY_RESTRICT q, float scale, uint32_t dims,
                     uint32_t* HWY_RESTRICT words, size_t stride, float* row_scale,
                     int32_t* row_sum) {
  HWY_ALIGN int8_t elements[kMaxHeadDim];
  const float largest = LargestOf(q, dims);
  QuantizeVector(q, largest > 0 ? 127.0f / largest : 0.0f, dims, elements);
  int32_t sum = 0;
  for (uint32_t d = 0; d < dims; d++) sum += elements[d];
  for (uint32_t w = 0; w < dims / 4; w++) std::memcpy(words + w * stride, elements + 4 * w, 4);
  *row_scale = largest / 127.0f * scale;
  *row_sum = sum;
}

inline void ToQ8(const float* HWY_RESTRICT x, uint32_t dims, std::byte* HWY_RESTRICT out,
                 uint16_t* HWY_RESTRICT scale) {
  const hn::CappedTag<float, 8> d;
  HWY_ALIGN float finite[kMaxHeadDim];
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(hn::CappedTag<float, 8>()))
    hn::Store(Finite(d, hn::LoadU(d, x + i), 65504.0f), d, finite + i);
  // The scale that will be read, not the exact one, so that its rounding costs nothing. At least
  // 2^-14, the smallest normal number, lest it have few bits.
  HWY_ALIGN float exact[8] = {std::max(LargestOf(finite, dims) / 127.0f, 6.103515625e-5f)};
  HWY_ALIGN uint16_t rounded[8];
  F16Elements::Store(d, hn::Load(d, exact), rounded);
  *scale = rounded[0];
  HWY_ALIGN float read[8];
  hn::Store(F16Elements::Load(d, rounded), d, read);
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(hn::CappedTag<float, 8>())) {
    const auto limited = hn::Clamp(hn::Div(hn::Load(d, finite + i), hn::Set(d, read[0])),
                                   hn::Set(d, -127.0f), hn::Set(d, 127.0f));
    hn::Store(limited, d, finite + i);
  }
  QuantizeVector(finite, 1.0f, dims, reinterpret_cast<int8_t*>(out));
}

// ---- plain loops, for every compiler ----------------------------------------------------------

inline constexpr int kPlainRows = 4;

// Floats hold these integers exactly.
inline void ScorePlain(const QueryGroup& queries, uint32_t dims, const KeyRun& keys,
                       const std::byte*, float* scores) {
  const F32Tag d;
  const hn::RebindToSigned<F32Tag> di;
  for (uint32_t t = 0; t < keys.num_tokens; t += kLanes) {
    const auto k_scale = F16Elements::Load(d, reinterpret_cast<const uint16_t*>(keys.scales) + t);
    for (uint32_t r = 0; r < queries.rows; r++) {
      auto sum = hn::Zero(d);
      for (uint32_t w = 0; w < dims / 4; w++) {
        int8_t q[4];
        std::memcpy(q, queries.words + size_t{w} * queries.rows + r, 4);
        const auto four =
            hn::LoadU(di, reinterpret_cast<const int32_t*>(keys.k) + size_t{w} * keys.stride + t);
        const decltype(hn::Zero(di)) element[4] = {hn::ShiftRight<24>(hn::ShiftLeft<24>(four)),
                                                   hn::ShiftRight<24>(hn::ShiftLeft<16>(four)),
                                                   hn::ShiftRight<24>(hn::ShiftLeft<8>(four)),
                                                   hn::ShiftRight<24>(four)};
        for (int i = 0; i < 4; i++)
          sum = hn::MulAdd(hn::ConvertTo(d, element[i]), hn::Set(d, static_cast<float>(q[i])), sum);
      }
      const auto scaled = hn::Mul(hn::Mul(sum, hn::Set(d, queries.scales[r])), k_scale);
      hn::StoreU(scaled, d, scores + r * kScoreStride + t);
    }
  }
}

inline void WeighPlain(const float* weights, const float* scales, uint32_t rows,
                       const ValueRun* all_runs, uint32_t begin, uint32_t end, uint32_t dims,
                       float* records, uint32_t record_stride) {
  const hn::CappedTag<int32_t, 8> di;
  const hn::RebindToFloat<decltype(di)> d;
  const hn::Rebind<int8_t, decltype(di)> d8;
  for (uint32_t r = 0; r < rows; r++) {
    const auto* w = reinterpret_cast<const int16_t*>(weights + r * kScoreStride);
    for (uint32_t column = 0; column < dims; column += hn::MaxLanes(hn::CappedTag<int32_t, 8>())) {
      auto sum = hn::Zero(di);
      const ValueRun* run = all_runs;
      for (uint32_t t = begin; t < end; run++) {
        const auto* v = reinterpret_cast<const int8_t*>(run->v) + column;
        const uint32_t run_end = std::min(t + run->num_tokens, end);
        for (; t < run_end; t++, v += dims)
          sum = hn::Add(sum, hn::Mul(hn::PromoteTo(di, hn::LoadU(d8, v)), hn::Set(di, w[t])));
      }
      hn::StoreU(hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, scales[r])), d,
                 records + size_t{r} * record_stride + column);
    }
  }
}

// ---- AVX-512 VNNI -----------------------------------------------------------------------------

#if HWY_TARGET == HWY_AVX3_DL

inline constexpr int kQ8ScoreRows = 12;
inline constexpr int kQ8ValueRows = kPairRows;

// sum += 4 products of unsigned and signed bytes, or 2 products of int16, a lane. In assembler,
// since gcc 12 copies the sums of its built-in functions from register to register and spills them.
HWY_INLINE void DotBytes(__m512i& sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}
HWY_INLINE void DotWords(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// The instruction wants one operand unsigned: keys get 128 added, which is taken back at the end.
template <int R, int C>
void ScoreQ8Columns(const QueryGroup& queries, uint32_t num_words, const std::byte* HWY_RESTRICT k,
                    const std::byte* HWY_RESTRICT scales, size_t stride, const std::byte* prefetch,
                    float* HWY_RESTRICT scores) {
  constexpr size_t kStep = C * 64;
  const __m512i offset = _mm512_set1_epi8(-128);
  const uint32_t* HWY_RESTRICT words = queries.words;
  __m512i sum[R][C];
  HWY_UNROLL(12)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(2)
    for (int c = 0; c < C; c++) sum[r][c] = _mm512_setzero_si512();
  }
  for (uint32_t w = 0; w < num_words; w++, words += R, k += 4 * stride) {
    PrefetchBytes<kStep>(prefetch + w * kStep);
    __m512i key[C];
    HWY_UNROLL(2)
    for (int c = 0; c < C; c++) key[c] = _mm512_xor_si512(_mm512_loadu_si512(k + c * 64), offset);
    HWY_UNROLL(12)
    for (int r = 0; r < R; r++) {
      const __m512i query = _mm512_set1_epi32(static_cast<int>(words[r]));
      HWY_UNROLL(2)
      for (int c = 0; c < C; c++) DotBytes(sum[r][c], key[c], query);
    }
  }
  __m512 k_scale[C];
  HWY_UNROLL(2)
  for (int c = 0; c < C; c++) {
    k_scale[c] =
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + c * 32)));
  }
  HWY_UNROLL(12)
  for (int r = 0; r < R; r++) {
    const __m512 q_scale = _mm512_set1_ps(queries.scales[r]);
    const __m512i offsets = _mm512_set1_epi32(128 * queries.sums[r]);
    HWY_UNROLL(2)
    for (int c = 0; c < C; c++) {
      const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[r][c], offsets));
      const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(exact, q_scale), k_scale[c]);
      _mm512_storeu_ps(scores + r * kScoreStride + c * 16, scaled);
    }
  }
}

using ScoreQ8Function = void (*)(const QueryGroup&, uint32_t, const std::byte*, const std::byte*,
                                 size_t, const std::byte*, float*);

template <int C, int... R>
constexpr std::array<ScoreQ8Function, sizeof...(R)> ScoreQ8Table(std::integer_sequence<int, R...>) {
  return {&ScoreQ8Columns<R + 1, C>...};
}

inline void ScoreQ8(const QueryGroup& queries, uint32_t dims, const KeyRun& keys,
                    const std::byte* prefetch, float* scores) {
  using Heights = std::make_integer_sequence<int, kQ8ScoreRows>;
  static constexpr auto kNarrow = ScoreQ8Table<1>(Heights());
  static constexpr auto kWide = ScoreQ8Table<2>(Heights());
  const std::byte* wanted = prefetch ? prefetch : keys.k;
  for (uint32_t t = 0; t < keys.num_tokens;) {
    const bool wide = keys.num_tokens - t > 16;
    const size_t done = size_t{t} * dims;
    (wide ? kWide : kNarrow)[queries.rows - 1](queries, dims / 4, keys.k + size_t{t} * 4,
                                               keys.scales + size_t{t} * 2, keys.stride,
                                               wanted + done, scores + t);
    t += wide ? 32 : 16;
  }
}

struct Int8Pairs {
  static constexpr size_t kElementBytes = 1;
  using Sum = __m512i;
  static HWY_INLINE Sum Zero() { return _mm512_setzero_si512(); }
  static HWY_INLINE __m512i Load(const std::byte* v, __mmask32 mask) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(mask, v));
  }
  static HWY_INLINE Sum Add(Sum sum, __m512i pairs, __m512i weights) {
    DotWords(sum, pairs, weights);
    return sum;
  }
  static HWY_INLINE __m512 Floats(Sum sum, const float* scales, int row) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scales[row]));
  }
};

inline void WeighQ8(const float* weights, const float* scales, uint32_t rows, const ValueRun* runs,
                    uint32_t begin, uint32_t end, uint32_t dims, float* records,
                    uint32_t record_stride) {
  WeighPairs<Int8Pairs>(weights, scales, rows, runs, begin, end, dims, records, record_stride);
}

// ---- AVX2 -------------------------------------------------------------------------------------

#elif HWY_TARGET <= HWY_AVX2

inline constexpr int kQ8ScoreRows = 4;
inline constexpr int kQ8ValueRows = 6;

// |k| times q with k's sign: pairs of products stay inside int16, since elements are in +-127.
template <int R>
void ScoreQ8Column(const QueryGroup& queries, uint32_t num_words, const std::byte* HWY_RESTRICT k,
                   const std::byte* HWY_RESTRICT scales, size_t stride, const std::byte* prefetch,
                   float* HWY_RESTRICT scores) {
  constexpr int kColumns = 2;
  const __m256i ones = _mm256_set1_epi16(1);
  const uint32_t* HWY_RESTRICT words = queries.words;
  __m256i sum[R][kColumns];
  HWY_UNROLL(4)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(2)
    for (int c = 0; c < kColumns; c++) sum[r][c] = _mm256_setzero_si256();
  }
  for (uint32_t w = 0; w < num_words; w++, words += R, k += 4 * stride) {
    PrefetchBytes<64>(prefetch + w * 64);
    HWY_UNROLL(2)
    for (int c = 0; c < kColumns; c++) {
      const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + c * 32));
      const __m256i magnitude = _mm256_abs_epi8(key);
      HWY_UNROLL(4)
      for (int r = 0; r < R; r++) {
        const __m256i query = _mm256_set1_epi32(static_cast<int>(words[r]));
        const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(query, key));
        sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < R; r++) {
    const __m256 q_scale = _mm256_set1_ps(queries.scales[r]);
    HWY_UNROLL(2)
    for (int c = 0; c < kColumns; c++) {
      const __m256 k_scale =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + c * 16)));
      const __m256 scaled =
          _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][c]), q_scale), k_scale);
      _mm256_storeu_ps(scores + r * kScoreStride + c * 8, scaled);
    }
  }
}

using ScoreQ8Function = void (*)(const QueryGroup&, uint32_t, const std::byte*, const std::byte*,
                                 size_t, const std::byte*, float*);

template <int... R>
constexpr std::array<ScoreQ8Function, sizeof...(R)> ScoreQ8Table(std::integer_sequence<int, R...>) {
  return {&ScoreQ8Column<R + 1>...};
}

inline void ScoreQ8(const QueryGroup& queries, uint32_t dims, const KeyRun& keys,
                    const std::byte* prefetch, float* scores) {
  static constexpr auto kTable = ScoreQ8Table(std::make_integer_sequence<int, kQ8ScoreRows>());
  for (uint32_t t = 0; t < keys.num_tokens; t += 16) {
    const size_t done = size_t{t} * dims;
    const std::byte* wanted = prefetch ? prefetch : keys.k;
    kTable[queries.rows - 1](queries, dims / 4, keys.k + size_t{t} * 4, keys.scales + size_t{t} * 2,
                             keys.stride, wanted + done, scores + t);
  }
}

// 16 dimensions of two positions at a time, as tile_pairs does 32.
template <int R>
void WeighQ8Column(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT scales,
                   const ValueRun* runs, uint32_t begin, uint32_t end, uint32_t column,
                   uint32_t dims, float* HWY_RESTRICT records, size_t record_stride) {
  const bool whole = dims - column >= 16;
  __m256i sum[R][2];
  HWY_UNROLL(6)
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  const auto load = [&](const std::byte* v) __attribute__((always_inline)) {
    if (v == nullptr) return _mm256_setzero_si256();
    return _mm256_cvtepi8_epi16(whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(v))
                                      : _mm_loadl_epi64(reinterpret_cast<const __m128i*>(v)));
  };
  const auto add = [&](uint32_t even, const std::byte* v, const std::byte* next)
      __attribute__((always_inline)) {
    const __m256i a = load(v), b = load(next);
    const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    const auto* word = reinterpret_cast<const int32_t*>(weights) + even / 2;
    HWY_UNROLL(6)
    for (int r = 0; r < R; r++) {
      const __m256i w = _mm256_set1_epi32(word[r * kScoreStride]);
      sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(low, w));
      sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(high, w));
    }
  };
  for (uint32_t t = begin; t < end; runs++) {
    const uint32_t run_end = std::min(t + runs->num_tokens, end);
    const std::byte* v = runs->v + column;
    const std::byte* prefetch =
        (runs->prefetch ? runs->prefetch : runs->v) + column * runs->num_tokens;
    if (t % 2 == 1) {
      add(t - 1, nullptr, v);
      t++, v += dims;
    }
    for (; t + 1 < run_end; t += 2, v += 2 * dims, prefetch += 32) {
      PrefetchBytes<32>(prefetch);
      add(t, v, v + dims);
    }
    if (t < run_end) {
      add(t, v, nullptr);
      t++;
    }
  }
  HWY_UNROLL(6)
  for (int r = 0; r < R; r++) {
    const __m256 scale = _mm256_set1_ps(scales[r]);
    const __m256 low = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][0]), scale);
    const __m256 high = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][1]), scale);
    float* out = records + r * record_stride + column;
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, high, 0x20));
    if (whole) _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

using WeighQ8Function = void (*)(const float*, const float*, const ValueRun*, uint32_t, uint32_t,
                                 uint32_t, uint32_t, float*, size_t);

template <int... R>
constexpr std::array<WeighQ8Function, sizeof...(R)> WeighQ8Table(std::integer_sequence<int, R...>) {
  return {&WeighQ8Column<R + 1>...};
}

inline void WeighQ8(const float* weights, const float* scales, uint32_t rows, const ValueRun* runs,
                    uint32_t begin, uint32_t end, uint32_t dims, float* records,
                    uint32_t record_stride) {
  static constexpr auto kTable = WeighQ8Table(std::make_integer_sequence<int, kQ8ValueRows>());
  for (uint32_t column = 0; column < dims; column += 16)
    kTable[rows - 1](weights, scales, runs, begin, end, column, dims, records, record_stride);
}

#else

inline constexpr int kQ8ScoreRows = kPlainRows;
inline constexpr int kQ8ValueRows = kPlainRows;
inline void ScoreQ8(const QueryGroup& queries, uint32_t dims, const KeyRun& keys,
                    const std::byte* prefetch, float* scores) {
  ScorePlain(queries, dims, keys, prefetch, scores);
}
inline void WeighQ8(const float* weights, const float* scales, uint32_t rows, const ValueRun* runs,
                    uint32_t begin, uint32_t end, uint32_t dims, float* records,
                    uint32_t record_stride) {
  WeighPlain(weights, scales, rows, runs, begin, end, dims, records, record_stride);
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC pop_options
#endif
HWY_AFTER_NAMESPACE();

#endif  // include guard
