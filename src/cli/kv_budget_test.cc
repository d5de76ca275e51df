#include "cli/kv_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlink::cli {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;
const KvShape kShape{30, 3, 64, 32, KvType::kF16};

TEST(KvBudget, TheDefaultIsHalfOfWhatModelAndMarginLeave) {
  EXPECT_EQ(DefaultKvBytes(8 * kGiB + kGiB / 2, 2 * kGiB), 3 * kGiB);
}

TEST(KvBudget, TheDefaultHasAFloorAndACeiling) {
  EXPECT_EQ(DefaultKvBytes(kGiB, 4 * kGiB), 64u << 20);
  EXPECT_EQ(DefaultKvBytes(512 * kGiB, kGiB), 16 * kGiB);
  EXPECT_EQ(DefaultKvBytes(0, kGiB), kGiB);
}

TEST(KvBudget, AGivenSizeIsTakenAsItIs) {
  EXPECT_EQ(*ChooseKvBytes("3G", kGiB, 8 * kGiB, kGiB, kShape), 3 * kGiB);
}

TEST(KvBudget, SizesThatCannotWorkAreRefusedWithOptionAndFigures) {
  const auto error = [](const std::string& text) {
    return ChooseKvBytes(text, 4 * kGiB, 8 * kGiB, kGiB, kShape).status().message();
  };
  EXPECT_THAT(error("lots"), HasSubstr("--kv-memory: 'lots' is not a size"));
  EXPECT_THAT(error("1M"), HasSubstr("--kv-memory: '1M' holds less than two blocks"));
  EXPECT_THAT(error("9G"), HasSubstr("--kv-memory: '9G' is more than this machine's memory"));
}

TEST(KvBudget, TheDescriptionCountsWholePagesOnly) {
  const uint64_t bytes = kShape.page_bytes() * 513 + 5;
  EXPECT_THAT(DescribeKvBytes(bytes, kShape, 8192),
              HasSubstr(": 16,416 tokens, 2 sequences of 8,192"));
  EXPECT_THAT(DescribeKvBytes(bytes, kShape, 8193), HasSubstr("1 sequence of 8,193"));
}

TEST(KvBudget, DigitsAreGroupedByThree) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
}

}  // namespace
}  // namespace kvlink::cli
