// Peaks of this machine, measured: what one core, or several at once, can read and multiply at
// most.
#pragma once

#include <string>
#include <vector>

namespace kvlink {

struct Peaks {
  double read_gb_per_s = 0;  // a sum over memory that no cache holds, in huge pages
  double fma_gmac_per_s = 0;
  double int8_gmac_per_s = 0;  // u8 x s8 into int32
  double bf16_gmac_per_s = 0;  // 0: the processor has no such instruction
};

enum class Clock { kWall, kCpu };

// On `threads` threads at once, medians of `rounds`. With kCpu every thread counts its own CPU time
// (which neighbours on the machine disturb less), otherwise all are timed together.
Peaks MeasurePeaks(int threads, Clock clock, int rounds);

// "vpdpbusd, vfmadd231ps, vdpbf16ps on 512 bits": what was measured.
std::string PeakInstructions();

}  // namespace kvlink
