// Thousands of random operations against a naive reference cache (operations_harness.h).
#include <gtest/gtest.h>

#include <iterator>
#include <tuple>

#include "link/operations_harness.h"

namespace kvlink::link {
namespace {

const OperationsSetting kSettings[] = {
    {.name = "Pressure"},
    {.name = "PressureWithCollidingKeys", .hash_bits = 8},
    {.name = "ManyDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0.5},
    {.name = "OnlyDifferences", .tokens_per_block = 8, .cow_copy_threshold = 1},
    {.name = "NoDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0},
    {.name = "LargeBlocks", .tokens_per_block = 32, .pages = 12},
    {.name = "Roomy", .pages = 20000, .steps = 1500},
    {.name = "RoomyWithCollidingKeys", .pages = 20000, .hash_bits = 8, .steps = 1500},
    {.name = "RoomyWithDifferences",
     .tokens_per_block = 16,
     .pages = 20000,
     .cow_copy_threshold = 0.4,
     .steps = 1500},
    {.name = "SharingOff", .sharing = Sharing::kOff},
    {.name = "QuotaOfATenant", .pages = 40, .quota_pages = 11},
    {.name = "QuotaWithDifferences",
     .tokens_per_block = 16,
     .pages = 40,
     .cow_copy_threshold = 0.5,
     .quota_pages = 11},
};

class RandomOperations : public ::testing::TestWithParam<std::tuple<OperationsSetting, uint64_t>> {
 protected:
  RandomOperations()
      : random_(std::get<1>(GetParam())),
        operations_(setting_, kKvTypes[std::get<1>(GetParam()) % std::size(kKvTypes)],
                    [this](uint64_t bound) { return random_.Below(bound); }),
        cache_(*operations_.harness().cache) {}

  const OperationsSetting setting_ = std::get<0>(GetParam());
  base::Random random_;
  OperationsHarness operations_;
  Cache& cache_;
};

TEST_P(RandomOperations, EveryReadyRowHoldsWhatAColdRunWouldWriteAndPagesAreConserved) {
  for (int step = 0; step < setting_.steps; ++step) {
    ASSERT_NO_FATAL_FAILURE(operations_.Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(operations_.CheckAccounts()) << "step " << step;
    if (step % 16 == 0) {
      ASSERT_NO_FATAL_FAILURE(operations_.CheckAll()) << "step " << step;
    }
  }
  ASSERT_NO_FATAL_FAILURE(operations_.CheckAll());
  operations_.live().clear();
  operations_.CheckAccounts();
  const CacheStats idle = cache_.Stats();
  EXPECT_EQ(idle.in_use_pages, 0u);
  const bool shares = setting_.sharing == Sharing::kExact;
  EXPECT_EQ(idle.exact_tokens > 0 && idle.partial_tokens > 0, shares);
  EXPECT_EQ(idle.cached_pages > 0, shares);
  if (setting_.hash_bits == 8) {
    EXPECT_GT(idle.collisions, 0u);
  }
  const bool pressed = setting_.pages < 1000 && shares;
  EXPECT_EQ(idle.evicted_blocks > 0, pressed);
  EXPECT_EQ(operations_.quota_evictions() > 0, setting_.quota_pages > 0);
  if (shares) {
    EXPECT_EQ(idle.cow_difference_blocks > 0, setting_.cow_copy_threshold > 0);
  }
  if (setting_.cow_copy_threshold < 1) {
    EXPECT_EQ(idle.cow_full_copies > 0, shares);
  }
  ASSERT_NO_FATAL_FAILURE(operations_.UnpinAll());
  cache_.Clear();
  EXPECT_EQ(cache_.Stats().free_pages, idle.total_pages);
  EXPECT_EQ(cache_.Stats().pinned_bytes, 0u);
}

// The same, while other threads look up, pin and read statistics.
TEST_P(RandomOperations, MayRunWhileOtherThreadsLookUp) {
  const Onlookers onlookers(3, [this](base::Random& random) {
    const Tokens prompt = RandomTokens(random.Below(50), 1 + random.Below(60), 3);
    const Namespace ns{.tenant = random.OneIn(2) ? "a" : "b", .salt = ""};
    const Plan plan = operations_.harness().Lookup(prompt, ns);
    ASSERT_LE(plan.exact_tokens + plan.partial_tokens, prompt.size());
    if (plan.in_flight) cache_.StillComputing(*plan.in_flight);
    operations_.harness().ExpectConserved();
    cache_.Remember(ns, "text", prompt);
    ASSERT_TRUE(cache_.Recall(ns, "text").has_value() || setting_.sharing == Sharing::kOff);
  });
  for (int step = 0; step < setting_.steps / 10; ++step) {
    const uint64_t dice = random_.Below(100);
    const size_t count = operations_.live().size();
    const size_t index = count == 0 ? 0 : random_.Below(count);
    if (count == 0 || (dice < 20 && count < 10)) {
      operations_.Begin();
    } else if (dice < 75) {
      operations_.Compute(operations_.live()[index]);
    } else if (dice < 85 && count < 10) {
      operations_.Fork(index);
    } else {
      operations_.Release(index);
    }
    if (HasFatalFailure()) break;
  }
  operations_.CheckAll();
}

INSTANTIATE_TEST_SUITE_P(Settings, RandomOperations,
                         ::testing::Combine(::testing::ValuesIn(kSettings),
                                            ::testing::Values(1, 2)),
                         kSettingAndSeed);

}  // namespace
}  // namespace kvlink::link
