#include "kernel/tile_kernels.h"

#include "kernel/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/tile_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "kernel/tile_kernels-inl.h"

#if HWY_ONCE
namespace kvlink::kernel {

const TileKernels& TileKernelsOf(Isa isa) {
#if HWY_TARGETS & HWY_AVX3
  if (isa == Isa::kAvx512) return N_AVX3::Table();
#endif
#if HWY_TARGETS & HWY_AVX2
  if (isa == Isa::kAvx2) return N_AVX2::Table();
#endif
#if HWY_TARGETS & HWY_NEON
  if (isa == Isa::kNeon) return N_NEON::Table();
#endif
  static_cast<void>(isa);
  return HWY_STATIC_DISPATCH(Table)();
}

}  // namespace kvlink::kernel
#endif  // HWY_ONCE
