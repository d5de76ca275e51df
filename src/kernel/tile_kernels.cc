#include "kernel/tile_kernels.h"

// AVX3_DL has the int8 dot product.
#define HWY_WANT_AVX3_DL 1
#include "kernel/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/tile_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "kernel/tile_kernels-inl.h"

#if HWY_ONCE
namespace kvlink::kernel {

bool HasBf16Dot(Isa isa) {
#if HWY_TARGETS & HWY_AVX3_DL
  return isa == Isa::kAvx512 && HasInt8Dot() && __builtin_cpu_supports("avx512bf16");
#else
  static_cast<void>(isa);
  return false;
#endif
}

const TileKernels& TileKernelsOf(Isa isa, KvType type) {
#if HWY_TARGETS & HWY_AVX3_DL
  if (type == KvType::kBF16 && HasBf16Dot(isa)) return N_AVX3_DL::Bf16DotTable();
  if (isa == Isa::kAvx512 && HasInt8Dot()) return N_AVX3_DL::Table(type);
#endif
#if HWY_TARGETS & HWY_AVX3
  if (isa == Isa::kAvx512) return N_AVX3::Table(type);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (isa == Isa::kAvx2) return N_AVX2::Table(type);
#endif
#if HWY_TARGETS & HWY_NEON
  if (isa == Isa::kNeon) return N_NEON::Table(type);
#endif
  if (isa == Isa::kBaseline && type == KvType::kQ8_0) return HWY_STATIC_DISPATCH(PlainTable)();
  return HWY_STATIC_DISPATCH(Table)(type);
}

}  // namespace kvlink::kernel
#endif  // HWY_ONCE
