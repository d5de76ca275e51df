#include "model/row_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace kvlink::model {
namespace {

// exp(x) within 2 units in the last place for x in [-87, 88], by 2^n * 2^f with f in [-0.5, 0.5]
// and a Taylor polynomial of e^(f ln 2); smaller and larger x give the ends. No branches, so that
// loops over it become vectors.
inline float Exp(float x) {
  x = std::min(88.0f, std::max(-87.0f, x));
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts
  float p = 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const auto exponent = static_cast<int32_t>(n) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

}  // namespace

void RmsNormRow(const float* x, const float* weight, float epsilon, uint32_t n, float* out) {
  constexpr uint32_t kLanes = 8;
  double sums[kLanes] = {};
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      sums[lane] += value * value;
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(x[i]) * x[i];
  const double mean = std::accumulate(sums, sums + kLanes, 0.0) / n;
  const float factor = 1.0f / std::sqrt(static_cast<float>(mean) + epsilon);
  for (i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void GeGluRow(const float* gate, const float* up, uint32_t n, float* out) {
  constexpr float kTwice = 2 * 0.797884561f;
  for (uint32_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float u = kTwice * x * (1.0f + 0.044715f * x * x);
    out[i] = x / (1.0f + Exp(-u)) * up[i];
  }
}

void SoftCapRow(const float* x, float cap, uint32_t n, float* out) {
  // tanh(y / 2) = 1 - 2 / (e^y + 1)
  const float factor = 2 / cap;
  for (uint32_t i = 0; i < n; ++i) out[i] = cap * (1.0f - 2.0f / (Exp(x[i] * factor) + 1.0f));
}

void ChooseExperts(const float* logits, uint32_t n, uint32_t num_used, int32_t* experts,
                   float* weights) {
  constexpr float kLeastSum = 6.103515625e-5f;
  for (uint32_t k = 0; k < num_used; ++k) {
    // The first of those that come after the one before.
    int32_t best = -1;
    for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
      const bool after = k == 0 || logits[i] < logits[experts[k - 1]] ||
                         (logits[i] == logits[experts[k - 1]] && i > experts[k - 1]);
      if (after && (best < 0 || logits[i] > logits[best])) best = i;
    }
    experts[k] = best < 0 ? static_cast<int32_t>(k) : best;  // only where logits are not numbers
  }
  const float largest = logits[experts[0]];
  double total = 0;
  for (uint32_t i = 0; i < n; ++i) total += std::exp(logits[i] - largest);
  float sum = 0;
  for (uint32_t k = 0; k < num_used; ++k) {
    weights[k] = static_cast<float>(std::exp(logits[experts[k]] - largest) / total);
    sum += weights[k];
  }
  sum = std::max(sum, kLeastSum);
  for (uint32_t k = 0; k < num_used; ++k) weights[k] /= sum;
}

}  // namespace kvlink::model
