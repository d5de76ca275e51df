// WriteGate: which blocks are worth writing to a tier, by what writing has cost and brought so far,
// in microseconds of CPU time.
//
//   earned   `write_share` of all computing; a head start, once in the life of a process; all that
//            loads saved; a part of what was computed again because it had been evicted unwritten
//   spent    each block handed to the tiers while requests run
//
// A block is written as soon as it is full while there is credit; otherwise it waits for idle time
// (which costs no request anything) or for its eviction, where a block that was used again is
// written in any case. So on traffic that never comes back the tiers cost at most write_share of
// the computing plus the head start, and on traffic that does, credit is never short for long.
// Threads: none of its own; the cache's lock guards it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvlink::link {

class WriteGate {
 public:
  // Of the time that computing an evicted block again took: it would have been saved, but the next
  // prompts need not be like the last ones.
  static constexpr double kRegretShare = 0.5;
  static constexpr double kMostCreditUs = 10'000'000;
  // What a block costs to write: copied, checksummed and stored. Measured with the cold tier
  // (docs/tiers.md) while the system's page cache has to grow, which is most of it; per byte of a
  // page and tier.
  static constexpr double kUsPerByte = 2.0e-3;

  WriteGate(double write_share, double head_start_us)
      : write_share_(write_share), credit_us_(head_start_us) {}

  void EarnComputing(double cpu_us) { Earn(write_share_ * cpu_us); }
  void EarnSaving(double cpu_us) { Earn(cpu_us); }
  void EarnRegret(double cpu_us) { Earn(kRegretShare * cpu_us); }
  bool IsOpen() const { return credit_us_ > 0; }
  void Spend(uint64_t bytes, uint32_t num_tiers) {
    credit_us_ -= kUsPerByte * static_cast<double>(bytes) * num_tiers;
  }
  double credit_us() const { return credit_us_; }

 private:
  void Earn(double us) {
    if (credit_us_ < kMostCreditUs) credit_us_ = std::min(credit_us_ + us, kMostCreditUs);
  }

  const double write_share_;
  double credit_us_;
};

}  // namespace kvlink::link
