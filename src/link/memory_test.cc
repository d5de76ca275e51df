// The budget, what is evicted, what is pinned, and what tracking costs.
#include <gtest/gtest.h>

#include "link/cache_harness.h"

namespace kvlink::link {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlock = 32;

class MemoryTest : public ::testing::Test {
 protected:
  void Create(uint64_t pages) {
    harness_.options.budget_bytes = pages * harness_.options.shape.page_bytes();
    harness_.Create();
  }
  CacheStats Stats() const { return harness_.cache->Stats(); }
  CacheHarness harness_{kBlock, 1};
};

// Acceptance 14.
TEST_F(MemoryTest, APromptThatCanNeverFitIsRefusedWithTheFigures) {
  Create(10);
  const Tokens prompt = RandomTokens(1, 30 * kBlock);
  const auto begun = harness_.TryBegin(harness_.RequestOf(prompt));
  ASSERT_FALSE(begun.ok());
  EXPECT_EQ(begun.status().code(), StatusCode::kInvalidArgument);
  for (const char* figure : {"960 tokens", "63488 bytes", "20480 bytes", "320 tokens"}) {
    EXPECT_NE(begun.status().message().find(figure), std::string::npos)
        << figure << " in: " << begun.status().message();
  }
  EXPECT_EQ(Stats().free_pages, 10u);
  const Tokens exactly = RandomTokens(1, 10 * kBlock - 1);
  EXPECT_EQ(harness_.Serve(exactly), 0u);
  EXPECT_EQ(harness_.TryBegin(harness_.RequestOf({})).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(MemoryTest, WhatDoesNotFitNowIsRefusedWholeAndFitsWhenOthersAreDone) {
  Create(10);
  Branch a = harness_.Begin(RandomTokens(1, 6 * kBlock));
  a.ComputePrompt();
  const CacheStats before = Stats();
  const Tokens prompt = RandomTokens(2, 5 * kBlock);
  const auto refused = harness_.TryBegin(harness_.RequestOf(prompt));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Stats().in_use_bytes, before.in_use_bytes);
  EXPECT_EQ(Stats().free_pages, before.free_pages);
  EXPECT_EQ(Stats().queried_tokens, before.queried_tokens);
  EXPECT_EQ(a->Reserve(11 * kBlock).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(a->capacity(), 7 * kBlock);
  EXPECT_TRUE(a->Reserve(10 * kBlock).ok());
  EXPECT_EQ(a.Fork(6 * kBlock, 8).ok(), true);  // whole blocks: nothing to copy
  EXPECT_EQ(a.Fork(5 * kBlock + 3, 8).status().code(), StatusCode::kResourceExhausted);
  a.Release();
  EXPECT_EQ(harness_.Serve(prompt), 0u);
}

TEST_F(MemoryTest, RefusingEvictsNothing) {
  Create(10);
  harness_.Serve(RandomTokens(1, 3 * kBlock - 1));
  Branch a = harness_.Begin(RandomTokens(2, 4 * kBlock - 1));
  const Tokens prompt = RandomTokens(3, 7 * kBlock - 1);  // 3 free + 3 cached pages: one too few
  EXPECT_EQ(harness_.TryBegin(harness_.RequestOf(prompt)).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(Stats().cached_pages, 3u);
  EXPECT_EQ(Stats().evicted_blocks, 0u);
}

TEST_F(MemoryTest, APromptAloneAlwaysFitsEvenWhenSlabsOfDifferencesAreCached) {
  Create(6);
  const Tokens prompt = RandomTokens(1, kBlock - 2);
  Branch a = harness_.Begin(prompt, {}, 1);
  a.ComputePrompt();
  Branch b = harness_.Begin(prompt, {}, 2);
  ASSERT_TRUE(b.Generate(1).ok());
  EXPECT_EQ(Stats().cow_difference_blocks, 1u);
  a.Release();
  b.Release();
  EXPECT_EQ(Stats().in_use_pages, 0u);
  EXPECT_EQ(Stats().cached_pages, 2u);  // the base, and the slab that holds the cells
  EXPECT_EQ(harness_.Serve(RandomTokens(2, 6 * kBlock - 1)), 0u);
  EXPECT_EQ(Stats().free_pages + Stats().cached_pages, 6u);
}

// Acceptance 17.
TEST_F(MemoryTest, AHotPromptSurvivesAFloodOfOneOffPrompts) {
  Create(200);
  const Tokens system = RandomTokens(1, 2048);
  for (uint64_t i = 0; i < 20; ++i) harness_.Serve(system + RandomTokens(100 + i, 20));
  for (uint64_t i = 0; i < 500; ++i) {
    ASSERT_EQ(harness_.Serve(RandomTokens(1000 + i, 2048)), 0u);
  }
  EXPECT_GT(Stats().evicted_blocks, 30000u);
  EXPECT_EQ(harness_.Serve(system + RandomTokens(99, 20)), 2048u);
}

// Acceptance 13, for exact reuse.
TEST_F(MemoryTest, AFloodDoesNotGrowTheIndexNorStopNewPromptsFromBeingFound) {
  Create(50);
  uint64_t most = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const Tokens prompt = RandomTokens(i, 300);
    ASSERT_EQ(harness_.Serve(prompt), 0u);
    ASSERT_EQ(harness_.Serve(prompt), 300u);  // what was just computed is always found again
    if (i == 100) most = Stats().tracking_bytes;
  }
  EXPECT_LE(Stats().tracking_bytes, most * 11 / 10);
}

// Acceptance 19.
TEST_F(MemoryTest, NPlusOnePromptsInTurnOverNSequencesAllHit) {
  Create(200);
  for (int round = 0; round < 5; ++round) {
    for (uint64_t prompt = 0; prompt < 17; ++prompt) {
      EXPECT_EQ(harness_.Serve(RandomTokens(prompt, 300)), round == 0 ? 0u : 300u);
    }
  }
}

TEST_F(MemoryTest, ALongChatStillHitsAfterTwentyShortCallsThatShareItsFirstTokens) {
  Create(300);
  const Tokens chat = RandomTokens(1, 3000);
  harness_.Serve(chat);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(harness_.Serve(FirstOf(chat, 17) + RandomTokens(10 + i, 200)), 17u);
  }
  EXPECT_EQ(harness_.Serve(chat + RandomTokens(2, 40)), 3000u);
}

TEST_F(MemoryTest, EvictionTakesAChainFromItsEnd) {
  Create(20);
  const Tokens prompt = RandomTokens(1, 10 * kBlock);
  harness_.Serve(prompt);
  uint32_t last = 10 * kBlock;
  for (uint64_t i = 0; i < 6; ++i) {
    Branch branch = harness_.Begin(RandomTokens(2 + i, (11 + i) * kBlock));
    const uint32_t now = harness_.Lookup(prompt).diverged_at;
    EXPECT_LE(now, last);
    EXPECT_EQ(now % kBlock, 0u);
    last = now;
  }
  EXPECT_LT(last, 10 * kBlock);
  EXPECT_GT(last, 0u);
}

TEST_F(MemoryTest, APinHoldsAPromptThroughAFloodUntilItExpires) {
  Create(40);
  const Tokens prompt = RandomTokens(1, 330);
  harness_.Serve(prompt);
  const auto pinned = harness_.cache->Pin(harness_.RequestOf(prompt), seconds(60));
  ASSERT_TRUE(pinned.ok()) << pinned.status().ToString();
  EXPECT_EQ(*pinned, 330u);
  EXPECT_EQ(Stats().pinned_bytes, 11 * Stats().page_bytes);
  const auto flood = [&](uint64_t seed) {
    for (uint64_t i = 0; i < 30; ++i) harness_.Serve(RandomTokens(seed + i, 600));
  };
  flood(100);
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 330u);
  harness_.clock.Advance(seconds(61));
  flood(200);
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 0u);
  EXPECT_EQ(Stats().pinned_bytes, 0u);
}

TEST_F(MemoryTest, PinsStayWithinTheirBudget) {
  Create(40);
  harness_.Serve(RandomTokens(1, 15 * kBlock));
  harness_.Serve(RandomTokens(2, 15 * kBlock));
  const auto pin = [&](uint64_t seed) {
    const Tokens prompt = RandomTokens(seed, 15 * kBlock);
    return harness_.cache->Pin(harness_.RequestOf(prompt), seconds(10));
  };
  EXPECT_EQ(*pin(1), 15 * kBlock);
  EXPECT_EQ(*pin(1), 15 * kBlock);  // costs nothing again
  EXPECT_EQ(*pin(2), 5 * kBlock);   // half of 40 pages is full
  EXPECT_EQ(Stats().pinned_bytes, 20 * Stats().page_bytes);
  EXPECT_EQ(*pin(3), 0u);  // nothing resident
  harness_.Serve(RandomTokens(4, kBlock));
  const Tokens fourth = RandomTokens(4, kBlock);
  const auto full = harness_.cache->Pin(harness_.RequestOf(fourth), seconds(10));
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(harness_.cache->Pin(harness_.RequestOf(fourth), milliseconds(0)).status().code(),
            StatusCode::kInvalidArgument);
}

// Acceptance 15.
TEST_F(MemoryTest, EverythingIsEvictableWhenNobodyRuns) {
  Create(60);
  for (uint64_t i = 0; i < 50; ++i) {
    Branch a = harness_.Begin(RandomTokens(i % 7, 100 + i));
    a.Compute(std::min<uint32_t>(60, 100 + static_cast<uint32_t>(i) - a.ready()));
    auto fork = a.Fork(a.ready(), 4);
    harness_.ExpectConserved();
  }
  EXPECT_EQ(Stats().in_use_pages, 0u);
  const Tokens whole = RandomTokens(999, 60 * kBlock - 1);
  EXPECT_EQ(harness_.Serve(whole), 0u);
  EXPECT_EQ(Stats().cached_pages, 60u);
}

TEST_F(MemoryTest, ThePeakCountsSharedPagesOnceAndDifferenceCells) {
  Create(40);
  const Tokens prompt = RandomTokens(1, 5 * kBlock + 30);
  std::vector<Branch> branches;
  branches.push_back(harness_.Begin(prompt, {}, 2));
  branches.back().ComputePrompt();
  for (int i = 0; i < 3; ++i) branches.push_back(harness_.Begin(prompt, {}, 2));
  const uint64_t cells = DifferenceView::CellsBytes(harness_.options.shape, 4);
  EXPECT_EQ(Stats().peak_in_use_bytes, 6 * Stats().page_bytes + 3 * cells);
  branches.clear();
  EXPECT_EQ(Stats().in_use_bytes, 0u);
  EXPECT_EQ(Stats().peak_in_use_bytes, 6 * Stats().page_bytes + 3 * cells);
}

// For the default model, whose pages have 737,280 bytes: under 0.1 % of the KV that is there.
TEST_F(MemoryTest, TrackingCostsUnderAThousandthOfTheKv) {
  harness_.options.shape = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
  harness_.options.poison = false;  // pages are never touched: they cost no memory here
  harness_.options.budget_bytes = size_t{1} << 30;
  harness_.Create();
  ASSERT_EQ(harness_.options.shape.page_bytes(), 737280u);
  const Tokens system = RandomTokens(1, 2000);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (uint64_t i = 0; i < 10; ++i) {
    const Tokens prompt = system + RandomTokens(2 + i, 200);
    sequences.push_back(
        harness_.cache->Begin(harness_.RequestOf(prompt), harness_.Lookup(prompt)).value());
    const uint32_t ready = sequences.back()->num_ready();
    sequences.back()->Commit(std::span(prompt).subspan(ready));
  }
  const CacheStats ten = Stats();
  EXPECT_LT(ten.tracking_bytes * 1000, ten.in_use_bytes + ten.cached_bytes);
  sequences.clear();
  for (uint64_t i = 0; i < 20; ++i) {
    const Tokens prompt = RandomTokens(100 + i, 3000);
    auto sequence = harness_.cache->Begin(harness_.RequestOf(prompt), {});
    ASSERT_TRUE(sequence.ok());
    (*sequence)->Commit(prompt);
  }
  const CacheStats full = Stats();
  EXPECT_LT(full.tracking_bytes * 1000, full.cached_bytes);
  RecordProperty("tracking_bytes_per_page",
                 static_cast<int>(full.tracking_bytes / full.cached_pages));
}

TEST_F(MemoryTest, OptionsThatCannotBeUsedAreRefusedByName) {
  const auto message_of = [&](auto change) {
    CacheOptions options = harness_.options;
    options.budget_bytes = size_t{1} << 20;
    change(options);
    const auto created = CreateCache(options);
    return created.ok() ? "" : created.status().message();
  };
  const auto expect = [](const std::string& message, const char* option, const char* value) {
    EXPECT_NE(message.find(option), std::string::npos) << message;
    EXPECT_NE(message.find(value), std::string::npos) << message;
  };
  EXPECT_EQ(message_of([](CacheOptions&) {}), "");
  expect(message_of([](CacheOptions& o) { o.shape.tokens_per_block = 24; }), "tokens_per_block",
         "24");
  expect(message_of([](CacheOptions& o) { o.shape.tokens_per_block = 256; }), "tokens_per_block",
         "256");
  expect(message_of([](CacheOptions& o) { o.shape.head_dim = 0; }), "head_dim", "0");
  expect(message_of([](CacheOptions& o) { o.shape.num_layers = 0; }), "num_layers", "0");
  expect(message_of([](CacheOptions& o) { o.shape.num_kv_heads = 0; }), "num_kv_heads", "0");
  expect(message_of([](CacheOptions& o) { o.cow_copy_threshold = 1.5; }), "cow_copy_threshold",
         "1.5");
  expect(message_of([](CacheOptions& o) { o.pin_budget = -1; }), "pin_budget", "-1");
  expect(message_of([](CacheOptions& o) { o.hash_bits = 0; }), "hash_bits", "0");
  expect(message_of([](CacheOptions& o) { o.budget_bytes = 1000; }), "budget_bytes", "1000");
  expect(message_of([](CacheOptions& o) {
           o.shape.type = KvType::kQ8_0;
           o.shape.head_dim = 6;
         }),
         "shape.head_dim", "6");
}

}  // namespace
}  // namespace kvlink::link
