// Which instruction sets the kernels are compiled for. Include before any Highway header.
#pragma once

// -march=x86-64-v3 has no AES, which none of our kernels uses, but without it Highway would take
// SSSE3 for the baseline and compile everything four times.
#ifndef HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_PCLMUL_AES 1
#endif
// Vectors of unknown length cannot lie in arrays of accumulators; NEON runs wherever SVE does.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
