// Quotas of tenants, and a store that does without a part of its budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "link/cache_harness.h"

namespace kvlink::link {
namespace {

using ::testing::HasSubstr;

const Namespace kA{.tenant = "a", .salt = ""}, kASalted{.tenant = "a", .salt = "s"},
    kB{.tenant = "b", .salt = ""};

class Limits : public ::testing::Test {
 protected:
  Limits() : harness_(8, 40) { harness_.Create(); }
  uint64_t Bytes(uint64_t pages) const { return pages * harness_.options.shape.page_bytes(); }
  void SetQuota(const std::string& tenant, uint64_t pages) {
    harness_.cache->SetQuota(tenant, Bytes(pages));
  }
  TenantUse UseOf(const std::string& tenant) const {
    for (const TenantUse& use : harness_.cache->Tenants()) {
      if (use.tenant == tenant) return use;
    }
    return {};
  }
  uint32_t Found(const Tokens& tokens, const Namespace& ns) const {
    return harness_.Lookup(tokens, ns).diverged_at;
  }
  CacheStats Stats() const { return harness_.cache->Stats(); }
  // Twenty prompts of four blocks; the last one.
  Tokens Flood(const Namespace& ns) {
    Tokens last;
    for (uint64_t i = 0; i < 20; ++i) {
      last = RandomTokens(100 + i, 32);
      harness_.Serve(last, {}, ns);
      harness_.ExpectConserved();
    }
    return last;
  }

  CacheHarness harness_;
  const Tokens quiet_ = RandomTokens(1, 80);
};

TEST_F(Limits, ATenantBeyondItsQuotaEvictsItsOwnBlocksAndNeverAnothers) {
  SetQuota("a", 10);
  harness_.Serve(quiet_, {}, kB);
  const Tokens last = Flood(kA);
  EXPECT_EQ(Found(quiet_, kB), 80u);
  EXPECT_EQ(Found(last, kA), 32u);
  EXPECT_EQ(Found(RandomTokens(100, 32), kA), 0u);
  EXPECT_LE(UseOf("a").bytes, Bytes(10));
  EXPECT_GT(UseOf("a").bytes, Bytes(5));
  EXPECT_GT(UseOf("a").evicted_blocks, 60u);
  EXPECT_EQ(UseOf("b").bytes, Bytes(10));
  EXPECT_GT(Stats().free_pages, 10u);  // it was not the budget that was full
}

TEST_F(Limits, WithoutAQuotaTheSameFloodEvictsWhoeverIsOldest) {
  harness_.Serve(quiet_, {}, kB);
  Flood(kA);
  EXPECT_LT(Found(quiet_, kB), 80u);
  EXPECT_EQ(UseOf("a").evicted_blocks, 0u);
}

TEST_F(Limits, SaltsOfATenantShareItsQuota) {
  SetQuota("a", 10);
  Flood(kA);
  Flood(kASalted);
  EXPECT_LE(UseOf("a").bytes, Bytes(10));
}

TEST_F(Limits, WhatIsInUseCountsAndTheRefusalSaysWhoseLimitItIs) {
  SetQuota("a", 6);
  Branch running = harness_.Begin(RandomTokens(1, 32), kA);  // and a page for what it generates
  const uint64_t in_use = Stats().in_use_bytes;
  const Tokens more = RandomTokens(2, 32);
  const auto refused = harness_.TryBegin(harness_.RequestOf(more, kA));
  ASSERT_EQ(refused.status().code(), StatusCode::kQuotaExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("\"a\""));
  EXPECT_THAT(refused.status().message(), HasSubstr(std::to_string(Bytes(6)) + " bytes"));
  EXPECT_EQ(Stats().in_use_bytes, in_use);
  EXPECT_TRUE(harness_.TryBegin(harness_.RequestOf(more, kB)).ok());
  running.Release();
  EXPECT_TRUE(harness_.TryBegin(harness_.RequestOf(more, kA)).ok());
}

TEST_F(Limits, ASequenceGrowsAndForksWithinTheQuotaOnly) {
  SetQuota("a", 3);
  Branch branch = harness_.Begin(RandomTokens(1, 15), kA);
  branch.ComputePrompt();
  for (TokenId token = 0; token < 9; ++token) {  // the third page is full then
    ASSERT_TRUE(branch.Generate(token).ok()) << token;
  }
  EXPECT_EQ(branch.Generate(7).code(), StatusCode::kQuotaExhausted);
  EXPECT_EQ(branch.Fork(20, 8).status().code(), StatusCode::kQuotaExhausted);
  EXPECT_EQ(branch.WrongRows(), 0u);
  SetQuota("a", 0);
  EXPECT_TRUE(branch.Generate(7).ok());
}

TEST_F(Limits, SharedBlocksCountOnce) {
  SetQuota("a", 7);
  const Tokens common = RandomTokens(1, 40);  // five pages
  harness_.Serve(common, {}, kA);
  Branch one = harness_.Begin(common + RandomTokens(2, 4), kA);
  Branch two = harness_.Begin(common + RandomTokens(3, 4), kA);
  EXPECT_EQ(one.ready(), 40u);
  EXPECT_EQ(two.ready(), 40u);
  EXPECT_EQ(UseOf("a").bytes, Bytes(7));
}

TEST_F(Limits, ALowerQuotaEvictsAtOnceWhatNobodyUses) {
  Flood(kA);
  harness_.Serve(quiet_, {}, kB);
  Branch running = harness_.Begin(RandomTokens(119, 32), kA);
  SetQuota("a", 2);
  EXPECT_EQ(UseOf("a").bytes, Stats().in_use_bytes);
  EXPECT_EQ(Found(quiet_, kB), 80u);
  running.ComputePrompt();
  running.Release();
  harness_.Serve(RandomTokens(7, 8), {}, kA);
  EXPECT_LE(UseOf("a").bytes, Bytes(2));
}

TEST_F(Limits, APinHoldsAgainstTheQuotaToo) {
  SetQuota("a", 11);
  harness_.Serve(quiet_, {}, kA);
  ASSERT_TRUE(harness_.cache->Pin(harness_.RequestOf(quiet_, kA), std::chrono::hours(1)).ok());
  const Tokens more = RandomTokens(2, 32);
  EXPECT_EQ(harness_.TryBegin(harness_.RequestOf(more, kA)).status().code(),
            StatusCode::kQuotaExhausted);
  EXPECT_EQ(Found(quiet_, kA), 80u);
  harness_.clock.Advance(std::chrono::hours(2));
  EXPECT_TRUE(harness_.TryBegin(harness_.RequestOf(more, kA)).ok());
}

TEST_F(Limits, TenantsThatAreGoneAreForgotten) {
  const size_t before = Stats().tracking_bytes;
  for (int i = 0; i < 5000; ++i) {
    harness_.Serve({1, 2, 3}, {}, {.tenant = "tenant" + std::to_string(i), .salt = ""});
  }
  EXPECT_LE(harness_.cache->Tenants().size(), 40u);
  EXPECT_LT(Stats().tracking_bytes, before + 3000 * 250);
}

// --- short of memory ---

TEST_F(Limits, WhatIsWithheldIsFreedFromCachedBlocksAndStaysFree) {
  Flood(kA);
  ASSERT_GT(Stats().cached_pages, 30u);
  EXPECT_EQ(harness_.cache->Withhold(Bytes(25)), Bytes(25));
  EXPECT_EQ(Stats().cached_pages, 15u);
  const Tokens last = Flood(kB);
  EXPECT_EQ(Found(last, kB), 32u);  // it still caches, in what is left
  EXPECT_LE(Stats().cached_pages, 15u);
  EXPECT_EQ(harness_.cache->Withhold(0), 0u);
  Flood(kA);
  EXPECT_GT(Stats().cached_pages, 30u);
  harness_.ExpectConserved();
}

TEST_F(Limits, WhatASequenceNeedsItGetsFromWhatIsWithheld) {
  Flood(kA);
  EXPECT_EQ(harness_.cache->Withhold(Bytes(1000)), Bytes(40));
  Branch branch = harness_.Begin(RandomTokens(5, 200), kA);
  branch.ComputePrompt();
  EXPECT_EQ(branch.WrongRows(), 0u);
  EXPECT_EQ(harness_.cache->Withhold(Bytes(1000)), Bytes(14));
  EXPECT_EQ(branch.WrongRows(), 0u);
  branch.Release();
  EXPECT_EQ(harness_.cache->Withhold(Bytes(1000)), Bytes(40));
}

}  // namespace
}  // namespace kvlink::link
