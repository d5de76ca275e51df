// Tiles of the int8 product, compiled once per instruction set (Highway's foreach_target pattern).
//
// A tile is a few activation rows x a few columns of outputs (a column is one vector of floats).
// For every block of 32 inputs, eight weight vectors a column are unpacked once and meet every row;
// then one conversion and two or three multiplications add the block to the accumulators. All of
// that is exact integer arithmetic up to the conversion, so that instruction sets agree to the last
// bit. Without vectors of ours (packed_dot-inl.h) the same sums are made in plain C++.
#if defined(KVLINK_KERNEL_PACKED_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_PACKED_INT8_INL_H_
#undef KVLINK_KERNEL_PACKED_INT8_INL_H_
#else
#define KVLINK_KERNEL_PACKED_INT8_INL_H_
#endif

#include "kernel/packed_dot-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512bf16")
#endif
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Weights to fetch into the cache on the way: `step` bytes for every block, or chunk of
// floats, of a tile.
struct Ahead {
  const uint8_t* next = nullptr;
  size_t step = 0;

  HWY_INLINE void Step() {
    for (size_t at = 0; at < step; at += 64) hwy::Prefetch(next + at);
    next += step;
  }
};

struct IntTile {
  const uint8_t* w;    // the panel, at its first group to multiply
  uint32_t column;     // the first
  const std::byte* x;  // first row, at its first block to multiply
  size_t x_stride;
  uint32_t blocks;
  // Sums so far and sums, of a row each, from the panel's first output on; strides in floats. With
  // kSumsInMemory the same, kPanelRows apart.
  const float* from;
  size_t from_stride;
  float* to;
  size_t to_stride;
  Ahead ahead;
};

#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON

#define KVLINK_UNROLL _Pragma("GCC unroll 16")

template <WeightType kType, uint32_t kRows, uint32_t kColumns>
struct IntTileOf {
  static constexpr PackedLayout kLayout = LayoutOf(kType);
  using Sums = VI[kRows][kColumns];

  // The sums of the blocks so far.
  struct Accumulators {
    VF v[kRows][kColumns];
    const float* from;
    float* to;
    size_t from_stride, to_stride;

    HWY_INLINE explicit Accumulators(const IntTile& a)
        : from(a.from + a.column * kColumnLanes),
          to(a.to + a.column * kColumnLanes),
          from_stride(a.from_stride),
          to_stride(a.to_stride) {}

    HWY_INLINE VF Get(uint32_t t, uint32_t c) const {
      if constexpr (!kSumsInMemory) return v[t][c];
      return hn::LoadU(IntF(), to + t * kPanelRows + c * kColumnLanes);
    }
    HWY_INLINE void Set(uint32_t t, uint32_t c, VF sum) {
      if constexpr (kSumsInMemory)
        return hn::StoreU(sum, IntF(), to + t * kPanelRows + c * kColumnLanes);
      v[t][c] = sum;
    }
    HWY_INLINE void Load() {
      if constexpr (kSumsInMemory) return;
      KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++)
          KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) v[t][c] =
              hn::LoadU(IntF(), from + t * from_stride + c * kColumnLanes);
    }
    HWY_INLINE void Store() const {
      if constexpr (kSumsInMemory) return;
      KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++)
          KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++)
              hn::StoreU(v[t][c], IntF(), to + t * to_stride + c * kColumnLanes);
    }
  };

  const uint8_t* column[kColumns];  // at the current group
  uint32_t lane[kColumns];          // of a column in its half
  const std::byte* x;
  size_t x_stride;

  HWY_INLINE explicit IntTileOf(const IntTile& a) : x(a.x), x_stride(a.x_stride) {
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
      const uint32_t first = (a.column + c) * kColumnLanes;
      column[c] = a.w + first / kLanes16 * kLayout.half_bytes();
      lane[c] = first % kLanes16;
    }
  }

  HWY_INLINE const QuantBlock& Block(uint32_t t, uint32_t b) const {
    return reinterpret_cast<const QuantBlock*>(x + t * x_stride)[b];
  }

  // Four inputs of a row, in every lane.
  HWY_INLINE VI Group(uint32_t t, uint32_t b, uint32_t j) const {
    int32_t group;
    std::memcpy(&group, Block(t, b).q + 4 * j, 4);
    return hn::Set(IntI(), group);
  }

  template <uint32_t kJ>
  HWY_INLINE VU8 Weights(uint32_t c, uint32_t i) const {
    return Unpack<kType, kJ>(column[c] + i * kLayout.quant_bytes() + lane[c] * 4);
  }

  // The order in which a block's vectors are taken: j and j + 4 share stored nibbles.
  static constexpr uint32_t Vector(uint32_t n) { return kLayout.pairs() ? n : n % 2 * 4 + n / 2; }

#if HWY_TARGET <= HWY_AVX3_DL || HWY_TARGET == HWY_NEON
  template <uint32_t kJ>
  HWY_INLINE void Step(uint32_t b, uint32_t i, Sums& sums) const {
    VU8 u[kColumns];
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) u[c] = Weights<kJ>(c, i);
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const VI group = Group(t, b, kJ);
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) sums[t][c] =
          Dot(sums[t][c], u[c], group);
    }
  }

  // Adds sizeof...(kN) vectors from the kFirst-th on.
  template <uint32_t kFirst, uint32_t... kN>
  HWY_INLINE void AddVectors(uint32_t b, uint32_t i, Sums& sums,
                             std::integer_sequence<uint32_t, kN...>) const {
    (Step<Vector(kFirst + kN)>(b, i, sums), ...);
  }
#else
  using PairArray = VI16[kRows][kColumns];

  template <uint32_t kJ, bool kFirst, bool kLast>
  HWY_INLINE void Step(uint32_t b, uint32_t i, PairArray& pairs, Sums& sums) const {
    VU8 u[kColumns];
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) u[c] = Weights<kJ>(c, i);
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const VI group = Group(t, b, kJ);
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
        const VI16 v = kLayout.bits == 8 ? SignedPairs(u[c], group) : Pairs(u[c], group);
        if constexpr (kFirst) {
          pairs[t][c] = v;
        } else {
          pairs[t][c] = hn::Add(pairs[t][c], v);
        }
        AddNow(pairs[t][c]);
        if constexpr (kLast) {
          sums[t][c] = hn::Add(sums[t][c], PairSums(pairs[t][c]));
          AddNow(sums[t][c]);
        }
      }
    }
  }

  template <uint32_t kFirst, uint32_t... kN>
  HWY_INLINE void AddVectors(uint32_t b, uint32_t i, Sums& sums,
                             std::integer_sequence<uint32_t, kN...>) const {
    constexpr uint32_t kSteps = PairSteps(kLayout.bits);
    PairArray pairs;
    (Step<Vector(kFirst + kN), kN % kSteps == 0, kN % kSteps == kSteps - 1>(b, i, pairs, sums),
     ...);
  }
#endif

  // Sums begin at the bits of the float 1.5 * 2^23, so that a subtraction makes floats of them: all
  // are below 2^22. Conversions share pipes with dot products on some processors, subtractions do
  // not.
  static constexpr int32_t kSumBase = 0x4b400000;
  static HWY_INLINE VF Floats(VI sum) {
    return hn::Sub(hn::BitCast(IntF(), sum), hn::Set(IntF(), 12582912.0f));
  }

  // What the unsigned weights have too much, taken off the sums; see PackedLayout::offset_bits.
  HWY_INLINE VI Offset(int32_t minus_sum) const {
    const VI base = hn::Set(IntI(), kSumBase);
    if constexpr (kLayout.affine() || (kLayout.bits == 8 && kSignedBytes)) {
      return base;
    } else {
      return hn::Add(hn::ShiftLeft<kLayout.offset_bits>(hn::Set(IntI(), minus_sum)), base);
    }
  }

  HWY_INLINE VF Half(uint32_t c, size_t at) const {
    const hn::Rebind<hwy::float16_t, IntF> dh;
    const auto* p = reinterpret_cast<const hwy::float16_t*>(column[c] + at) + lane[c];
    return hn::PromoteTo(IntF(), hn::LoadU(dh, p));
  }

  template <typename T>
  HWY_INLINE VF Bytes(uint32_t c, size_t at) const {
    const hn::Rebind<T, IntF> d8;
    const auto* p = reinterpret_cast<const T*>(column[c] + at) + lane[c];
    return hn::ConvertTo(IntF(), hn::PromoteTo(IntI(), hn::LoadU(d8, p)));
  }

  HWY_INLINE VF Scale(uint32_t c, uint32_t i) const {
    const size_t at = kLayout.scales_of(i);
    if constexpr (kLayout.scales == ScaleKind::kSuper) {
      return hn::Mul(Bytes<uint8_t>(c, at), Half(c, kLayout.scales_of(kLayout.group)));
    } else {
      return Half(c, at);
    }
  }

  // m of w = d u + m
  HWY_INLINE VF Minimum(uint32_t c, uint32_t i) const {
    if constexpr (kLayout.scales == ScaleKind::kSuper) {
      return hn::Neg(hn::Mul(Bytes<uint8_t>(c, kLayout.scales_of(i) + kLanes16),
                             Half(c, kLayout.scales_of(kLayout.group) + 2 * kLanes16)));
    } else {
      return Half(c, kLayout.scales_of(i) + 2 * kLanes16);
    }
  }

  HWY_INLINE VF PairScale(uint32_t c, uint32_t i, uint32_t k) const {
    return hn::Mul(Bytes<int8_t>(c, kLayout.scales_of(i) + k * kLanes16),
                   Half(c, kLayout.scales_of(kLayout.group)));
  }

  HWY_INLINE void AddBlock(uint32_t b, uint32_t i, Accumulators& acc) const {
    const IntF df;
    Sums sums;
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const VI offset = Offset(Block(t, b).minus_sum);
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) sums[t][c] = offset;
    }
    AddVectors<0>(b, i, sums, std::make_integer_sequence<uint32_t, 8>());
    VF d[kColumns], m[kColumns];
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
      d[c] = Scale(c, i);
      m[c] = kLayout.affine() ? Minimum(c, i) : d[c];
    }
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const VF scale = hn::Set(df, Block(t, b).scale);
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
        VF sum = hn::MulAdd(Floats(sums[t][c]), hn::Mul(d[c], scale), acc.Get(t, c));
        if constexpr (kLayout.affine())
          sum = hn::MulAdd(m[c], hn::Set(df, Block(t, b).scaled_sum), sum);
        acc.Set(t, c, sum);
      }
    }
  }

  // A block whose halves have their own scales.
  HWY_INLINE void AddPairedBlock(uint32_t b, uint32_t i, Accumulators& acc) const {
    const IntF df;
    KVLINK_UNROLL for (uint32_t k = 0; k < 2; k++) {
      Sums sums;
      KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
        const QuantBlock& q = Block(t, b);
        const VI offset = Offset(k == 1 ? q.minus_sum_end : q.minus_sum - q.minus_sum_end);
        KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) sums[t][c] = offset;
      }
      constexpr auto kFour = std::make_integer_sequence<uint32_t, 4>();
      if (k == 0) AddVectors<0>(b, i, sums, kFour);
      if (k == 1) AddVectors<4>(b, i, sums, kFour);
      VF d[kColumns];
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) d[c] = PairScale(c, i, k);
      KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
        const VF scale = hn::Set(df, Block(t, b).scale);
        KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++)
            acc.Set(t, c, hn::MulAdd(Floats(sums[t][c]), hn::Mul(d[c], scale), acc.Get(t, c)));
      }
    }
  }
};

template <WeightType kType, uint32_t kRows>
HWY_INLINE void MultiplyIntTile(const IntTile& a) {
  constexpr uint32_t kColumns = IntTileColumns(kRows);
  using Tile = IntTileOf<kType, kRows, kColumns>;
  constexpr PackedLayout kLayout = LayoutOf(kType);
  Tile tile(a);
  Ahead ahead = a.ahead;
  typename Tile::Accumulators acc(a);
  acc.Load();
  for (uint32_t first = 0; first < a.blocks; first += kLayout.group) {
    const uint32_t num = std::min(kLayout.group, a.blocks - first);
    for (uint32_t i = 0; i < num; i++) {
      ahead.Step();
      if constexpr (kLayout.pairs()) {
        tile.AddPairedBlock(first + i, i, acc);
      } else {
        tile.AddBlock(first + i, i, acc);
      }
    }
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) tile.column[c] += kLayout.group_bytes();
  }
  acc.Store();
}

#undef KVLINK_UNROLL

#else  // plain C++

constexpr uint32_t kColumnLanes = kLanes16;
constexpr uint32_t kPanelColumns = kPanelRows / kColumnLanes;
constexpr bool kSumsInMemory = false;
constexpr uint32_t IntTileRows(uint32_t) { return 1; }
constexpr uint32_t IntTileColumns(uint32_t) { return 1; }

// Weight `k` of block i of a half's lane.
template <WeightType kType>
int32_t WeightAt(const uint8_t* half, uint32_t i, uint32_t lane, uint32_t k) {
  constexpr PackedLayout kLayout = LayoutOf(kType);
  const uint32_t j = k / 4, at = lane * 4 + k % 4;
  const uint8_t* quants = half + i * kLayout.quant_bytes();
  if constexpr (kLayout.bits == 8) return quants[j * 64 + at];
  const int32_t low = quants[j % 4 * 64 + at] >> (j < 4 ? 0 : 4) & 15;
  if constexpr (kLayout.bits == 5) return low | (quants[256 + at] >> j & 1) << 4;
  if constexpr (kLayout.bits == 6)
    return low | (quants[256 + j / 4 * 64 + at] >> 2 * (j % 4) & 3) << 4;
  return low;
}

inline float HalfAt(const uint8_t* p, uint32_t lane) {
  uint16_t bits;
  std::memcpy(&bits, p + 2 * lane, 2);
  return F16ToF32(bits);
}

template <WeightType kType>
float AddBlock(const uint8_t* half, uint32_t i, uint32_t lane, const QuantBlock& x, float acc) {
  constexpr PackedLayout kLayout = LayoutOf(kType);
  const uint8_t* scales = half + kLayout.scales_of(i);
  const uint8_t* super = half + kLayout.scales_of(kLayout.group);
  constexpr uint32_t kParts = kLayout.pairs() ? 2 : 1;
  for (uint32_t part = 0; part < kParts; part++) {
    int32_t sum = 0;
    for (uint32_t k = part * 16; k < (part + 1) * 32 / kParts; k++) {
      const int32_t offset = kLayout.affine() ? 0 : 1 << kLayout.offset_bits;
      sum += (WeightAt<kType>(half, i, lane, k) - offset) * x.q[k];
    }
    float d;
    if constexpr (kLayout.scales == ScaleKind::kSuper) {
      d = static_cast<float>(scales[lane]) * HalfAt(super, lane);
    } else if constexpr (kLayout.pairs()) {
      d = static_cast<float>(static_cast<int8_t>(scales[part * 16 + lane])) * HalfAt(super, lane);
    } else {
      d = HalfAt(scales, lane);
    }
    acc = __builtin_fmaf(static_cast<float>(sum), d * x.scale, acc);
  }
  if constexpr (kLayout.affine()) {
    const float m = kLayout.scales == ScaleKind::kSuper
                        ? -(static_cast<float>(scales[16 + lane]) * HalfAt(super + 32, lane))
                        : HalfAt(scales + 32, lane);
    acc = __builtin_fmaf(m, x.scaled_sum, acc);
  }
  return acc;
}

template <WeightType kType, uint32_t kRows>
void MultiplyIntTile(const IntTile& a) {
  constexpr PackedLayout kLayout = LayoutOf(kType);
  const auto* x = reinterpret_cast<const QuantBlock*>(a.x);
  for (uint32_t lane = 0; lane < kLanes16; lane++) {
    float acc = a.from[a.column * kLanes16 + lane];
    const uint8_t* half = a.w + a.column * kLayout.half_bytes();
    for (uint32_t b = 0; b < a.blocks; b++) {
      acc = AddBlock<kType>(half + b / kLayout.group * kLayout.group_bytes(), b % kLayout.group,
                            lane, x[b], acc);
    }
    a.to[a.column * kLanes16 + lane] = acc;
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
