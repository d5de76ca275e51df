// Random: a deterministic generator, the same numbers for a seed on every machine
// (std::uniform_int_distribution is not). xoshiro256** by Blackman and Vigna, seeded through
// splitmix64. Not for secrets.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/check.h"

namespace kvlink::base {

// One step of splitmix64; also a good mixer of a counter.
constexpr uint64_t SplitMix64(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Random {
 public:
  using result_type = uint64_t;  // a UniformRandomBitGenerator, for std::shuffle

  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = SplitMix64(seed);
  }
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()() { return Next(); }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  // In [0, bound); Requires: bound > 0. Without modulo bias worth speaking of (Lemire's
  // multiplication, unrejected).
  uint64_t Below(uint64_t bound) {
    KVLINK_CHECK(bound > 0);
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((static_cast<Wide>(Next()) * bound) >> 64);
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // in [0, 1)

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace kvlink::base
