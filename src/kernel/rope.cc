#include "kernel/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace kvlink::kernel {
namespace {

// The dimension that turns `rotations` times within the original context:
// n_rot * log(context / (rotations * 2 pi)) / (2 * log(base)), in ggml's float arithmetic.
float CorrectionDimension(const RopeParams& rope, float rotations) {
  const float pi = static_cast<float>(std::numbers::pi);
  const float context = static_cast<float>(static_cast<int>(rope.orig_context));
  return static_cast<float>(static_cast<int>(rope.num_rot)) *
         std::log(context / (rotations * 2 * pi)) / (2 * std::log(rope.freq_base));
}

// YaRN: 1 on dimensions that turn often (extrapolated), 0 on those that turn seldom (interpolated).
struct Ramp {
  explicit Ramp(const RopeParams& rope)
      : low(std::max(0.0f, std::floor(CorrectionDimension(rope, rope.beta_fast)))),
        high(std::min(static_cast<float>(static_cast<int>(rope.num_rot) - 1),
                      std::ceil(CorrectionDimension(rope, rope.beta_slow)))) {}
  const float low, high;

  float At(uint32_t pair) const {
    const float y = (static_cast<float>(pair) - low) / std::max(0.001f, high - low);
    return 1 - std::min(1.0f, std::max(0.0f, y));
  }
};

}  // namespace

// std::fma stands where compilers contract ggml's expressions (its build allows it, ours does not):
// at large angles one unit in the last place is visible.
void RopeAngles(const RopeParams& rope, float position, bool magnitude, float* cos_sin) {
  const float theta_scale =
      std::pow(rope.freq_base, -2.0f / static_cast<float>(static_cast<int>(rope.num_rot)));
  const bool yarn = rope.ext_factor != 0.0f;
  const std::optional<Ramp> ramp = yarn ? std::optional<Ramp>(rope) : std::nullopt;
  float scale = magnitude ? rope.attn_factor : 1.0f;
  if (yarn && magnitude) scale *= std::fma(0.1f, std::log(1.0f / rope.freq_scale), 1.0f);

  float theta = position;
  for (uint32_t pair = 0; pair < rope.num_rot / 2; pair++, theta *= theta_scale) {
    const float factor = rope.freq_factors.empty() ? 1.0f : rope.freq_factors[pair];
    const float extrapolated = theta / factor;
    const float interpolated = rope.freq_scale * extrapolated;
    float angle = interpolated;
    if (yarn) {
      const float mix = ramp->At(pair) * rope.ext_factor;
      angle = std::fma(interpolated, 1 - mix, extrapolated * mix);
    }
    cos_sin[2 * pair] = std::cos(angle) * scale;
    cos_sin[2 * pair + 1] = std::sin(angle) * scale;
  }
}

}  // namespace kvlink::kernel
