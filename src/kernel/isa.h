// The instruction set of the kernels: the best of this processor, unless KVLINK_ISA lowers it.
//
// All kernels of a process must agree, since the numeric path is part of every block's key. Highway
// keeps one process-wide choice for its own dispatch; ApplyIsaEnvironment sets that too.
#pragma once

#include <string>

#include "kvlink/status.h"

namespace kvlink::kernel {

// Best first. kBaseline is whatever the compiler was allowed to use everywhere.
enum class Isa { kAvx512, kAvx2, kNeon, kBaseline };
const char* IsaName(Isa isa);

// Reads KVLINK_ISA ("avx512", "avx2", "neon"; empty: no limit) and lowers the process to it.
// kInvalidArgument: another value. Asking for more than the processor has leaves what it has.
Status ApplyIsaEnvironment();

// After ApplyIsaEnvironment: the best set that this processor, this build and the limit allow.
Isa CurrentIsa();

// Whether AVX-512 kernels may use the int8 dot product (VNNI) here.
bool HasInt8Dot();

// Whether kernels of this set can run here (tests compare sets in one process).
bool IsaAvailable(Isa isa);

}  // namespace kvlink::kernel
