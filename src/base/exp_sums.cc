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
constexpr int32_t kMagnitude = 0x7fffffff, kInfinite = 0x7f800000;
constexpr float kLeast = -87.0f;  // exp of it is a normal number still

// Whole numbers in the order of the values, -0 before 0: their maximum becomes vectors, too.
inline int32_t OrderOf(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  return bits < 0 ? ~(bits & kMagnitude) : bits;
}
float ValueAt(int32_t order) {
  return std::bit_cast<float>(order < 0 ? ~order | ~kMagnitude : order);
}

struct Range {
  float largest = 0;
  bool finite = true;
};

Range RangeOf(std::span<const float> values) {
  int32_t largest = std::numeric_limits<int32_t>::min(), magnitude = 0;
  for (const float value : values) {
    largest = std::max(largest, OrderOf(value));
    magnitude = std::max(magnitude, std::bit_cast<int32_t>(value) & kMagnitude);
  }
  return {ValueAt(largest), magnitude < kInfinite};
}

// exp(x) of kLeast <= x <= 0.
inline float ExpOf(float x) {
  constexpr float kLog2E = 1.44269504f;
  // 1.5 * 2^23: what is added to it is rounded to a whole number, which stands in the last bits.
  constexpr float kRound = 12582912.0f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const float shifted = std::fma(x, kLog2E, kRound);
  const float n = shifted - kRound;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = 1.0f / 720;
  p = std::fma(p, r, 1.0f / 120);
  p = std::fma(p, r, 1.0f / 24);
  p = std::fma(p, r, 1.0f / 6);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const uint32_t exponent =
      std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

// In pairs, halves of the block at a time.
double SumOf(std::array<float, kBlock>& terms) {
  for (size_t half = kBlock / 2; half >= kLanes; half /= 2) {
    for (size_t i = 0; i < half; ++i) terms[i] += terms[half + i];
  }
  double sum = 0;
  for (size_t i = 0; i < kLanes; ++i) sum += terms[i];
  return sum;
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
    for (size_t i = 0; i < kBlock; ++i) below[i] *= terms[i];
    sums.exp += SumOf(terms);
    sums.weighted += SumOf(below);
  }
  return sums;
}

}  // namespace

float LargestOf(std::span<const float> values) {
  int32_t largest = OrderOf(-std::numeric_limits<float>::infinity());
  for (const float value : values) largest = std::max(largest, OrderOf(value));
  return ValueAt(largest);
}

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
