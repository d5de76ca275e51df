#include "base/exp_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvlink::base {
namespace {

// Loops over lanes are what compilers turn into vectors without being allowed to reorder sums.
constexpr size_t kLanes = 16, kBlock = 256;
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinite = 0x7f800000;
constexpr float kLeast = -87.0f;  // exp of it is a normal number still

struct Range {
  float largest = 0;
  bool finite = true;
};

Range RangeOf(std::span<const float> values) {
  std::array<float, kLanes> largest;
  std::array<uint32_t, kLanes> magnitude;
  largest.fill(-std::numeric_limits<float>::infinity());
  magnitude.fill(0);
  const auto add = [&](size_t lane, float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & kMagnitude;
    largest[lane] = value > largest[lane] ? value : largest[lane];
    magnitude[lane] = bits > magnitude[lane] ? bits : magnitude[lane];
  };
  size_t first = 0;
  for (; first + kLanes <= values.size(); first += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(lane, values[first + lane]);
  }
  for (size_t lane = 0; first + lane < values.size(); ++lane) add(lane, values[first + lane]);
  return {std::ranges::max(largest), std::ranges::max(magnitude) < kInfinite};
}

// exp(x) of kLeast <= x <= 0.
inline float ExpOf(float x) {
  constexpr float kLog2E = 1.44269504f;
  // 1.5 * 2^23: what is added to it is rounded to a whole number, which stands in the last bits.
  constexpr float kRound = 12582912.0f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // n * high is exact
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent =
      std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

struct Sums {
  double exp = 0, weighted = 0;  // of exp(x), and of x * exp(x)
};

// Of x = value - largest.
Sums SumsOf(std::span<const float> values, float largest) {
  Sums sums;
  std::array<float, kBlock> below, terms;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const size_t count = std::min(kBlock, values.size() - first);
    const float* block = values.data() + first;
    for (size_t i = 0; i < count; ++i) {
      const float x = block[i] - largest;
      below[i] = x < kLeast ? kLeast : x;
    }
    for (size_t i = 0; i < count; ++i) terms[i] = ExpOf(below[i]);
    for (size_t i = count; i < kBlock; ++i) terms[i] = below[i] = 0;
    std::array<float, kLanes> exp{}, weighted{};
    for (size_t i = 0; i < kBlock; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        exp[lane] += terms[i + lane];
        weighted[lane] += terms[i + lane] * below[i + lane];
      }
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums.exp += exp[lane];
      sums.weighted += weighted[lane];
    }
  }
  return sums;
}

}  // namespace

ExpSums SumExponentials(std::span<const float> values) {
  if (values.empty()) return {};
  const Range range = RangeOf(values);
  if (!range.finite) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    return {.finite = false, .log_sum = kNaN, .entropy = kNaN};
  }
  const Sums sums = SumsOf(values, range.largest);
  const double log_exp = std::log(sums.exp);
  return {.finite = true,
          .log_sum = double{range.largest} + log_exp,
          .entropy = log_exp - sums.weighted / sums.exp};
}

}  // namespace kvlink::base
