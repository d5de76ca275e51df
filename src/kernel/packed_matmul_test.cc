// PackedMatmul against plain C++ to the last bit, and the bit-equalities it promises.
#include "kernel/packed_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel/f16.h"

namespace kvlink::kernel {
namespace {

// KVLINK_ISA in the environment, for all tests.
const bool kIsaApplied = ApplyIsaEnvironment().ok();

float HalfAt(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return F16ToF32(bits);
}

// A matrix in ggml's layout of random bytes, with small finite scales.
struct Weights {
  WeightType type;
  uint32_t rows, inputs;
  std::vector<std::byte> bytes;

  Weights(WeightType t, uint32_t num_rows, uint32_t num_inputs, uint32_t seed)
      : type(t), rows(num_rows), inputs(num_inputs) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);
    bytes.resize(size_t{rows} * (inputs / InputsOfBlock(t)) * BytesOfBlock(t));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    for (size_t at = 0; at < bytes.size(); at += BytesOfBlock(t)) {
      const float d = scale(rng);
      if (t == WeightType::kF32) {
        Set(at, d - 0.01f);
      } else if (t == WeightType::kBF16) {
        Set(at, F32ToBF16(d - 0.01f));
      } else if (t == WeightType::kF16) {
        Set(at, F32ToF16(d - 0.01f));
      } else if (t == WeightType::kQ6_K) {
        Set(at + 208, F32ToF16(d / 64));
      } else {
        const bool super = t == WeightType::kQ4_K || t == WeightType::kQ5_K;
        Set(at, F32ToF16(super ? d / 32 : d));
        if (super) Set(at + 2, F32ToF16(d / 16));
        if (t == WeightType::kQ4_1 || t == WeightType::kQ5_1) Set(at + 2, F32ToF16(-7.3f * d));
      }
    }
  }

  template <typename T>
  void Set(size_t at, T value) {
    std::memcpy(&bytes[at], &value, sizeof value);
  }

  PackedMatrix Pack(int threads = 1, const float* bias = nullptr) const {
    const PackedMatrix::Source source{type, bytes.data(), rows, bias};
    auto packed = PackedMatrix::Pack(inputs, {&source, 1}, threads);
    EXPECT_TRUE(packed.ok());
    return std::move(*packed);
  }

  const std::byte* Row(uint32_t r) const {
    return bytes.data() + r * (inputs / InputsOfBlock(type)) * BytesOfBlock(type);
  }
};

// Weights of block b (32 inputs) of a row as w = d[k] * u + m, k the half of the block: read once
// more from the description of the format, one element at a time.
struct PlainBlock {
  int32_t u[32];
  float d[2];
  float m = 0;
  bool has_m = false;
};

PlainBlock ReadPlain(WeightType type, const std::byte* row, uint32_t b) {
  PlainBlock out;
  const auto byte = [&](size_t at) { return static_cast<uint32_t>(row[at]); };
  const auto bit = [&](size_t at, uint32_t n) { return byte(at + n / 8) >> n % 8 & 1; };
  if (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
    row += b / 8 * BytesOfBlock(type);
    b %= 8;
    uint32_t scale = byte(4 + b % 4), min = byte(8 + b % 4);
    if (b < 4) {
      scale &= 63;
      min &= 63;
    } else {
      const uint32_t low = byte(12 + b % 4);
      scale = (scale >> 6) << 4 | (low & 15);
      min = (min >> 6) << 4 | low >> 4;
    }
    out.d[0] = out.d[1] = static_cast<float>(scale) * HalfAt(row);
    out.m = -(static_cast<float>(min) * HalfAt(row + 2));
    out.has_m = true;
    for (uint32_t k = 0; k < 32; k++) {
      const size_t nibbles = type == WeightType::kQ5_K ? 48 : 16;
      out.u[k] = static_cast<int32_t>(byte(nibbles + b / 2 * 32 + k) >> b % 2 * 4 & 15);
      if (type == WeightType::kQ5_K) out.u[k] += static_cast<int32_t>((byte(16 + k) >> b & 1) * 16);
    }
    return out;
  }
  if (type == WeightType::kQ6_K) {
    row += b / 8 * 210;
    b %= 8;
    for (uint32_t k = 0; k < 2; k++) {
      const auto scale = static_cast<int8_t>(byte(192 + 2 * b + k));
      out.d[k] = static_cast<float>(scale) * HalfAt(row + 208);
    }
    for (uint32_t k = 0; k < 32; k++) {
      const uint32_t low = byte(b / 4 * 64 + b % 2 * 32 + k) >> b % 4 / 2 * 4 & 15;
      const uint32_t high = byte(128 + b / 4 * 32 + k) >> b % 4 * 2 & 3;
      out.u[k] = static_cast<int32_t>(low + 16 * high) - 32;
    }
    return out;
  }
  row += b * BytesOfBlock(type);
  out.d[0] = out.d[1] = HalfAt(row);
  out.has_m = type == WeightType::kQ4_1 || type == WeightType::kQ5_1;
  if (out.has_m) out.m = HalfAt(row + 2);
  size_t at = out.has_m ? 4 : 2;
  for (uint32_t k = 0; k < 32; k++) {
    if (type == WeightType::kQ8_0) {
      out.u[k] = static_cast<int8_t>(byte(at + k));
      continue;
    }
    const bool five = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
    uint32_t u = byte(at + (five ? 4 : 0) + k % 16) >> k / 16 * 4 & 15;
    if (five) u += 16 * bit(at, k);
    out.u[k] = static_cast<int32_t>(u);
    if (!out.has_m) out.u[k] -= five ? 16 : 8;
  }
  return out;
}

float BFloat(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return BF16ToF32(bits);
}

// What Multiply must give to the last bit: sum_b over whole blocks, in order, of one output.
float PlainIntProduct(const Weights& w, uint32_t r, const std::byte* input, float sum) {
  const auto* x = reinterpret_cast<const QuantBlock*>(input);
  for (uint32_t b = 0; b < w.inputs / kQuantBlock; b++) {
    const PlainBlock block = ReadPlain(w.type, w.Row(r), b);
    const uint32_t parts = w.type == WeightType::kQ6_K ? 2 : 1;
    for (uint32_t part = 0; part < parts; part++) {
      int32_t dot = 0;
      for (uint32_t k = 32 / parts * part; k < 32 / parts * (part + 1); k++)
        dot += block.u[k] * x[b].q[k];
      sum = std::fma(static_cast<float>(dot), block.d[part] * x[b].scale, sum);
    }
    if (block.has_m) sum = std::fma(block.m, x[b].scaled_sum, sum);
  }
  return sum;
}

double WeightOf(const Weights& w, uint32_t r, uint32_t i) {
  const std::byte* p = w.Row(r) + size_t{i} * BytesOfBlock(w.type);
  if (w.type == WeightType::kF16) return HalfAt(p);
  if (w.type == WeightType::kBF16) return BFloat(p);
  float f;
  std::memcpy(&f, p, 4);
  return f;
}

double InputOf(InputFormat format, const std::byte* input, uint32_t i) {
  if (format == InputFormat::kBF16) return BFloat(input + size_t{i} * 2);
  float f;
  std::memcpy(&f, input + size_t{i} * 4, 4);
  return f;
}

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// Activations of one product.
struct Inputs {
  std::vector<std::byte> bytes;
  InputRows rows;

  Inputs(const std::vector<float>& x, uint32_t inputs, InputFormat format) {
    rows.num = static_cast<uint32_t>(x.size() / inputs);
    rows.stride = InputRowBytes(format, inputs);
    bytes.resize(rows.num * rows.stride);
    Quantize(format, x.data(), inputs, inputs, bytes.data(), 0, rows.num);
    rows.data = bytes.data();
  }
  const std::byte* Row(uint32_t t) const { return bytes.data() + t * rows.stride; }
  InputRows Some(uint32_t first, uint32_t num) const { return {Row(first), rows.stride, num}; }
};

std::string NameOf(WeightType type) {
  static constexpr const char* kNames[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K",
                                           "Q5_K", "Q6_K", "F16",  "BF16", "F32"};
  return kNames[static_cast<int>(type)];
}

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

TEST(F16, RoundTripsEveryFiniteValue) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const auto half = static_cast<uint16_t>(h);
    if ((half & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(F32ToF16(F16ToF32(half)), half);
  }
}

}  // namespace
}  // namespace kvlink::kernel
