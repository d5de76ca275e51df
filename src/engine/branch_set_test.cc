#include "engine/branch_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/logprobs.h"

namespace kvlink::engine {
namespace {

using ::testing::ElementsAre;

uint32_t Shared(const std::vector<std::vector<TokenId>>& branches) {
  const std::vector<std::span<const TokenId>> spans(branches.begin(), branches.end());
  return SharedTrunk(spans);
}

TEST(BranchSet, SharedTrunkLeavesEachBranchItsLastToken) {
  EXPECT_EQ(Shared({{1}}), 0u);
  EXPECT_EQ(Shared({{1, 2, 3}}), 2u);
  EXPECT_EQ(Shared({{1, 2, 3}, {1, 2, 3}}), 2u);
  EXPECT_EQ(Shared({{1, 2, 3, 4}, {1, 2}}), 1u);
  EXPECT_EQ(Shared({{1}, {1, 2, 3, 4}}), 0u);
  EXPECT_EQ(Shared({{1, 2, 9, 4}, {1, 2, 3, 4}, {1, 2, 3}}), 2u);
  EXPECT_EQ(Shared({{5, 2}, {1, 2}}), 0u);
}

TEST(BranchSet, BestBranchesOrdersByMeanLogprobThenByIndex) {
  const std::vector<BranchScore> scores = {{-4, 2}, {-3, 3}, {-9, 9}, {0, 0}};
  EXPECT_THAT(BestBranches(scores, 3), ElementsAre(1, 2, 0));
  EXPECT_THAT(BestBranches(scores, 9), ElementsAre(1, 2, 0, 3));
}

TEST(Logprobs, LogSumExpIsStableForLargeLogits) {
  const std::vector<float> logits = {1000.0f, 1000.0f, -1000.0f};
  EXPECT_NEAR(LogSumExp(logits), 1000.0 + std::log(2.0), 1e-9);
  const std::vector<float> none = {-std::numeric_limits<float>::infinity(), 3.0f};
  EXPECT_NEAR(LogSumExp(none), 3.0, 1e-12);
}

TEST(Logprobs, TopIsDescendingWithTheLowestIdFirstOnATie) {
  const std::vector<float> logits = {1, 3, 2, 3, 0, 2};
  const double sum = LogSumExp(logits);
  std::vector<TokenId> ids;
  for (const TokenLogprob& entry : TopLogprobs(logits, sum, 4)) {
    ids.push_back(entry.token);
    EXPECT_NEAR(entry.logprob, logits[static_cast<size_t>(entry.token)] - sum, 1e-6);
  }
  EXPECT_THAT(ids, ElementsAre(1, 3, 2, 5));
  EXPECT_TRUE(TopLogprobs(logits, sum, 0).empty());
  EXPECT_EQ(TopLogprobs(logits, sum, 99).size(), 6u);
}

}  // namespace
}  // namespace kvlink::engine
