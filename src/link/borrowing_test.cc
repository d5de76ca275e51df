// What a sequence with a donor's rows reads, holds, and leaves behind.
#include <gtest/gtest.h>

#include <set>

#include "link/similar_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 32;

class BorrowingTest : public ::testing::Test {
 protected:
  void SetUp() override { harness_.Create(); }
  CacheStats Stats() const { return harness_.cache->Stats(); }
  uint64_t Outcomes(SimilarReason reason) const {
    return Stats().similar_outcomes[static_cast<size_t>(reason)];
  }
  uint64_t PagesInUse() const { return Stats().in_use_bytes / Stats().page_bytes; }

  const Tokens system_ = RandomTokens(1, 50);
  const Tokens clock_ = RandomTokens(2, 6);
  const Tokens policy_ = RandomTokens(3, 1000);
  const Tokens question_ = RandomTokens(4, 20);
  const Tokens donor_ = system_ + clock_ + policy_ + question_;
  // Another clock, as long, or longer by five tokens.
  const Tokens same_length_ = system_ + RandomTokens(5, 6) + policy_ + RandomTokens(6, 25);
  const Tokens shifted_ = system_ + RandomTokens(7, 11) + policy_ + RandomTokens(8, 25);

  SimilarHarness harness_{kBlock, 400};
};

TEST_F(BorrowingTest, BehindAChangedHeadRowsAreTheDonorsInPlace) {
  for (const Tokens& prompt : {same_length_, shifted_}) {
    Running donor = harness_.Start(donor_);
    harness_.Compute(donor);
    const uint64_t pages = PagesInUse();
    Running run = harness_.Start(prompt);
    ASSERT_TRUE(run.plan.similar.has_value()) << SimilarReasonName(run.plan.similar_reason);
    EXPECT_EQ(run.ready(), 50u);
    harness_.Compute(run);
    EXPECT_EQ(harness_.WrongRows(run), "");
    const auto computed = static_cast<uint32_t>(run.own.size());
    EXPECT_LT(computed, 150u);
    EXPECT_EQ(harness_.BorrowedRows(run), prompt.size() - 50 - computed);
    EXPECT_EQ(run.plan.similar->selection.num_computed, computed);
    EXPECT_EQ(run.plan.similar->reused_rows, prompt.size() - 50 - computed);
    // Its own pages hold what it computed; all others are the donor's.
    EXPECT_EQ(PagesInUse() - pages, (computed + 1 + kBlock - 1) / kBlock);
  }
}

}  // namespace
}  // namespace kvlink::link
