// The tables of kernels, compiled once per instruction set.
#if defined(KVLINK_KERNEL_TILE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_TILE_KERNELS_INL_H_
#undef KVLINK_KERNEL_TILE_KERNELS_INL_H_
#else
#define KVLINK_KERNEL_TILE_KERNELS_INL_H_
#endif

#include "kernel/tile_bf16-inl.h"
#include "kernel/tile_float-inl.h"
#include "kernel/tile_kernels.h"
#include "kernel/tile_q8-inl.h"
#include "kernel/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvlink::kernel {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX3
inline constexpr Isa kIsa = Isa::kAvx512;
#elif HWY_TARGET == HWY_AVX2
inline constexpr Isa kIsa = Isa::kAvx2;
#elif HWY_TARGET == HWY_NEON
inline constexpr Isa kIsa = Isa::kNeon;
#else
inline constexpr Isa kIsa = Isa::kBaseline;
#endif

template <class E>
constexpr TileKernels FloatTable() {
  return {kIsa,
          kScoreRows,
          kValueRows,
          /*dims_per_word=*/1,
          /*pairs=*/false,
          &PackFloats,
          &Score<E>,
          &Softcap,
          &Softmax<FloatWeights>,
          &Weigh<E>,
          &Fold,
          &Normalize,
          &Rotate,
          &ToKv<E>};
}

constexpr TileKernels Q8Table() {
  return {kIsa,
          kQ8ScoreRows,
          kQ8ValueRows,
          /*dims_per_word=*/4,
          /*pairs=*/true,
          &PackInt8,
          &ScoreQ8,
          &Softcap,
          &Softmax<Int16Weights>,
          &WeighQ8,
          &Fold,
          &Normalize,
          &Rotate,
          &ToQ8};
}

}  // namespace

const TileKernels& Table(KvType type) {
  static constexpr TileKernels kF16 = FloatTable<F16Elements>(), kBf16 = FloatTable<Bf16Elements>(),
                               kQ8 = Q8Table();
  return type == KvType::kF16 ? kF16 : type == KvType::kBF16 ? kBf16 : kQ8;
}

// Q8_0 with plain loops.
const TileKernels& PlainTable() {
  static constexpr TileKernels kPlain = [] {
    TileKernels table = Q8Table();
    table.isa = Isa::kBaseline;
    table.max_score_rows = table.max_value_rows = kPlainRows;
    table.score = &ScorePlain;
    table.weigh = &WeighPlain;
    return table;
  }();
  return kPlain;
}

#if HWY_TARGET <= HWY_AVX3_DL
const TileKernels& Bf16DotTable() {
  static constexpr TileKernels kTable = {kIsa,
                                         kBf16ScoreRows,
                                         kPairRows,
                                         /*dims_per_word=*/2,
                                         /*pairs=*/true,
                                         &PackBf16,
                                         &ScoreBf16,
                                         &Softcap,
                                         &Softmax<Bf16Weights>,
                                         &WeighBf16,
                                         &Fold,
                                         &Normalize,
                                         &Rotate,
                                         &ToKv<Bf16Elements>};
  return kTable;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
HWY_AFTER_NAMESPACE();

#endif  // include guard
