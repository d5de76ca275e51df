#include "peaks.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <thread>

namespace kvlink {
namespace {

constexpr int64_t kRepeats = 200000;
constexpr size_t kReadBytes = size_t{256} << 20;  // a thread

// 12 independent sums hide the latency of any of these instructions.
#define KVLINK_TWELVE(instruction, a, b, register) \
  instruction " " a "," b "," register "0\n" instruction " " a "," b "," register "1\n" \
  instruction " " a "," b "," register "2\n" instruction " " a "," b "," register "3\n" \
  instruction " " a "," b "," register "4\n" instruction " " a "," b "," register "5\n" \
  instruction " " a "," b "," register "6\n" instruction " " a "," b "," register "7\n" \
  instruction " " a "," b "," register "8\n" instruction " " a "," b "," register "9\n" \
  instruction " " a "," b "," register "10\n" instruction " " a "," b "," register "11\n"
#define KVLINK_PEAK(name, instruction, register)                                                 \
  void name() {                                                                                  \
    int64_t n = kRepeats;                                                                        \
    asm volatile("1:\n" KVLINK_TWELVE(instruction, "%%" register "14", "%%" register "15",       \
                                      "%%" register) "dec %0\n jnz 1b\n"                         \
                 : "+r"(n)                                                                       \
                 :                                                                               \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                   "xmm9", "xmm10", "xmm11");                                                    \
  }
KVLINK_PEAK(Fma512, "vfmadd231ps", "zmm")
KVLINK_PEAK(Bytes512, "vpdpbusd", "zmm")
KVLINK_PEAK(Bf16512, "vdpbf16ps", "zmm")
KVLINK_PEAK(Fma256, "vfmadd231ps", "ymm")

// Without a dot product: two instructions, as the product of nibbles takes them.
void Bytes256() {
  int64_t n = kRepeats;
  asm volatile(
      "1:\n"
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm0\n vpaddw %%ymm0,%%ymm6,%%ymm6\n"
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm1\n vpaddw %%ymm1,%%ymm7,%%ymm7\n"
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm2\n vpaddw %%ymm2,%%ymm8,%%ymm8\n"
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm3\n vpaddw %%ymm3,%%ymm9,%%ymm9\n"
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm4\n vpaddw %%ymm4,%%ymm10,%%ymm10\n"
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm5\n vpaddw %%ymm5,%%ymm11,%%ymm11\n"
      "dec %0\n jnz 1b\n"
      : "+r"(n)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11");
}

__attribute__((target("avx2"))) void Read(const std::byte* memory) {
  __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
  for (size_t i = 0; i < kReadBytes; i += 128) {
    for (size_t j = 0; j < 4; j++) {
      const auto* at = reinterpret_cast<const __m256i*>(memory + i + 32 * j);
      sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(at));
    }
  }
  const __m256i all =
      _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  volatile int64_t keep = _mm256_extract_epi64(all, 0);
  static_cast<void>(keep);
}

double Now(Clock clock) {
  if (clock == Clock::kWall) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Work per second of all threads together, `work` of it a call and thread.
template <typename F>
double Rate(int threads, Clock clock, int rounds, double work, const F& call) {
  std::vector<double> seconds(static_cast<size_t>(threads)), rates;
  for (int round = 0; round <= rounds; round++) {
    std::barrier start(threads);
    const auto run = [&](int t) {
      start.arrive_and_wait();
      const double begin = Now(clock);
      call(t);
      seconds[static_cast<size_t>(t)] = Now(clock) - begin;
    };
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; t++) others.emplace_back(run, t);
    run(0);
    others.clear();
    const double longest = *std::max_element(seconds.begin(), seconds.end());
    if (round > 0) rates.push_back(threads * work / longest);  // the first one warms up
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

Memory Touched() {
  constexpr size_t kHugePage = size_t{2} << 20;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, kReadBytes)));
  madvise(memory.get(), kReadBytes, MADV_HUGEPAGE);
  std::fill(memory.get(), memory.get() + kReadBytes, std::byte{1});
  return memory;
}

bool HasVnni() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
}
bool HasBf16() { return __builtin_cpu_supports("avx512bf16"); }

}  // namespace

Peaks MeasurePeaks(int threads, Clock clock, int rounds) {
  const auto multiply = [&](double lanes, int instructions, void (*loop)()) {
    const double macs = lanes * instructions * static_cast<double>(kRepeats);
    return Rate(threads, clock, rounds, macs, [&](int) { loop(); }) / 1e9;
  };
  Peaks peaks;
  const bool wide = __builtin_cpu_supports("avx512f");
  peaks.fma_gmac_per_s = wide ? multiply(16, 12, Fma512) : multiply(8, 12, Fma256);
  peaks.int8_gmac_per_s = HasVnni() ? multiply(64, 12, Bytes512) : multiply(32, 6, Bytes256);
  if (HasBf16()) peaks.bf16_gmac_per_s = multiply(32, 12, Bf16512);
  std::vector<Memory> memory;
  for (int t = 0; t < threads; t++) memory.push_back(Touched());
  peaks.read_gb_per_s = Rate(threads, clock, rounds, static_cast<double>(kReadBytes),
                             [&](int t) { Read(memory[static_cast<size_t>(t)].get()); }) /
                        1e9;
  return peaks;
}

std::string PeakInstructions() {
  std::string names = HasVnni() ? "vpdpbusd on 512 bits" : "vpmaddubsw and vpaddw on 256 bits";
  names +=
      __builtin_cpu_supports("avx512f") ? ", vfmadd231ps on 512 bits" : ", vfmadd231ps on 256 bits";
  if (HasBf16()) names += ", vdpbf16ps on 512 bits";
  return names;
}

}  // namespace kvlink
