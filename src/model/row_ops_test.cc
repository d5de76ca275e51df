#include "model/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace kvlink::model {
namespace {

std::vector<float> Random(size_t n, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(RowOps, RmsNormIsTheFormulaForAnyNumberOfColumns) {
  for (const uint32_t n : {1u, 7u, 8u, 64u, 643u}) {
    const std::vector<float> x = Random(n, 3, n), weight = Random(n, 1, n + 1);
    std::vector<float> out(n);
    RmsNormRow(x.data(), weight.data(), 1e-5f, n, out.data());
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * value;
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_NEAR(out[i], x[i] / std::sqrt(squares / n + 1e-5) * weight[i],
                  4e-7 * std::abs(out[i]));
    }
  }
}

TEST(RowOps, GeGluIsTheTanhApproximationFromEndToEnd) {
  std::vector<float> gate;
  for (float x = -60; x <= 60; x += 0.013f) gate.push_back(x);
  gate.insert(gate.end(), {0.0f, 1e-20f, -1e-20f, 1e4f, -1e4f});
  const std::vector<float> up = Random(gate.size(), 2, 1);
  std::vector<float> out(gate.size());
  GeGluRow(gate.data(), up.data(), static_cast<uint32_t>(gate.size()), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i];
    const double gelu = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    EXPECT_NEAR(out[i], gelu * up[i], 1e-6 * (1 + std::abs(gelu * up[i]))) << "gelu(" << x << ")";
  }
}

TEST(RowOps, SoftCapIsTanh) {
  for (const float cap : {0.3f, 30.0f}) {
    std::vector<float> x = Random(1000, 4 * cap, 5);
    x.insert(x.end(), {0.0f, 1e6f, -1e6f});
    std::vector<float> out(x.size());
    SoftCapRow(x.data(), cap, static_cast<uint32_t>(x.size()), out.data());
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(out[i], cap * std::tanh(static_cast<double>(x[i]) / cap), 1e-6 * cap);
  }
}

TEST(RowOps, ExpertsAreTheLargestWithWeightsThatAddUpToOne) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto n = static_cast<uint32_t>(2 + seed % 40);
    const auto used = static_cast<uint32_t>(1 + seed % n);
    std::vector<float> logits = Random(n, 2, seed);
    if (seed % 3 == 0) logits[n / 2] = logits[0];  // a tie: the lower index first
    std::vector<int32_t> order(n), experts(used);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    std::vector<float> weights(used);
    ChooseExperts(logits.data(), n, used, experts.data(), weights.data());
    double sum = 0;
    for (uint32_t k = 0; k < used; ++k) sum += std::exp(logits[order[k]]);
    for (uint32_t k = 0; k < used; ++k) {
      EXPECT_EQ(experts[k], order[k]);
      EXPECT_NEAR(weights[k], std::exp(logits[order[k]]) / sum, 1e-6);
    }
  }
}

TEST(RowOps, LogitsThatAreNotNumbersStillChooseExpertsInRange) {
  const std::vector<float> logits(5, std::nanf(""));
  int32_t experts[2] = {-1, -1};
  float weights[2];
  ChooseExperts(logits.data(), 5, 2, experts, weights);
  for (const int32_t expert : experts) EXPECT_TRUE(expert >= 0 && expert < 5) << expert;
}

}  // namespace
}  // namespace kvlink::model
