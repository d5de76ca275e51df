// Activations of packed products: rounding, norms and gates against their formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernel/f16.h"
#include "kernel/packed_matmul.h"
#include "kernel/packed_world.h"

namespace kvlink::kernel {
namespace {

TEST(Quantize, KeepsWithinHalfAStepAndRoundsZeroRowsToZero) {
  auto x = RandomFloats(96, 1);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
  const Inputs q(x, 96, InputFormat::kInt8);
  const auto* blocks = reinterpret_cast<const QuantBlock*>(q.Row(0));
  for (uint32_t b = 0; b < 3; b++) {
    int sum = 0, end_sum = 0;
    for (int k = 0; k < 32; k++) {
      EXPECT_NEAR(blocks[b].q[k] * blocks[b].scale, x[b * 32 + k], blocks[b].scale * 0.5001f);
      sum += blocks[b].q[k];
      end_sum += k < 16 ? 0 : blocks[b].q[k];
    }
    EXPECT_FLOAT_EQ(blocks[b].scaled_sum, blocks[b].scale * static_cast<float>(sum));
    EXPECT_EQ(blocks[b].minus_sum, -sum);
    EXPECT_EQ(blocks[b].minus_sum_end, -end_sum);
  }
}

TEST(Quantize, ABlocksBitsDoNotDependOnItsNeighbours) {
  constexpr uint32_t kBlocks = 7;
  auto x = RandomFloats(kBlocks * kQuantBlock, 1);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
  for (size_t i = 64; i < 96; i++) x[i] *= 1e30f;
  for (size_t i = 96; i < 128; i++) x[i] *= 1e-40f;
  x[130] = -50;  // the largest, and not the first
  const Inputs all(x, kBlocks * kQuantBlock, InputFormat::kInt8);
  for (uint32_t b = 0; b < kBlocks; b++) {
    const std::vector<float> own(x.begin() + b * 32, x.begin() + (b + 1) * 32);
    const Inputs alone(own, kQuantBlock, InputFormat::kInt8);
    EXPECT_EQ(std::memcmp(alone.Row(0), all.Row(0) + b * sizeof(QuantBlock), sizeof(QuantBlock)), 0)
        << "block " << b;
  }
}

// Value i of a row in any format, and how far it may be off.
std::pair<double, double> ValueOf(InputFormat format, const std::byte* row, uint32_t i) {
  if (format == InputFormat::kInt8) {
    const QuantBlock& block = reinterpret_cast<const QuantBlock*>(row)[i / 32];
    return {block.q[i % 32] * block.scale, block.scale * 0.501};
  }
  const double value = InputOf(format, row, i);
  return {value, std::abs(value) * (format == InputFormat::kBF16 ? 1.0 / 250 : 1e-6) + 1e-6};
}

class InputFormats : public ::testing::TestWithParam<InputFormat> {};

TEST_P(InputFormats, RmsNormEqualsTheFormula) {
  const uint32_t inputs = GetParam() == InputFormat::kInt8 ? 192 : 197;
  const auto x = RandomFloats(inputs, 1), weight = RandomFloats(inputs, 2);
  double squares = 0;
  for (float v : x) squares += double{v} * v;
  std::vector<std::byte> got(InputRowBytes(GetParam(), inputs));
  RmsNormQuantize(GetParam(), x.data(), inputs, inputs, weight.data(), 1e-5f, got.data(), 0, 1);
  for (uint32_t i = 0; i < inputs; i++) {
    const auto [value, error] = ValueOf(GetParam(), got.data(), i);
    EXPECT_NEAR(value, x[i] / std::sqrt(squares / inputs + 1e-5) * weight[i], error);
  }
}

TEST_P(InputFormats, SwiGluEqualsTheFormulaOverTheWholeRange) {
  const uint32_t inputs = GetParam() == InputFormat::kInt8 ? 64 : 67;
  std::vector<float> x(2 * inputs);
  for (uint32_t i = 0; i < inputs; i++) {
    x[i] = (static_cast<float>(i) - 32.0f) * 4.0f;  // silu at both ends
    x[inputs + i] = 1.0f + 0.01f * static_cast<float>(i);
  }
  std::vector<std::byte> got(InputRowBytes(GetParam(), inputs));
  SwiGluQuantize(GetParam(), x.data(), 2 * inputs, inputs, got.data(), 0, 1);
  for (uint32_t i = 0; i < inputs; i++) {
    const auto [value, error] = ValueOf(GetParam(), got.data(), i);
    EXPECT_NEAR(value, x[i] / (1 + std::exp(-double{x[i]})) * x[inputs + i], error + 1e-4) << x[i];
  }
}

INSTANTIATE_TEST_SUITE_P(All, InputFormats,
                         ::testing::Values(InputFormat::kInt8, InputFormat::kBF16,
                                           InputFormat::kF32));

TEST(F16, RoundTripsEveryFiniteValue) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const auto half = static_cast<uint16_t>(h);
    if ((half & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(F32ToF16(F16ToF32(half)), half);
  }
}

}  // namespace
}  // namespace kvlink::kernel
