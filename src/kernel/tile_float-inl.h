// F16 and BF16 with float arithmetic: queries and weights stay floats, elements become floats.
//
// Registers: AVX-512 holds 12 rows x 2 vectors of scores or 6 rows x 4 vectors of values (24
// accumulators of 32 registers), AVX2 and NEON 6 x 2.
#if defined(KVLINK_KERNEL_TILE_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_FLOAT_INL_H_
#undef KVLINK_KERNEL_TILE_FLOAT_INL_H_
#else
#define KVLINK_KERNEL_TILE_FLOAT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernel/simd-inl.h"
#include "kernel/tile_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace {

inline constexpr bool kManyRegisters = kLanes == 16;
inline constexpr int kScoreRows = kManyRegisters ? 12 : 6;
inline constexpr int kScoreColumns = 2;
inline constexpr int kValueRows = 6;
inline constexpr int kValueColumns = kManyRegisters ? 4 : 2;

inline void PackFloats(const float* HWY_RESTRICT q, float scale, uint32_t dims,
                       uint32_t* HWY_RESTRICT words, size_t stride, float*, int32_t*) {
  for (uint32_t d = 0; d < dims; d++) {
    const float scaled = q[d] * scale;
    std::memcpy(words + d * stride, &scaled, sizeof(scaled));
  }
}

// ---- scores -----------------------------------------------------------------------------------

template <class E, int R, int C>
void ScoreColumns(const float* HWY_RESTRICT q, uint32_t dims, const std::byte* HWY_RESTRICT k,
                  size_t stride, const std::byte* prefetch, float* HWY_RESTRICT scores) {
  const F32Tag d;
  constexpr size_t kStep = C * kLanes * sizeof(uint16_t);
  F32Vec<F32Tag> sum[R][C];
  HWY_UNROLL(16)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++) sum[r][c] = hn::Zero(d);
  }
  for (uint32_t i = 0; i < dims; i++, q += R) {
    PrefetchBytes<kStep>(prefetch + i * kStep);
    F32Vec<F32Tag> key[C];
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++) key[c] = E::LoadKeys(d, k, stride, i, c * kLanes);
    HWY_UNROLL(16)
    for (int r = 0; r < R; r++) {
      const auto query = hn::Set(d, q[r]);
      HWY_UNROLL(4)
      for (int c = 0; c < C; c++) sum[r][c] = hn::MulAdd(query, key[c], sum[r][c]);
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++) hn::StoreU(sum[r][c], d, scores + r * kScoreStride + c * kLanes);
  }
}

using ScoreFunction = void (*)(const float*, uint32_t, const std::byte*, size_t, const std::byte*,
                               float*);

template <class E, int C, int... R>
constexpr std::array<ScoreFunction, sizeof...(R)> ScoreTable(std::integer_sequence<int, R...>) {
  return {&ScoreColumns<E, R + 1, C>...};
}

template <class E>
void Score(const QueryGroup& queries, uint32_t dims, const KeyRun& keys, const std::byte* prefetch,
           float* scores) {
  using Heights = std::make_integer_sequence<int, kScoreRows>;
  static constexpr auto kNarrow = ScoreTable<E, 1>(Heights());
  static constexpr auto kWide = ScoreTable<E, kScoreColumns>(Heights());
  const auto* q = reinterpret_cast<const float*>(queries.words);
  // Without anything to prefetch the loops touch what they read anyway: cheaper than a branch.
  const std::byte* wanted = prefetch ? prefetch : keys.k;
  for (uint32_t t = 0; t < keys.num_tokens;) {
    const bool wide = keys.num_tokens - t > kLanes;
    const uint32_t step = static_cast<uint32_t>(wide ? kScoreColumns * kLanes : kLanes);
    const size_t done = size_t{t} * dims * sizeof(uint16_t);
    (wide ? kWide : kNarrow)[queries.rows - 1](q, dims, keys.k + t * E::kKeyStep, keys.stride,
                                               wanted + done, scores + t);
    t += step;
  }
}

// ---- values -----------------------------------------------------------------------------------

// Columns [0, C * lanes) of V and the records; both have been moved to their first column.
template <class E, class D, int R, int C>
void WeighColumns(const float* HWY_RESTRICT weights, const ValueRun* runs, size_t column,
                  uint32_t num_tokens, uint32_t dims, float* HWY_RESTRICT records,
                  size_t record_stride) {
  const D d;
  constexpr size_t kWidth = hn::MaxLanes(D());
  constexpr size_t kStep = C * kWidth * sizeof(uint16_t);
  hn::Vec<D> sum[R][C];
  HWY_UNROLL(16)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++) sum[r][c] = hn::Zero(d);
  }
  for (uint32_t done = 0; done < num_tokens; runs++) {
    const uint32_t n = std::min(runs->num_tokens, num_tokens - done);
    const uint16_t* HWY_RESTRICT v = reinterpret_cast<const uint16_t*>(runs->v) + column;
    const std::byte* prefetch =
        (runs->prefetch ? runs->prefetch : runs->v) + column * sizeof(uint16_t) * runs->num_tokens;
    for (uint32_t t = 0; t < n; t++, v += dims, weights++, prefetch += kStep) {
      PrefetchBytes<kStep>(prefetch);
      hn::Vec<D> value[C];
      HWY_UNROLL(4)
      for (int c = 0; c < C; c++) value[c] = E::Load(d, v + c * kWidth);
      HWY_UNROLL(16)
      for (int r = 0; r < R; r++) {
        const auto weight = hn::Set(d, weights[r * kScoreStride]);
        HWY_UNROLL(4)
        for (int c = 0; c < C; c++) sum[r][c] = hn::MulAdd(weight, value[c], sum[r][c]);
      }
    }
    done += n;
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++)
      hn::StoreU(sum[r][c], d, records + column + r * record_stride + c * kWidth);
  }
}

using WeighFunction = void (*)(const float*, const ValueRun*, size_t, uint32_t, uint32_t, float*,
                               size_t);

template <class E, class D, int C, int... R>
constexpr std::array<WeighFunction, sizeof...(R)> WeighTable(std::integer_sequence<int, R...>) {
  return {&WeighColumns<E, D, R + 1, C>...};
}

template <class E>
void Weigh(const float* weights, const float*, uint32_t rows, const ValueRun* runs, uint32_t begin,
           uint32_t end, uint32_t dims, float* records, uint32_t record_stride) {
  using Heights = std::make_integer_sequence<int, kValueRows>;
  using HalfTag = hn::CappedTag<float, 8>;
  static constexpr std::array<WeighFunction, kValueRows> kFull[] = {
    WeighTable<E, F32Tag, 1>(Heights()),
    WeighTable<E, F32Tag, 2>(Heights()),
#if HWY_MAX_BYTES == 64
    WeighTable<E, F32Tag, 3>(Heights()),
    WeighTable<E, F32Tag, 4>(Heights()),
#endif
  };
  static_assert(std::size(kFull) == kValueColumns);
  static constexpr auto kHalf = WeighTable<E, HalfTag, 1>(Heights());
  for (size_t column = 0; column < dims;) {
    const size_t vectors = std::min<size_t>((dims - column) / kLanes, kValueColumns);
    const auto* table = vectors > 0 ? &kFull[vectors - 1] : &kHalf;  // head_dim % 16 == 8
    (*table)[rows - 1](weights + begin, runs, column, end - begin, dims, records, record_stride);
    column += vectors > 0 ? vectors * kLanes : hn::MaxLanes(HalfTag());
  }
}

// ---- elements ---------------------------------------------------------------------------------

template <class E>
void ToKv(const float* HWY_RESTRICT x, uint32_t dims, std::byte* HWY_RESTRICT out, uint16_t*) {
  const hn::CappedTag<float, 8> d;  // dims is a multiple of 8
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(hn::CappedTag<float, 8>()))
    E::Store(d, hn::LoadU(d, x + i), reinterpret_cast<uint16_t*>(out) + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
