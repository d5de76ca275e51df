// Tiles of the products with float weights, compiled once per instruction set (Highway's
// foreach_target pattern).
//
// Every kChunk inputs are summed by fused multiply-adds in order, and the sums of the chunks
// are added in order: more exact than one long sum, and with few rows several chunks can be under
// way at once without changing a bit.
#if defined(KVLINK_KERNEL_PACKED_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_PACKED_FLOAT_INL_H_
#undef KVLINK_KERNEL_PACKED_FLOAT_INL_H_
#else
#define KVLINK_KERNEL_PACKED_FLOAT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512bf16")
#endif
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct FloatTile {
  const uint8_t* w;    // the panel, at the first input to multiply
  uint32_t column;     // the first
  const std::byte* x;  // first row, at the first input to multiply
  size_t x_stride;
  uint32_t inputs;
  float* acc;   // [rows][kPanelRows]: added to
  Ahead ahead;  // a step for every kStreams chunks
};

#define KVLINK_UNROLL _Pragma("GCC unroll 16")

using FloatD = hn::CappedTag<float, 16>;
using FloatV = hn::Vec<FloatD>;
constexpr uint32_t kFloatLanes = hn::MaxLanes(FloatD());
constexpr uint32_t kFloatPanelColumns = kPanelRows / kFloatLanes;

#if HWY_TARGET <= HWY_AVX3
constexpr uint32_t kFloatTileRows = 12;
constexpr uint32_t FloatTileColumns(uint32_t) { return 2; }
#elif HWY_TARGET == HWY_AVX2
constexpr uint32_t kFloatTileRows = 6;
constexpr uint32_t FloatTileColumns(uint32_t rows) { return rows == 1 ? 4 : 2; }
#else
constexpr uint32_t kFloatTileRows = 4;
constexpr uint32_t FloatTileColumns(uint32_t) { return kFloatPanelColumns < 4 ? 2 : 4; }
#endif

// Chunks under way at once.
constexpr uint32_t FloatStreams(uint32_t rows) { return rows <= 2 ? 2 : 1; }

// How weights of a type are multiplied: Step adds `kInputs` inputs.
template <WeightType kType>
struct FloatSteps {
  static constexpr uint32_t kInputs = 1;
  static constexpr uint32_t kChunk = kType == WeightType::kF32 ? 16 : 64;
  static constexpr size_t kInputBytes = sizeof(float);  // of an activation
  template <uint32_t kRows, uint32_t kColumns>
  HWY_INLINE static void Step(const uint8_t* w, const std::byte* x, size_t x_stride,
                              FloatV (&acc)[kRows][kColumns]) {
    const FloatD df;
    FloatV v[kColumns];
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
      if constexpr (kType == WeightType::kF16) {
        const hn::Rebind<hwy::float16_t, FloatD> dh;
        v[c] = hn::PromoteTo(
            df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(w) + c * kFloatLanes));
      } else {
        v[c] = hn::LoadU(df, reinterpret_cast<const float*>(w) + c * kFloatLanes);
      }
    }
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const FloatV input = hn::Set(df, *reinterpret_cast<const float*>(x + t * x_stride));
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) acc[t][c] =
          hn::MulAdd(v[c], input, acc[t][c]);
    }
  }
};

template <>
struct FloatSteps<WeightType::kBF16> {
  static constexpr uint32_t kInputs = 2;
  static constexpr uint32_t kChunk = 64;
  static constexpr size_t kInputBytes = sizeof(float);
  template <uint32_t kRows, uint32_t kColumns>
  HWY_INLINE static void Step(const uint8_t* w, const std::byte* x, size_t x_stride,
                              FloatV (&acc)[kRows][kColumns]) {
    const FloatD df;
    const hn::Repartition<uint32_t, FloatD> du;
    FloatV even[kColumns], odd[kColumns];
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
      const auto pair = hn::LoadU(du, reinterpret_cast<const uint32_t*>(w) + c * kFloatLanes);
      even[c] = hn::BitCast(df, hn::ShiftLeft<16>(pair));
      odd[c] = hn::BitCast(df, hn::And(pair, hn::Set(du, 0xffff0000u)));
    }
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const auto* input = reinterpret_cast<const float*>(x + t * x_stride);
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
        acc[t][c] = hn::MulAdd(even[c], hn::Set(df, input[0]), acc[t][c]);
        acc[t][c] = hn::MulAdd(odd[c], hn::Set(df, input[1]), acc[t][c]);
      }
    }
  }
};

#if HWY_TARGET == HWY_AVX3_DL
struct NativeBF16Steps {
  static constexpr uint32_t kInputs = 2;
  static constexpr uint32_t kChunk = 64;
  static constexpr size_t kInputBytes = 2;
  template <uint32_t kRows, uint32_t kColumns>
  HWY_INLINE static void Step(const uint8_t* w, const std::byte* x, size_t x_stride,
                              FloatV (&acc)[kRows][kColumns]) {
    __m512i v[kColumns];
    KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) v[c] = _mm512_loadu_si512(w + c * 64);
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      const __m512i pair = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x + t * x_stride));
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) acc[t][c].raw = _mm512_dpbf16_ps(
          acc[t][c].raw, reinterpret_cast<__m512bh>(v[c]), reinterpret_cast<__m512bh>(pair));
    }
  }
};
#endif

template <uint32_t kRows>
using FloatSums = FloatV[kRows][FloatTileColumns(kRows)];

// Adds kStreams chunks of `inputs` inputs each to the sums of their group.
template <class Steps, size_t kWeightBytes, uint32_t kRows, uint32_t kStreams>
HWY_INLINE void AddChunks(const uint8_t* w, const std::byte* x, size_t x_stride, uint32_t inputs,
                          FloatSums<kRows>& sums) {
  constexpr size_t kInputStep = kPanelRows * kWeightBytes;
  constexpr uint32_t kColumns = FloatTileColumns(kRows);
  FloatSums<kRows> acc[kStreams];
  KVLINK_UNROLL for (uint32_t s = 0; s < kStreams; s++)
      KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++)
          KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) acc[s][t][c] = hn::Zero(FloatD());
  for (uint32_t i = 0; i < inputs; i += Steps::kInputs) {
    KVLINK_UNROLL for (uint32_t s = 0; s < kStreams; s++)
        Steps::Step(w + (i + s * Steps::kChunk) * kInputStep,
                    x + (i + s * Steps::kChunk) * Steps::kInputBytes, x_stride, acc[s]);
  }
  KVLINK_UNROLL for (uint32_t s = 0; s < kStreams; s++)
      KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++)
          KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) sums[t][c] =
              hn::Add(sums[t][c], acc[s][t][c]);
}

// a.inputs begin at a whole group.
template <class Steps, size_t kWeightBytes, uint32_t kRows>
HWY_INLINE void MultiplyFloatTile(const FloatTile& a) {
  constexpr uint32_t kStreams = FloatStreams(kRows), kColumns = FloatTileColumns(kRows);
  constexpr uint32_t kChunk = Steps::kChunk, kChunks = kStreams * kChunk;
  static_assert(kFloatGroup % kChunks == 0);
  const FloatD df;
  Ahead ahead = a.ahead;
  const uint8_t* w = a.w + a.column * kFloatLanes * kWeightBytes * Steps::kInputs;
  float* acc = a.acc + a.column * kFloatLanes;
  const auto weights = [&](uint32_t i) { return w + size_t{i} * kPanelRows * kWeightBytes; };
  const auto input = [&](uint32_t i) { return a.x + i * Steps::kInputBytes; };
  for (uint32_t i = 0; i < a.inputs;) {
    const uint32_t end = std::min(a.inputs, i + kFloatGroup);
    FloatSums<kRows> sums;
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++)
        KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) sums[t][c] = hn::Zero(df);
    for (; i + kChunks <= end; i += kChunks) {
      ahead.Step();
      AddChunks<Steps, kWeightBytes, kRows, kStreams>(weights(i), input(i), a.x_stride, kChunk,
                                                      sums);
    }
    for (; i < end; i += std::min(kChunk, end - i))
      AddChunks<Steps, kWeightBytes, kRows, 1>(weights(i), input(i), a.x_stride,
                                               std::min(kChunk, end - i), sums);
    KVLINK_UNROLL for (uint32_t t = 0; t < kRows; t++) {
      KVLINK_UNROLL for (uint32_t c = 0; c < kColumns; c++) {
        float* at = acc + t * kPanelRows + c * kFloatLanes;
        hn::StoreU(hn::Add(hn::LoadU(df, at), sums[t][c]), df, at);
      }
    }
  }
}

#undef KVLINK_UNROLL

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC pop_options
#endif
HWY_AFTER_NAMESPACE();
#endif
