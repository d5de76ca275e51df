// PackedMatmul against the formula in double precision, and the bit-equalities it promises.
#include "kernel/packed_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernel/f16.h"

namespace kvlink::kernel {
namespace {

// A quantised matrix in ggml's layout with the values it stands for.
struct Weights {
  WeightType type;
  uint32_t rows, inputs;
  std::vector<std::byte> bytes;
  std::vector<double> values;  // [rows, inputs]

  Weights(WeightType t, uint32_t num_rows, uint32_t num_inputs, uint32_t seed)
      : type(t), rows(num_rows), inputs(num_inputs) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);
    for (uint32_t r = 0; r < rows; r++) {
      for (uint32_t b = 0; b < inputs / kQuantBlock; b++) AddBlock(rng, scale(rng));
    }
  }

  void AddBlock(std::mt19937& rng, float scale) {
    const uint16_t d = F32ToF16(scale);
    const uint16_t m = F32ToF16(-7.3f * scale);
    Append(&d, 2);
    if (type == WeightType::kQ4_1) Append(&m, 2);
    std::vector<double> block(kQuantBlock);
    if (type == WeightType::kQ8_0) {
      for (double& v : block) {
        const auto q = static_cast<int8_t>(static_cast<int>(rng() % 256) - 128);
        Append(&q, 1);
        v = F16ToF32(d) * static_cast<double>(q);
      }
    } else {
      for (uint32_t i = 0; i < 16; i++) {
        const auto byte = static_cast<uint8_t>(rng());
        Append(&byte, 1);
        const double offset = type == WeightType::kQ4_1 ? F16ToF32(m) : -8.0 * F16ToF32(d);
        block[i] = F16ToF32(d) * static_cast<double>(byte & 15) + offset;
        block[i + 16] = F16ToF32(d) * static_cast<double>(byte >> 4) + offset;
      }
    }
    values.insert(values.end(), block.begin(), block.end());
  }

  void Append(const void* p, size_t n) {
    const auto* b = static_cast<const std::byte*>(p);
    bytes.insert(bytes.end(), b, b + n);
  }

  PackedMatrix Pack(int threads = 1) const {
    const PackedMatrix::Source source{bytes.data(), rows};
    auto packed = PackedMatrix::Pack(type, inputs, {&source, 1}, threads);
    EXPECT_TRUE(packed.ok());
    return std::move(*packed);
  }
};

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

std::vector<std::byte> QuantizeAll(const std::vector<float>& x, uint32_t inputs) {
  const auto rows = static_cast<uint32_t>(x.size() / inputs);
  std::vector<std::byte> out(rows * QuantizedRowBytes(inputs));
  Quantize(x.data(), inputs, inputs, out.data(), 0, rows);
  return out;
}

class PackedMatmul : public ::testing::TestWithParam<WeightType> {};

TEST_P(PackedMatmul, EqualsTheFormulaOnTheQuantisedActivations) {
  for (auto [rows, inputs, num] :
       {std::tuple{16u, 32u, 1u}, {48u, 576u, 5u}, {50u, 96u, 13u}, {7u, 64u, 25u}}) {
    const Weights w(GetParam(), rows, inputs, rows + num);
    const PackedMatrix packed = w.Pack();
    const auto x = RandomFloats(size_t{num} * inputs, 5);
    const auto q = QuantizeAll(x, inputs);
    const auto residual = RandomFloats(size_t{num} * rows, 6);
    std::vector<float> y(size_t{num} * rows);
    Multiply(packed, q.data(), num, y.data(), rows, residual.data(), rows, 0, packed.panels());
    for (uint32_t t = 0; t < num; t++) {
      const std::byte* row = q.data() + t * QuantizedRowBytes(inputs);
      const auto* ints = reinterpret_cast<const int8_t*>(row);
      const auto* scale = reinterpret_cast<const float*>(row + inputs);
      for (uint32_t r = 0; r < rows; r++) {
        double want = residual[t * rows + r], size = 0;
        for (uint32_t i = 0; i < inputs; i++) {
          const double term = w.values[size_t{r} * inputs + i] * ints[i] * scale[i / kQuantBlock];
          want += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(y[t * rows + r], want, 1e-5 * size + 1e-5) << "row " << t << " output " << r;
      }
    }
  }
}

TEST_P(PackedMatmul, ARowsBitsDependOnNothingButTheRow) {
  constexpr uint32_t kRows = 80, kInputs = 320, kNum = 131;
  const PackedMatrix packed = Weights(GetParam(), kRows, kInputs, 1).Pack(3);
  const auto q = QuantizeAll(RandomFloats(size_t{kNum} * kInputs, 2), kInputs);
  std::vector<float> all(size_t{kNum} * kRows);
  Multiply(packed, q.data(), kNum, all.data(), kRows, nullptr, 0, 0, packed.panels());
  for (uint32_t chunk = 1; chunk <= 30; chunk++) {
    std::vector<float> y(all.size());
    for (uint32_t t = 0; t < kNum; t += chunk) {
      const uint32_t n = std::min(chunk, kNum - t);
      const std::byte* x = q.data() + t * QuantizedRowBytes(kInputs);
      std::thread other([&] { Multiply(packed, x, n, &y[t * kRows], kRows, nullptr, 0, 0, 2); });
      Multiply(packed, x, n, &y[t * kRows], kRows, nullptr, 0, 2, packed.panels());
      other.join();
    }
    ASSERT_EQ(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)), 0) << "chunk " << chunk;
  }
}

TEST_P(PackedMatmul, WritesNothingBehindAPanelThatIsNotFull) {
  const Weights w(GetParam(), 21, 64, 3);
  const PackedMatrix packed = w.Pack();
  const auto q = QuantizeAll(RandomFloats(64, 4), 64);
  std::vector<float> y(40, 7.0f);
  Multiply(packed, q.data(), 1, y.data(), 21, nullptr, 0, 0, packed.panels());
  for (size_t i = 21; i < y.size(); i++) EXPECT_EQ(y[i], 7.0f);
}

TEST_P(PackedMatmul, StacksSources) {
  const Weights a(GetParam(), 20, 64, 8), b(GetParam(), 12, 64, 9);
  const PackedMatrix::Source sources[] = {{a.bytes.data(), 20}, {b.bytes.data(), 12}};
  auto stacked = PackedMatrix::Pack(GetParam(), 64, sources, 2);
  ASSERT_TRUE(stacked.ok());
  const auto q = QuantizeAll(RandomFloats(64, 10), 64);
  float y[32], ya[20], yb[12];
  Multiply(*stacked, q.data(), 1, y, 32, nullptr, 0, 0, stacked->panels());
  Multiply(a.Pack(), q.data(), 1, ya, 20, nullptr, 0, 0, 2);
  Multiply(b.Pack(), q.data(), 1, yb, 12, nullptr, 0, 0, 1);
  EXPECT_EQ(std::memcmp(y, ya, sizeof ya), 0);
  EXPECT_EQ(std::memcmp(y + 20, yb, sizeof yb), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, PackedMatmul,
                         ::testing::Values(WeightType::kQ4_0, WeightType::kQ4_1,
                                           WeightType::kQ8_0));

TEST(PackedMatrix, RefusesInputsThatAreNotWholeBlocks) {
  const PackedMatrix::Source source{nullptr, 1};
  auto packed = PackedMatrix::Pack(WeightType::kQ4_1, 48, {&source, 1}, 1);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.status().message().find("48"), std::string::npos);
}

TEST(QuantizeRows, KeepsWithinHalfAStepAndRoundsZeroRowsToZero) {
  auto x = RandomFloats(96, 1);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
  const auto q = QuantizeAll(x, 96);
  const auto* ints = reinterpret_cast<const int8_t*>(q.data());
  const auto* scale = reinterpret_cast<const float*>(q.data() + 96);
  for (uint32_t b = 0; b < 3; b++) {
    int sum = 0;
    for (uint32_t i = b * 32; i < b * 32 + 32; i++) {
      EXPECT_NEAR(ints[i] * scale[b], x[i], scale[b] * 0.5001f);
      sum += ints[i];
    }
    EXPECT_FLOAT_EQ(scale[3 + b], scale[b] * static_cast<float>(sum));
  }
}

TEST(RmsNormQuantize, EqualsTheFormula) {
  constexpr uint32_t kInputs = 192;
  const auto x = RandomFloats(kInputs, 1), weight = RandomFloats(kInputs, 2);
  double squares = 0;
  for (float v : x) squares += double{v} * v;
  std::vector<float> normed(kInputs);
  for (uint32_t i = 0; i < kInputs; i++) {
    normed[i] = static_cast<float>(x[i] / std::sqrt(squares / kInputs + 1e-5) * weight[i]);
  }
  std::vector<std::byte> got(QuantizedRowBytes(kInputs));
  RmsNormQuantize(x.data(), kInputs, kInputs, weight.data(), 1e-5f, got.data(), 0, 1);
  const auto* ints = reinterpret_cast<const int8_t*>(got.data());
  const auto* scale = reinterpret_cast<const float*>(got.data() + kInputs);
  for (uint32_t i = 0; i < kInputs; i++)
    EXPECT_NEAR(ints[i] * scale[i / 32], normed[i], scale[i / 32] * 0.501f);
}

TEST(SwiGluQuantize, EqualsTheFormulaOverTheWholeRange) {
  constexpr uint32_t kInputs = 64;
  std::vector<float> x(2 * kInputs);
  for (uint32_t i = 0; i < kInputs; i++) {
    x[i] = (static_cast<float>(i) - 32.0f) * 4.0f;  // silu at both ends
    x[kInputs + i] = 1.0f + 0.01f * static_cast<float>(i);
  }
  std::vector<std::byte> got(QuantizedRowBytes(kInputs));
  SwiGluQuantize(x.data(), 2 * kInputs, kInputs, got.data(), 0, 1);
  const auto* ints = reinterpret_cast<const int8_t*>(got.data());
  const auto* scale = reinterpret_cast<const float*>(got.data() + kInputs);
  for (uint32_t i = 0; i < kInputs; i++) {
    const double want = x[i] / (1 + std::exp(-double{x[i]})) * x[kInputs + i];
    EXPECT_NEAR(ints[i] * scale[i / 32], want, scale[i / 32] * 0.501f + 1e-4) << x[i];
  }
}

// ctest runs this with KVLINK_ISA=avx2 too.
TEST(MultiplyIsa, IsTheOneThatTheEnvironmentAllows) {
  ASSERT_TRUE(ApplyIsaEnvironment().ok());
  const char* wanted = std::getenv("KVLINK_ISA");
  const Isa current = CurrentIsa();
  EXPECT_EQ(MultiplyIsa(), current);
  if (wanted != nullptr && std::string(wanted) == "avx2" && IsaAvailable(Isa::kAvx2)) {
    EXPECT_EQ(current, Isa::kAvx2);
  }
}

TEST(F16, RoundTripsEveryFiniteValue) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const auto half = static_cast<uint16_t>(h);
    if ((half & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(F32ToF16(F16ToF32(half)), half);
  }
}

}  // namespace
}  // namespace kvlink::kernel
