// PackedMatmul against plain C++ to the last bit, and the bit-equalities it promises.
#include "kernel/packed_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel/packed_world.h"

namespace kvlink::kernel {
namespace {

// KVLINK_ISA in the environment, for all tests of this executable.
const bool kIsaApplied = ApplyIsaEnvironment().ok();

class PackedMatmul : public ::testing::TestWithParam<WeightType> {
 protected:
  // Block sizes allow `inputs`.
  bool Allows(uint32_t inputs) const { return inputs % InputsOfBlock(GetParam()) == 0; }
  bool floats() const { return InputsOfBlock(GetParam()) == 1; }
};

class PackedInt : public PackedMatmul {};
class PackedFloat : public PackedMatmul {};

// The reference is plain C++, so that this holds on every instruction set: all give the same bits.
TEST_P(PackedInt, EqualsThePlainFormulaToTheLastBit) {
  for (auto [rows, inputs, num] : {std::tuple{32u, 32u, 1u},
                                   {96u, 576u, 5u},
                                   {50u, 96u, 13u},
                                   {7u, 64u, 25u},
                                   {40u, 256u, 3u},
                                   {33u, 1792u, 14u},
                                   {64u, 4096u, 7u}}) {
    if (!Allows(inputs)) continue;
    const Weights w(GetParam(), rows, inputs, rows + num);
    const auto bias = RandomFloats(rows, 4);
    const PackedMatrix packed = w.Pack(1, bias.data());
    const Inputs x(RandomFloats(size_t{num} * inputs, 5), inputs, packed.format());
    const auto residual = RandomFloats(size_t{num} * rows, 6);
    std::vector<float> y(size_t{num} * rows);
    Multiply(packed, x.rows, y.data(), rows, residual.data(), rows, 0, packed.panels());
    for (uint32_t t = 0; t < num; t++) {
      for (uint32_t r = 0; r < rows; r++) {
        const float start = bias[r] + residual[t * rows + r];
        ASSERT_EQ(y[t * rows + r], PlainIntProduct(w, r, x.Row(t), start))
            << inputs << " inputs, row " << t << " output " << r;
      }
    }
  }
}

TEST_P(PackedFloat, EqualsTheFormula) {
  for (auto [rows, inputs, num] : {std::tuple{32u, 32u, 1u},
                                   {96u, 577u, 5u},
                                   {50u, 95u, 13u},
                                   {7u, 64u, 25u},
                                   {33u, 1800u, 30u}}) {
    const Weights w(GetParam(), rows, inputs, rows + num);
    const auto bias = RandomFloats(rows, 4);
    const PackedMatrix packed = w.Pack(1, bias.data());
    const Inputs x(RandomFloats(size_t{num} * inputs, 5), inputs, packed.format());
    std::vector<float> y(size_t{num} * rows);
    Multiply(packed, x.rows, y.data(), rows, nullptr, 0, 0, packed.panels());
    for (uint32_t t = 0; t < num; t++) {
      for (uint32_t r = 0; r < rows; r++) {
        double want = bias[r], size = std::abs(bias[r]);
        for (uint32_t i = 0; i < inputs; i++) {
          const double term = WeightOf(w, r, i) * InputOf(packed.format(), x.Row(t), i);
          want += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(y[t * rows + r], want, 1e-6 * size) << "row " << t << " output " << r;
      }
    }
  }
}

TEST_P(PackedMatmul, ARowsBitsDependOnNothingButTheRow) {
  constexpr uint32_t kRows = 80, kNum = 131;
  const uint32_t inputs = floats() ? 1000 : 2560;  // several chunks
  const PackedMatrix packed = Weights(GetParam(), kRows, inputs, 1).Pack(3);
  const Inputs x(RandomFloats(size_t{kNum} * inputs, 2), inputs, packed.format());
  std::vector<float> all(size_t{kNum} * kRows);
  Multiply(packed, x.rows, all.data(), kRows, nullptr, 0, 0, packed.panels());
  for (uint32_t chunk = 1; chunk <= 30; chunk++) {
    std::vector<float> y(all.size());
    for (uint32_t t = 0; t < kNum; t += chunk) {
      const InputRows some = x.Some(t, std::min(chunk, kNum - t));
      std::thread other([&] { Multiply(packed, some, &y[t * kRows], kRows, nullptr, 0, 0, 2); });
      Multiply(packed, some, &y[t * kRows], kRows, nullptr, 0, 2, packed.panels());
      other.join();
    }
    ASSERT_EQ(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)), 0) << "chunk " << chunk;
  }
}

TEST_P(PackedInt, SwiGluEqualsProductGateAndQuantisingOneByOne) {
  for (auto [outputs, inputs, num, up_type] : {std::tuple{32u, 256u, 1u, GetParam()},
                                               {96u, 512u, 7u, GetParam()},
                                               {64u, 512u, 30u, WeightType::kQ8_0},
                                               {64u, 2560u, 131u, GetParam()}}) {
    SCOPED_TRACE(std::to_string(inputs) + " inputs, rows " + std::to_string(num));
    const Weights gate(GetParam(), outputs, inputs, 1), up(up_type, outputs, inputs, 2);
    const auto bias = RandomFloats(outputs, 3);
    const PackedMatrix::Source sources[] = {{gate.type, gate.bytes.data(), outputs, nullptr},
                                            {up.type, up.bytes.data(), outputs, bias.data()}};
    const auto packed = PackedMatrix::Pack(inputs, sources, 1);
    ASSERT_TRUE(packed.ok());
    ASSERT_TRUE(TakesSwiGlu(*packed));
    const Inputs x(RandomFloats(size_t{num} * inputs, 5), inputs, packed->format());
    std::vector<float> y(size_t{num} * 2 * outputs);
    Multiply(*packed, x.rows, y.data(), 2 * outputs, nullptr, 0, 0, packed->panels());
    std::vector<std::byte> want(num * InputRowBytes(InputFormat::kInt8, outputs)), got(want.size());
    SwiGluQuantize(InputFormat::kInt8, y.data(), 2 * outputs, outputs, want.data(), 0, num);
    MultiplySwiGlu(*packed, x.rows, got.data(), 1, outputs / kQuantBlock);
    MultiplySwiGlu(*packed, x.rows, got.data(), 0, 1);
    ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0);
  }
}

TEST_P(PackedMatmul, WritesNothingBehindAPanelThatIsNotFull) {
  const PackedMatrix packed = Weights(GetParam(), 21, 256, 3).Pack();
  const Inputs x(RandomFloats(256, 4), 256, packed.format());
  std::vector<float> y(60, 7.0f);
  Multiply(packed, x.rows, y.data(), 21, nullptr, 0, 0, packed.panels());
  for (size_t i = 21; i < y.size(); i++) EXPECT_EQ(y[i], 7.0f);
}

TEST_P(PackedMatmul, TakesLittleMoreThanTheFile) {
  const Weights w(GetParam(), 64, 512, 3);
  EXPECT_LE(w.Pack().bytes(), w.bytes.size() * 1.03);
}

constexpr WeightType kIntTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
                                    WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kQ4_K,
                                    WeightType::kQ5_K, WeightType::kQ6_K};
constexpr WeightType kFloatTypes[] = {WeightType::kF16, WeightType::kBF16, WeightType::kF32};
const auto kName = [](const auto& info) { return NameOf(info.param); };
INSTANTIATE_TEST_SUITE_P(Ints, PackedMatmul, ::testing::ValuesIn(kIntTypes), kName);
INSTANTIATE_TEST_SUITE_P(Floats, PackedMatmul, ::testing::ValuesIn(kFloatTypes), kName);
INSTANTIATE_TEST_SUITE_P(Types, PackedInt, ::testing::ValuesIn(kIntTypes), kName);
INSTANTIATE_TEST_SUITE_P(Types, PackedFloat, ::testing::ValuesIn(kFloatTypes), kName);

// As the files named Q4_K_M: two types in one stack, a bias on one layer.
TEST(PackedMatrix, StacksSourcesOfSeveralTypesOverOneInput) {
  const Weights q(WeightType::kQ4_K, 40, 512, 8), k(WeightType::kQ4_K, 24, 512, 9),
      v(WeightType::kQ6_K, 20, 512, 10), o(WeightType::kQ5_0, 33, 512, 11);
  const auto bias = RandomFloats(24, 3);
  const PackedMatrix::Source sources[] = {{q.type, q.bytes.data(), 40, nullptr},
                                          {k.type, k.bytes.data(), 24, bias.data()},
                                          {v.type, v.bytes.data(), 20, nullptr},
                                          {o.type, o.bytes.data(), 33, nullptr}};
  auto stacked = PackedMatrix::Pack(512, sources, 2);
  ASSERT_TRUE(stacked.ok());
  EXPECT_EQ(stacked->parts().size(), 3u);
  const Inputs x(RandomFloats(512 * 4, 10), 512, stacked->format());
  std::vector<float> y(4 * 117);
  for (uint32_t p = 0; p < stacked->panels(); p++)
    Multiply(*stacked, x.rows, y.data(), 117, nullptr, 0, p, p + 1);
  uint32_t first = 0;
  for (const auto& [w, b] : {std::pair{&q, static_cast<const float*>(nullptr)},
                             {&k, bias.data()},
                             {&v, nullptr},
                             {&o, nullptr}}) {
    const PackedMatrix alone = w->Pack(1, b);
    std::vector<float> want(4 * w->rows);
    Multiply(alone, x.rows, want.data(), w->rows, nullptr, 0, 0, alone.panels());
    for (uint32_t t = 0; t < 4; t++)
      EXPECT_EQ(std::memcmp(&y[t * 117 + first], &want[t * w->rows], w->rows * sizeof(float)), 0)
          << NameOf(w->type) << " row " << t;
    first += w->rows;
  }
}

TEST(PackedMatrix, TakesSwiGluOfWholePanelsOfBlocksOnly) {
  const auto takes = [](WeightType type, uint32_t outputs) {
    const Weights w(type, outputs, 64, 1);
    const PackedMatrix::Source sources[] = {{w.type, w.bytes.data(), outputs, nullptr},
                                            {w.type, w.bytes.data(), outputs, nullptr}};
    return TakesSwiGlu(*PackedMatrix::Pack(64, sources, 1));
  };
  EXPECT_TRUE(takes(WeightType::kQ4_1, 64));
  EXPECT_FALSE(takes(WeightType::kQ4_1, 48));
  EXPECT_FALSE(takes(WeightType::kF32, 64));
}

TEST(PackedMatrix, RefusesInputsThatAreNotWholeBlocks) {
  const PackedMatrix::Source source{WeightType::kQ4_1, nullptr, 1, nullptr};
  auto packed = PackedMatrix::Pack(48, {&source, 1}, 1);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.status().message().find("48"), std::string::npos);
  const PackedMatrix::Source super{WeightType::kQ6_K, nullptr, 1, nullptr};
  packed = PackedMatrix::Pack(576, {&super, 1}, 1);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.status().message().find("256, not 576"), std::string::npos);
}

TEST(PackedMatrix, RefusesTypesThatReadDifferentInputs) {
  const PackedMatrix::Source sources[] = {{WeightType::kQ4_1, nullptr, 1, nullptr},
                                          {WeightType::kF32, nullptr, 1, nullptr}};
  EXPECT_FALSE(PackedMatrix::Pack(64, sources, 1).ok());
}

// ctest runs this with KVLINK_ISA=avx2 too.
TEST(MultiplyIsa, IsTheOneThatTheEnvironmentAllows) {
  ASSERT_TRUE(kIsaApplied);
  const char* wanted = std::getenv("KVLINK_ISA");
  const Isa current = CurrentIsa();
  EXPECT_EQ(MultiplyIsa(), current);
  if (wanted != nullptr && std::string(wanted) == "avx2" && IsaAvailable(Isa::kAvx2)) {
    EXPECT_EQ(current, Isa::kAvx2);
  }
}

}  // namespace
}  // namespace kvlink::kernel
