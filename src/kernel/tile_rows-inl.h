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

// How softmax leaves a row's weights, in place of its scores.
struct FloatWeights {
  static void Store(float*, const RowRange&, const uint16_t*, float*) {}
};

// Weights times the value's scale, as int16 of the largest one's 1/32767.
struct Int16Weights {
  static void Store(float* HWY_RESTRICT weights, const RowRange& range,
                    const uint16_t* HWY_RESTRICT value_scales, float* weight_scale) {
    const F32Tag d;
    const hn::Rebind<int16_t, F32Tag> d16;
    const uint32_t from = range.begin / kSumLanes * kSumLanes;
    auto largest = hn::Zero(d);
    for (uint32_t t = from; t < range.end; t += kLanes) {
      const auto valid = hn::FirstN(d, range.end - t);
      const auto scale = hn::IfThenElseZero(valid, F16Elements::Load(d, value_scales + t));
      const auto weight = hn::LoadU(d, weights + t);
      // Before the row's begin the weight is 0 but the scale may be anything.
      const auto scaled = hn::IfThenElseZero(hn::Gt(weight, hn::Zero(d)), hn::Mul(weight, scale));
      hn::StoreU(scaled, d, weights + t);
      largest = hn::Max(largest, scaled);
    }
    const float max = hn::GetLane(hn::MaxOfLanes(d, largest));
    const auto inverse = hn::Set(d, max > 0 ? 32767.0f / max : 0.0f);
    auto* out = reinterpret_cast<int16_t*>(weights);
    // Ascending, two bytes for four: nothing is overwritten before it is read.
    for (uint32_t t = range.zero_from / kSumLanes * kSumLanes; t < range.zero_until; t += kLanes) {
      const auto weight = hn::NearestInt(hn::Mul(hn::LoadU(d, weights + t), inverse));
      hn::StoreU(hn::DemoteTo(d16, weight), d16, out + t);
    }
    *weight_scale = max / 32767.0f;
  }
};

// Lane t % 16 of the sums takes position t of the chunk, whatever the range.
template <class Form>
void Softmax(float* HWY_RESTRICT scores, const RowRange& range, const uint16_t* value_scales,
             float* m, float* l, float* weight_scale) {
  const F32Tag d;
  const uint32_t begin = range.begin, end = range.end;
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
  const uint32_t zero_from = range.zero_from / kSumLanes * kSumLanes;
  if (zero_from < first) std::fill(scores + zero_from, scores + first, 0.0f);
  for (t = (end + kSumLanes - 1) / kSumLanes * kSumLanes; t < range.zero_until; t += kLanes)
    hn::StoreU(hn::Zero(d), d, scores + t);
  *m = hn::GetLane(max);
  *l = SumOf16(sums);
  Form::Store(scores, range, value_scales, weight_scale);
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
