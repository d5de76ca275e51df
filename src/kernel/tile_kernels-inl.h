// The inner loops behind TileKernels, compiled once per instruction set.
//
// Registers: AVX-512 holds 12 rows x 2 vectors of scores or 6 rows x 4 vectors of values (24
// accumulators of 32 registers), AVX2 and NEON 6 x 2.
#if defined(KVLINK_KERNEL_TILE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_KERNELS_INL_H_
#undef KVLINK_KERNEL_TILE_KERNELS_INL_H_
#else
#define KVLINK_KERNEL_TILE_KERNELS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "hwy/cache_control.h"
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
inline constexpr size_t kLineBytes = 64;

template <size_t kBytes>
HWY_INLINE void PrefetchBytes(const std::byte* p) {
  hwy::Prefetch(p);
  if constexpr (kBytes > kLineBytes) hwy::Prefetch(p + kLineBytes);
}

// ---- scores -----------------------------------------------------------------------------------

template <int R, int C>
void ScoreColumns(const float* HWY_RESTRICT q, uint32_t dims, const uint16_t* HWY_RESTRICT k,
                  size_t k_stride, Prefetch prefetch, float* HWY_RESTRICT scores) {
  const F32Tag d;
  constexpr size_t kStep = C * kLanes * sizeof(uint16_t);
  F32Vec<F32Tag> sum[R][C];
  HWY_UNROLL(16)
  for (int r = 0; r < R; r++) {
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++) sum[r][c] = hn::Zero(d);
  }
  for (uint32_t i = 0; i < dims; i++, q += R, k += k_stride) {
    PrefetchBytes<kStep>(prefetch.first + i * kStep);
    PrefetchBytes<kStep>(prefetch.second + i * kStep);
    F32Vec<F32Tag> key[C];
    HWY_UNROLL(4)
    for (int c = 0; c < C; c++) key[c] = LoadKv(d, k + c * kLanes);
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

using ScoreFunction = void (*)(const float*, uint32_t, const uint16_t*, size_t, Prefetch, float*);

template <int C, int... R>
constexpr std::array<ScoreFunction, sizeof...(R)> ScoreTable(std::integer_sequence<int, R...>) {
  return {&ScoreColumns<R + 1, C>...};
}

void Score(const float* q, uint32_t rows, uint32_t dims, const uint16_t* k, uint32_t k_stride,
           uint32_t num_tokens, Prefetch prefetch, float* scores) {
  using Heights = std::make_integer_sequence<int, kScoreRows>;
  static constexpr auto kNarrow = ScoreTable<1>(Heights());
  static constexpr auto kWide = ScoreTable<kScoreColumns>(Heights());
  // Without anything to prefetch the loops touch what they read anyway: cheaper than a branch.
  const auto* here = reinterpret_cast<const std::byte*>(k);
  bool first = prefetch.first != nullptr, second = prefetch.second != nullptr;
  for (uint32_t t = 0; t < num_tokens;) {
    const bool wide = num_tokens - t > kLanes;
    const uint32_t step = static_cast<uint32_t>(wide ? kScoreColumns * kLanes : kLanes);
    const Prefetch p = {(first ? prefetch.first : here) + size_t{t} * dims * sizeof(uint16_t),
                        (second ? prefetch.second : here) + size_t{t} * dims * sizeof(uint16_t)};
    (wide ? kWide : kNarrow)[rows - 1](q, dims, k + t, k_stride, p, scores + t);
    t += step;
  }
}

// ---- softmax ----------------------------------------------------------------------------------

inline constexpr uint32_t kSumLanes = 16;  // of a sum's fixed shape, on every instruction set
inline constexpr int kSumVectors = static_cast<int>(kSumLanes / kLanes);

// Lanes 0..15 as kSumVectors vectors -> their sum, by halves: (i, i + 8), (i, i + 4), then two
// pairs.
HWY_INLINE float SumOf16(const F32Vec<F32Tag>* sums) {
  const F32Tag d;
  HWY_ALIGN float lanes[kSumLanes];
  HWY_UNROLL(4)
  for (int i = 0; i < kSumVectors; i++) hn::Store(sums[i], d, lanes + i * kLanes);
  const hn::CappedTag<float, 4> d4;
  const auto low = hn::Add(hn::Load(d4, lanes), hn::Load(d4, lanes + 8));
  const auto high = hn::Add(hn::Load(d4, lanes + 4), hn::Load(d4, lanes + 12));
  const auto sum = hn::Add(low, high);
  const auto pairs = hn::Add(sum, hn::Shuffle1032(sum));
  return hn::GetLane(hn::Add(pairs, hn::Shuffle2301(pairs)));
}

// tanh(x) = (1 - t) / (1 + t) with t = e^-2x = 2^-y, for y >= 0, and odd.
void Softcap(float* HWY_RESTRICT scores, uint32_t begin, uint32_t end, float cap) {
  const F32Tag d;
  const auto one = hn::Set(d, 1.0f), vcap = hn::Set(d, cap);
  for (uint32_t t = begin; t < end; t += kLanes) {
    const auto y = hn::LoadU(d, scores + t);
    const auto power = Exp2(d, hn::Neg(hn::Abs(y)));
    const auto tanh = hn::Div(hn::Sub(one, power), hn::Add(one, power));
    hn::StoreU(hn::Mul(vcap, hn::CopySign(tanh, y)), d, scores + t);
  }
}

// Lane t % 16 of the sums takes position t of the chunk, whatever the range.
void Softmax(float* HWY_RESTRICT scores, uint32_t begin, uint32_t end, uint32_t zero_from,
             uint32_t zero_until, float* m, float* l) {
  const F32Tag d;
  const float infinity = std::numeric_limits<float>::infinity();
  const uint32_t first = begin / kSumLanes * kSumLanes, full = end / kSumLanes * kSumLanes;
  if (first < begin) std::fill(scores + first, scores + begin, -infinity);  // weight 0
  const auto lowest = hn::Set(d, -infinity);
  F32Vec<F32Tag> largest = lowest;
  uint32_t t = first;
  for (; t < full; t += kLanes) largest = hn::Max(largest, hn::LoadU(d, scores + t));
  for (; t < end; t += kLanes) {
    const auto valid = hn::FirstN(d, end - t);
    largest = hn::Max(largest, hn::IfThenElse(valid, hn::LoadU(d, scores + t), lowest));
  }
  const auto max = hn::MaxOfLanes(d, largest);

  F32Vec<F32Tag> sums[kSumVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (t = first; t < full; t += kSumLanes) {
    HWY_UNROLL(4)
    for (int i = 0; i < kSumVectors; i++) {
      float* s = scores + t + i * kLanes;
      const auto weight = Exp2(d, hn::Sub(hn::LoadU(d, s), max));
      hn::StoreU(weight, d, s);
      sums[i] = hn::Add(sums[i], weight);
    }
  }
  if (full < end) {
    HWY_UNROLL(4)
    for (int i = 0; i < kSumVectors; i++) {
      const uint32_t at = full + static_cast<uint32_t>(i * kLanes);
      float* s = scores + at;
      const auto valid = hn::FirstN(d, end > at ? end - at : 0);
      const auto weight = hn::IfThenElseZero(valid, Exp2(d, hn::Sub(hn::LoadU(d, s), max)));
      hn::StoreU(weight, d, s);
      sums[i] = hn::Add(sums[i], weight);
    }
  }
  if (zero_from < first) std::fill(scores + zero_from, scores + first, 0.0f);
  for (t = (end + kSumLanes - 1) / kSumLanes * kSumLanes; t < zero_until; t += kLanes)
    hn::StoreU(hn::Zero(d), d, scores + t);
  *m = hn::GetLane(max);
  *l = SumOf16(sums);
}

// ---- values -----------------------------------------------------------------------------------

// Columns [0, C * lanes) of V and the records; both have been moved to their first column.
template <class D, int R, int C>
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
    const uint16_t* HWY_RESTRICT v = runs->v + column;
    const std::byte* prefetch =
        (runs->prefetch ? runs->prefetch : reinterpret_cast<const std::byte*>(runs->v)) +
        column * sizeof(uint16_t) * runs->num_tokens;
    for (uint32_t t = 0; t < n; t++, v += dims, weights++, prefetch += kStep) {
      PrefetchBytes<kStep>(prefetch);
      hn::Vec<D> value[C];
      HWY_UNROLL(4)
      for (int c = 0; c < C; c++) value[c] = LoadKv(d, v + c * kWidth);
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

template <class D, int C, int... R>
constexpr std::array<WeighFunction, sizeof...(R)> WeighTable(std::integer_sequence<int, R...>) {
  return {&WeighColumns<D, R + 1, C>...};
}

void Weigh(const float* weights, uint32_t rows, const ValueRun* runs, uint32_t num_tokens,
           uint32_t dims, float* records, uint32_t record_stride) {
  using Heights = std::make_integer_sequence<int, kValueRows>;
  using HalfTag = hn::CappedTag<float, 8>;
  static constexpr std::array<WeighFunction, kValueRows> kFull[] = {
    WeighTable<F32Tag, 1>(Heights()),
    WeighTable<F32Tag, 2>(Heights()),
#if HWY_MAX_BYTES == 64
    WeighTable<F32Tag, 3>(Heights()),
    WeighTable<F32Tag, 4>(Heights()),
#endif
  };
  static_assert(std::size(kFull) == kValueColumns);
  static constexpr auto kHalf = WeighTable<HalfTag, 1>(Heights());
  for (size_t column = 0; column < dims;) {
    const size_t vectors = std::min<size_t>((dims - column) / kLanes, kValueColumns);
    const auto* table = vectors > 0 ? &kFull[vectors - 1] : &kHalf;  // head_dim % 16 == 8
    (*table)[rows - 1](weights, runs, column, num_tokens, dims, records, record_stride);
    column += vectors > 0 ? vectors * kLanes : hn::MaxLanes(HalfTag());
  }
}

// ---- records ----------------------------------------------------------------------------------

// Records are padded to 16 floats and {m, l} come last, so whole vectors would run over them; heads
// have multiples of 8 dimensions.
using RecordTag = hn::CappedTag<float, 8>;

void Fold(float* HWY_RESTRICT record, const float* HWY_RESTRICT next, uint32_t dims) {
  const RecordTag d;
  float *m = record + dims, *l = record + dims + 1;
  const float largest = std::max(*m, next[dims]);
  const float a = Exp2(*m - largest), b = Exp2(next[dims] - largest);
  const auto va = hn::Set(d, a), vb = hn::Set(d, b);
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(RecordTag())) {
    const auto scaled = hn::Mul(hn::LoadU(d, next + i), vb);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, record + i), va, scaled), d, record + i);
  }
  *m = largest;
  *l = std::fma(*l, a, next[dims + 1] * b);
}

void Normalize(const float* HWY_RESTRICT record, uint32_t dims, float* HWY_RESTRICT out) {
  const RecordTag d;
  const auto l = hn::Set(d, record[dims + 1]);
  for (uint32_t i = 0; i < dims; i += hn::MaxLanes(RecordTag()))
    hn::StoreU(hn::Div(hn::LoadU(d, record + i), l), d, out + i);
}

// ---- rows -------------------------------------------------------------------------------------

// y0 = x0 cos - x1 sin, y1 = x0 sin + x1 cos, with the first product of each fused: the bits that
// compilers make of ggml's loop where they may contract.
HWY_INLINE void RotatePair(float x0, float x1, float c, float s, float* y0, float* y1) {
  *y0 = std::fma(x0, c, -(x1 * s));
  *y1 = std::fma(x0, s, x1 * c);
}

// Pairs (i, i + num_rot / 2).
void RotateNeox(const float* x, const float* cos_sin, uint32_t num_rot, float* out) {
  const F32Tag d;
  const uint32_t half = num_rot / 2;
  uint32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    F32Vec<F32Tag> c, s;
    hn::LoadInterleaved2(d, cos_sin + 2 * i, c, s);
    const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + half + i);
    hn::StoreU(hn::MulSub(x0, c, hn::Mul(x1, s)), d, out + i);
    hn::StoreU(hn::MulAdd(x0, s, hn::Mul(x1, c)), d, out + half + i);
  }
  for (; i < half; i++)
    RotatePair(x[i], x[half + i], cos_sin[2 * i], cos_sin[2 * i + 1], out + i, out + half + i);
}

// Pairs (2i, 2i + 1).
void RotateAdjacent(const float* x, const float* cos_sin, uint32_t num_rot, float* out) {
  const F32Tag d;
  uint32_t i = 0;
  for (; i + kLanes <= num_rot; i += kLanes) {
    const auto pair = hn::LoadU(d, x + i), cs = hn::LoadU(d, cos_sin + i);
    const auto sc = hn::Shuffle2301(cs);
    const auto minus_s_c = hn::OddEven(sc, hn::Neg(sc));  // even lanes: -sin, odd lanes: cos
    const auto product = hn::Mul(hn::DupOdd(pair), minus_s_c);
    hn::StoreU(hn::MulAdd(hn::DupEven(pair), cs, product), d, out + i);
  }
  for (; i < num_rot; i += 2)
    RotatePair(x[i], x[i + 1], cos_sin[i], cos_sin[i + 1], out + i, out + i + 1);
}

void Rotate(const float* x, const float* cos_sin, bool neox, uint32_t num_rot, uint32_t dims,
            float* out) {
  (neox ? RotateNeox : RotateAdjacent)(x, cos_sin, num_rot, out);
  if (out != x) std::copy(x + num_rot, x + dims, out + num_rot);
}

void ToKv(const float* HWY_RESTRICT x, uint32_t n, uint16_t* HWY_RESTRICT out) {
  const RecordTag d;  // n is a multiple of 8
  for (uint32_t i = 0; i < n; i += hn::MaxLanes(RecordTag()))
    StoreKv(d, hn::LoadU(d, x + i), out + i);
}

}  // namespace

const TileKernels& Table() {
  static constexpr TileKernels kTable = {
#if HWY_TARGET == HWY_AVX3
    Isa::kAvx512,
#elif HWY_TARGET == HWY_AVX2
    Isa::kAvx2,
#elif HWY_TARGET == HWY_NEON
    Isa::kNeon,
#else
    Isa::kBaseline,
#endif
    kScoreRows,
    kValueRows,
    &Score,
    &Softcap,
    &Softmax,
    &Weigh,
    &Fold,
    &Normalize,
    &Rotate,
    &ToKv,
  };
  return kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
