#include "cache/row_deviation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlink::cache {
namespace {

// Of any value that both types hold exactly.
uint16_t BitsOf(KvType type, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (type == KvType::kBF16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t exponent = bits >> 23 & 0xff;
  if (exponent == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000u);
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | (exponent - 112) << 10 |
                               (bits >> 13 & 0x3ffu));
}

// Two pages, in rows of which values are put.
class RowDeviationTest : public ::testing::TestWithParam<KvType> {
 protected:
  RowDeviationTest() : page_a_(shape_.page_bytes()), page_b_(shape_.page_bytes()) {
    base::Random random(1);
    for (auto* page : {&page_a_, &page_b_}) {
      for (std::byte& byte : *page) byte = static_cast<std::byte>(random.Below(256));
    }
  }
  BlockView a() { return {page_a_.data(), nullptr}; }
  BlockView b() { return {page_b_.data(), nullptr}; }
  // value(layer, head, dimension): multiples of 1/4 up to 16.
  template <typename Value>
  void Put(const BlockView& block, uint32_t row, Value value) {
    for (uint32_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (uint32_t head = 0; head < shape_.num_kv_heads; ++head) {
        const auto place = KvRowOf(shape_, block, layer, head, row);
        const uint16_t quarter = BitsOf(KvType::kF16, 0.25f);
        if (place.v_scale) std::memcpy(place.v_scale, &quarter, 2);
        for (uint32_t d = 0; d < shape_.head_dim; ++d) {
          const float v = value(layer, head, d);
          if (shape_.type == KvType::kQ8_0) {
            place.v[d] = static_cast<std::byte>(static_cast<int8_t>(v * 4));
          } else {
            const uint16_t bits = BitsOf(shape_.type, v);
            std::memcpy(place.v + d * 2, &bits, 2);
          }
        }
      }
    }
  }

  const KvShape shape_{.num_layers = 3,
                       .num_kv_heads = 2,
                       .head_dim = 72,
                       .tokens_per_block = 8,
                       .type = GetParam()};
  std::vector<std::byte> page_a_, page_b_;
};

TEST_P(RowDeviationTest, IsTheRelativeChangeOfAllValues) {
  base::Random random(2);
  std::vector<float> va, vb;
  double changed = 0, all = 0;
  for (uint32_t i = 0; i < 3 * 2 * 72; ++i) {
    va.push_back(static_cast<float>(random.Below(64)) / 4 - 8);
    vb.push_back(static_cast<float>(random.Below(64)) / 4 - 8);
    changed += (va[i] - vb[i]) * (va[i] - vb[i]);
    all += vb[i] * vb[i];
  }
  const auto at = [](uint32_t layer, uint32_t head, uint32_t d) {
    return (layer * 2 + head) * 72 + d;
  };
  Put(a(), 3, [&](auto... place) { return va[at(place...)]; });
  Put(b(), 6, [&](auto... place) { return vb[at(place...)]; });
  EXPECT_NEAR(ValueDeviation(shape_, a(), 3, b(), 6), std::sqrt(changed / all), 1e-6);
}

TEST_P(RowDeviationTest, IsZeroForEqualRowsWhateverLiesAroundThem) {
  const auto value = [](uint32_t layer, uint32_t head, uint32_t d) {
    return static_cast<float>(layer + head + d % 16) / 4;
  };
  Put(a(), 0, value);
  Put(b(), 7, value);
  EXPECT_EQ(ValueDeviation(shape_, a(), 0, b(), 7), 0);
}

TEST_P(RowDeviationTest, SeesOneValueInTheLastLayer) {
  const auto ones = [](uint32_t, uint32_t, uint32_t) { return 1.0f; };
  Put(b(), 2, ones);
  Put(a(), 2, [](uint32_t layer, uint32_t head, uint32_t d) {
    return layer == 2 && head == 1 && d == 71 ? 3.0f : 1.0f;
  });
  EXPECT_NEAR(ValueDeviation(shape_, a(), 2, b(), 2), std::sqrt(4.0 / (3 * 2 * 72)), 1e-6);
}

TEST_P(RowDeviationTest, OfOneLayerIsThatLayersAlone) {
  Put(b(), 2, [](uint32_t, uint32_t, uint32_t) { return 2.0f; });
  Put(a(), 2, [](uint32_t layer, uint32_t, uint32_t) { return layer == 1 ? 3.0f : 2.0f; });
  EXPECT_EQ(ValueDeviation(shape_, 0, a(), 2, b(), 2), 0);
  EXPECT_NEAR(ValueDeviation(shape_, 1, a(), 2, b(), 2), 0.5, 1e-6);
  EXPECT_EQ(ValueDeviation(shape_, 2, a(), 2, b(), 2), 0);
  EXPECT_NEAR(ValueDeviation(shape_, a(), 2, b(), 2), 0.5 / std::sqrt(3.0), 1e-6);
}

TEST_P(RowDeviationTest, IsInfiniteAgainstARowOfZeros) {
  const auto zeros = [](uint32_t, uint32_t, uint32_t) { return 0.0f; };
  Put(a(), 2, zeros);
  Put(b(), 2, zeros);
  EXPECT_EQ(ValueDeviation(shape_, a(), 2, b(), 2), 0);
  Put(a(), 2, [](uint32_t, uint32_t, uint32_t) { return 1.0f; });
  EXPECT_EQ(ValueDeviation(shape_, a(), 2, b(), 2), std::numeric_limits<double>::infinity());
}

TEST_P(RowDeviationTest, ReadsTheCellsOfADifferenceBlock) {
  const auto ones = [](uint32_t, uint32_t, uint32_t) { return 1.0f; };
  Put(a(), 4, ones);
  Put(b(), 4, ones);
  std::vector<std::byte> cells(DifferenceView::CellsBytes(shape_, 1));
  std::vector<int8_t> slots(shape_.tokens_per_block, -1);
  slots[4] = 0;
  const DifferenceView view{.cells = cells.data(), .slots = slots.data(), .capacity = 1};
  const BlockView difference{page_a_.data(), &view};
  Put(difference, 4, [](uint32_t, uint32_t, uint32_t) { return 2.0f; });
  EXPECT_NEAR(ValueDeviation(shape_, difference, 4, b(), 4), 1, 1e-6);
  EXPECT_EQ(ValueDeviation(shape_, a(), 4, b(), 4), 0) << "the base is as it was";
}

// Those whose elements are floats themselves.
class FloatRowDeviationTest : public RowDeviationTest {};

TEST_P(FloatRowDeviationTest, IsNoNumberWhereAValueIsNone) {
  const auto ones = [](uint32_t, uint32_t, uint32_t) { return 1.0f; };
  Put(a(), 1, ones);
  Put(b(), 1, ones);
  const uint16_t nan = GetParam() == KvType::kF16 ? 0x7e00 : 0x7fc0;
  std::memcpy(KvRowOf(shape_, a(), 1, 1, 1).v, &nan, 2);
  EXPECT_TRUE(std::isnan(ValueDeviation(shape_, a(), 1, b(), 1)));
}

INSTANTIATE_TEST_SUITE_P(Types, FloatRowDeviationTest,
                         ::testing::Values(KvType::kF16, KvType::kBF16),
                         [](const auto& type) { return KvTypeName(type.param); });

INSTANTIATE_TEST_SUITE_P(Types, RowDeviationTest,
                         ::testing::Values(KvType::kF16, KvType::kBF16, KvType::kQ8_0),
                         [](const auto& type) { return KvTypeName(type.param); });

TEST(RowDeviation, ReadsSubnormalHalves) {
  const KvShape shape{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .tokens_per_block = 8};
  std::vector<std::byte> page(shape.page_bytes());
  const BlockView block{page.data(), nullptr};
  const uint16_t three = 3, two = 2;  // times 2^-24
  std::memcpy(KvRowOf(shape, block, 0, 0, 0).v, &three, 2);
  std::memcpy(KvRowOf(shape, block, 0, 0, 1).v, &two, 2);
  EXPECT_NEAR(ValueDeviation(shape, block, 0, block, 1), 0.5, 1e-6);
}

}  // namespace
}  // namespace kvlink::cache
