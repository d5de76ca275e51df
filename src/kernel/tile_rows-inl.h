// What the kernels of every KV type do to one row: cap, softmax, fold, normalise, rotate.
#if defined(KVLINK_KERNEL_TILE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_ROWS_INL_H_
#undef KVLINK_KERNEL_TILE_ROWS_INL_H_
#else
#define KVLINK_KERNEL_TILE_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernel/simd-inl.h"
#include "kernel/tile_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace {

// Position t of a chunk goes to lane t % 32 of a row's sums, on every instruction set.
inline constexpr uint32_t kSumLanes = 32;
inline constexpr int kSumVectors = static_cast<int>(kSumLanes / kLanes);
constexpr uint32_t RoundDown(uint32_t t) { return t / kSumLanes * kSumLanes; }
constexpr uint32_t RoundUp(uint32_t t) { return RoundDown(t + kSumLanes - 1); }
static_assert(kScoreStride >= kChunkTokens && kChunkTokens % kSumLanes == 0);

using SumVectors = F32Vec<F32Tag>[kSumVectors];

// By halves: (i, i + 16), (i, i + 8), (i, i + 4), then two pairs.
template <class Operation>
HWY_INLINE float Reduce(const SumVectors& lanes, const Operation& operation) {
  const hn::CappedTag<float, 4> d4;
  SumVectors v;
  HWY_UNROLL(8)
  for (int i = 0; i < kSumVectors; i++) v[i] = lanes[i];
  HWY_UNROLL(4)
  for (int half = kSumVectors / 2; half > 0; half /= 2) {
    HWY_UNROLL(4)
    for (int i = 0; i < half; i++) v[i] = operation(v[i], v[i + half]);
  }
#if HWY_MAX_BYTES >= 64
  const hn::CappedTag<float, 8> d8;
  const auto v8 = operation(hn::LowerHalf(d8, v[0]), hn::UpperHalf(d8, v[0]));
  const auto v4 = operation(hn::LowerHalf(d4, v8), hn::UpperHalf(d4, v8));
#elif HWY_MAX_BYTES >= 32
  const auto v4 = operation(hn::LowerHalf(d4, v[0]), hn::UpperHalf(d4, v[0]));
#else
  const auto v4 = v[0];
#endif
  const auto pairs = operation(v4, hn::Shuffle1032(v4));
  return hn::GetLane(operation(pairs, hn::Shuffle2301(pairs)));
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

HWY_INLINE float LargestScore(const float* HWY_RESTRICT scores, uint32_t first, uint32_t last) {
  const F32Tag d;
  SumVectors largest;
  HWY_UNROLL(8)
  for (int i = 0; i < kSumVectors; i++) largest[i] = hn::LoadU(d, scores + first + i * kLanes);
  for (uint32_t t = first + kSumLanes; t < last; t += kSumLanes) {
    HWY_UNROLL(8)
    for (int i = 0; i < kSumVectors; i++)
      largest[i] = hn::Max(largest[i], hn::LoadU(d, scores + t + i * kLanes));
  }
  return Reduce(largest, [](auto a, auto b) { return hn::Max(a, b); });
}

HWY_INLINE float SumOf(const SumVectors& lanes) {
  return Reduce(lanes, [](auto a, auto b) { return hn::Add(a, b); });
}

// Scores -> 2^(s - max), times the values' scales where weights are scaled. Returns the sum before
// scaling, and the largest one after.
template <bool kScaled>
HWY_INLINE float Weights(float* HWY_RESTRICT scores, uint32_t first, uint32_t last, float max,
                         const uint16_t* HWY_RESTRICT value_scales, float* largest) {
  const F32Tag d;
  const auto vmax = hn::Set(d, max);
  SumVectors sums, most;
  HWY_UNROLL(8)
  for (int i = 0; i < kSumVectors; i++) sums[i] = most[i] = hn::Zero(d);
  for (uint32_t t = first; t < last; t += kSumLanes) {
    HWY_UNROLL(8)
    for (int i = 0; i < kSumVectors; i++) {
      const uint32_t at = t + static_cast<uint32_t>(i * kLanes);
      auto weights = Exp2(d, hn::Sub(hn::LoadU(d, scores + at), vmax));
      sums[i] = hn::Add(sums[i], weights);
      if constexpr (kScaled) {
        // Where a row sees nothing its weight is 0, and the scale may be anything.
        const auto scale = F16Elements::Load(d, value_scales + at);
        weights = hn::IfThenElseZero(hn::Gt(weights, hn::Zero(d)), hn::Mul(weights, scale));
        most[i] = hn::Max(most[i], weights);
      }
      hn::StoreU(weights, d, scores + at);
    }
  }
  if constexpr (kScaled) *largest = Reduce(most, [](auto a, auto b) { return hn::Max(a, b); });
  return SumOf(sums);
}

// How softmax leaves weights, in place of scores. Weigh turns a row's scores in [first, last),
// whole vectors, into weights relative to `max` and returns their sum; End gives them their form
// and positions beside them in [zero_from, zero_until) the weight 0. As floats,
struct FloatWeights {
  static constexpr bool kScaled = false;
  static HWY_INLINE float Weigh(float* scores, uint32_t first, uint32_t last, float max,
                                const uint16_t* value_scales, float* largest) {
    return Weights<false>(scores, first, last, max, value_scales, largest);
  }
  static void End(float* weights, uint32_t zero_from, uint32_t first, uint32_t last,
                  uint32_t zero_until, float) {
    if (zero_from < first) std::fill(weights + zero_from, weights + first, 0.0f);
    if (last < zero_until) std::fill(weights + last, weights + zero_until, 0.0f);
  }
};

// or times the value's scale, as int16 of the largest one's 1/32767.
struct Int16Weights {
  static constexpr bool kScaled = true;
  static HWY_INLINE float Weigh(float* scores, uint32_t first, uint32_t last, float max,
                                const uint16_t* value_scales, float* largest) {
    return Weights<true>(scores, first, last, max, value_scales, largest);
  }
  static HWY_INLINE void End(float* HWY_RESTRICT weights, uint32_t zero_from, uint32_t first,
                             uint32_t last, uint32_t zero_until, float largest) {
    FloatWeights::End(weights, zero_from, first, last, zero_until, largest);
    const F32Tag d;
    const hn::Rebind<int16_t, F32Tag> d16;
    const auto inverse = hn::Set(d, largest > 0 ? 32767.0f / largest : 0.0f);
    auto* out = reinterpret_cast<int16_t*>(weights);
    // Ascending, two bytes for four: nothing is overwritten before it is read.
    for (uint32_t t = zero_from; t < zero_until; t += kLanes) {
      const auto weight = hn::NearestInt(hn::Mul(hn::LoadU(d, weights + t), inverse));
      hn::StoreU(hn::DemoteTo(d16, weight), d16, out + t);
    }
  }
};

// Each pass takes all rows, so that the processor need not wait for the end of one row's reduction.
template <class Form>
void Softmax(float* scores, uint32_t rows, const RowRange& range, const uint16_t* value_scales,
             float* m_l, size_t m_l_stride, float* weight_scales) {
  const float infinity = std::numeric_limits<float>::infinity();
  const uint32_t first = RoundDown(range.begin), last = RoundUp(range.end);
  for (uint32_t r = 0; r < rows; r++) {
    float* row = scores + r * kScoreStride;
    // What is not seen gets weight 0.
    if (first < range.begin) std::fill(row + first, row + range.begin, -infinity);
    if (range.end < last) std::fill(row + range.end, row + last, -infinity);
    m_l[r * m_l_stride] = LargestScore(row, first, last);
  }
  for (uint32_t r = 0; r < rows; r++) {
    float* state = m_l + r * m_l_stride;
    state[1] = Form::Weigh(scores + r * kScoreStride, first, last, state[0], value_scales,
                           weight_scales + r);
  }
  // To whole vectors: weigh may read one position more than it is asked for.
  const uint32_t zero_from = RoundDown(range.zero_from), zero_until = RoundUp(range.zero_until);
  for (uint32_t r = 0; r < rows; r++) {
    Form::End(scores + r * kScoreStride, zero_from, first, last, zero_until, weight_scales[r]);
    if constexpr (Form::kScaled) weight_scales[r] /= 32767.0f;
  }
}

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
