// RoPE angles against the formulas in double precision.
#include "kernel/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvlink::kernel {
namespace {

// The angle of one pair, and the magnitude, straight from the papers.
double Angle(const RopeParams& rope, double position, uint32_t pair) {
  const double n = rope.num_rot, base = rope.freq_base;
  double theta = position * std::pow(base, -2.0 * pair / n);
  if (!rope.freq_factors.empty()) theta /= rope.freq_factors[pair];
  const double interpolated = theta * rope.freq_scale;
  if (rope.ext_factor == 0) return interpolated;
  const auto dimension = [&](double rotations) {
    return n * std::log(rope.orig_context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double low = std::max(0.0, std::floor(dimension(rope.beta_fast)));
  const double high = std::min(n - 1, std::ceil(dimension(rope.beta_slow)));
  const double ramp = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
  const double mix = (1 - ramp) * rope.ext_factor;
  return interpolated * (1 - mix) + theta * mix;
}

double Magnitude(const RopeParams& rope) {
  if (rope.ext_factor == 0) return rope.attn_factor;
  return rope.attn_factor * (1 + 0.1 * std::log(1.0 / rope.freq_scale));
}

void ExpectFormula(const RopeParams& rope) {
  std::vector<float> cos_sin(rope.num_rot);
  for (float position : {0.0f, 1.0f, 17.0f, 2047.0f, 8191.0f, -33.0f}) {
    for (bool magnitude : {false, true}) {
      RopeAngles(rope, position, magnitude, cos_sin.data());
      const double scale = magnitude ? Magnitude(rope) : 1.0;
      for (uint32_t pair = 0; pair < rope.num_rot / 2; pair++) {
        const double angle = Angle(rope, position, pair);
        // ggml's float angles: a few units in the last place of the angle.
        const double tolerance = 1e-6 + std::abs(angle) * 2e-6;
        EXPECT_NEAR(cos_sin[2 * pair], scale * std::cos(angle), tolerance) << position;
        EXPECT_NEAR(cos_sin[2 * pair + 1], scale * std::sin(angle), tolerance) << position;
      }
    }
  }
}

TEST(Rope, PlainAnglesMatchTheFormula) {
  for (uint32_t num_rot : {2u, 20u, 64u, 128u}) {
    RopeParams rope;
    rope.num_rot = num_rot;
    ExpectFormula(rope);
    rope.freq_base = 500000.0f;
    ExpectFormula(rope);
  }
}

TEST(Rope, LinearScalingMatchesTheFormula) {
  RopeParams rope;
  rope.num_rot = 64;
  rope.freq_scale = 0.25f;
  ExpectFormula(rope);
}

TEST(Rope, YarnMatchesTheFormula) {
  RopeParams rope;
  rope.num_rot = 128;
  rope.freq_scale = 0.25f;
  rope.ext_factor = 1.0f;
  rope.attn_factor = 0.9f;
  rope.orig_context = 4096;
  ExpectFormula(rope);
  rope.ext_factor = 0.5f;
  rope.beta_fast = 16.0f;
  rope.freq_base = 1000000.0f;
  ExpectFormula(rope);
}

TEST(Rope, FrequencyFactorsMatchTheFormula) {
  RopeParams rope;
  rope.num_rot = 64;
  rope.freq_base = 500000.0f;
  for (uint32_t i = 0; i < 32; i++) rope.freq_factors.push_back(1.0f + 7.0f * i / 31.0f);
  ExpectFormula(rope);
}

// What lets a shifted span be read in place: turning by p and then by -s is turning by p - s.
TEST(Rope, AnglesAreLinearInThePosition) {
  RopeParams rope;
  rope.num_rot = 64;
  rope.freq_scale = 0.25f;
  rope.ext_factor = 1.0f;
  rope.orig_context = 4096;
  std::vector<float> whole(64), part(64), rest(64);
  RopeAngles(rope, 900, true, whole.data());
  RopeAngles(rope, 1300, true, part.data());
  RopeAngles(rope, -400, false, rest.data());
  for (uint32_t i = 0; i < 64; i += 2) {
    EXPECT_NEAR(whole[i], part[i] * rest[i] - part[i + 1] * rest[i + 1], 1e-3);
    EXPECT_NEAR(whole[i + 1], part[i] * rest[i + 1] + part[i + 1] * rest[i], 1e-3);
  }
}

}  // namespace
}  // namespace kvlink::kernel
