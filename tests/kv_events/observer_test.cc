// What an observer was told is what lookups find, whatever happens to a cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "kvlink/block_observer.h"
#include "kvlink/cache.h"
#include "link/cache_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 8;

// What a router would know: blocks by hash, with tokens and parent.
class Router final : public BlockObserver {
 public:
  struct Known {
    std::optional<uint64_t> parent;
    std::optional<uint64_t> name_space;
    Tokens tokens;
  };
  void Stored(const StoredBlock& block) override {
    Known known{.tokens = Tokens(block.tokens.begin(), block.tokens.end())};
    if (block.parent) known.parent = block.parent->lo;
    if (block.name_space) known.name_space = block.name_space->lo;
    EXPECT_TRUE(!known.parent || blocks.count(*known.parent) > 0) << "a block before its parent";
    EXPECT_EQ(known.tokens.size(), kBlock);
    EXPECT_TRUE(blocks.emplace(block.hash.lo, known).second) << "stored twice";
  }
  void Removed(const BlockHash& hash) override {
    EXPECT_EQ(blocks.erase(hash.lo), 1u) << "removed, and never stored";
    for (const auto& [key, known] : blocks) {
      EXPECT_NE(known.parent, hash.lo) << "removed before its child";
    }
  }
  void Cleared() override {
    ++clears;
    blocks.clear();
  }

  // Full blocks at the start of `tokens`, as a router finds them: by parent and tokens.
  uint32_t Find(const Tokens& tokens, std::optional<uint64_t> name_space) const {
    std::optional<uint64_t> parent;
    uint32_t found = 0;
    for (size_t at = 0; at + kBlock <= tokens.size(); at += kBlock) {
      const Tokens wanted(tokens.begin() + static_cast<ptrdiff_t>(at),
                          tokens.begin() + static_cast<ptrdiff_t>(at + kBlock));
      const auto next = std::find_if(blocks.begin(), blocks.end(), [&](const auto& entry) {
        const Known& known = entry.second;
        return known.parent == parent && known.tokens == wanted && known.name_space == name_space;
      });
      if (next == blocks.end()) break;
      parent = next->first;
      ++found;
    }
    return found;
  }

  std::map<uint64_t, Known> blocks;
  int clears = 0;
};

class ObserverTest : public testing::Test {
 protected:
  void Make(uint64_t pages) {
    CacheOptions options;
    options.shape = CacheHarness::Shape(kBlock);
    options.budget_bytes = pages * options.shape.page_bytes();
    options.model_fingerprint = "test";
    options.observer = &router_;
    auto cache = CreateCache(options);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    cache_ = std::move(cache).value();
  }
  // A prompt that is computed, commits in pieces, and goes.
  void Run(const Tokens& tokens, const Namespace& ns = {}) {
    const LookupRequest request{.tokens = tokens, .ns = ns};
    auto sequence = cache_->Begin(request, cache_->Lookup(request));
    ASSERT_TRUE(sequence.ok()) << sequence.status().message();
    Branch branch(std::move(sequence).value(), ns, tokens, CacheHarness::Shape(kBlock));
    branch.ComputePrompt();
  }
  uint32_t Lookup(const Tokens& tokens, const Namespace& ns = {}) {
    return cache_->Lookup({.tokens = tokens, .ns = ns}).exact_tokens / kBlock;
  }

  Router router_;
  std::unique_ptr<Cache> cache_;
};

Tokens Range(TokenId first, TokenId count) {
  Tokens tokens;
  for (TokenId i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST_F(ObserverTest, HearsOfFullBlocksOnly) {
  Make(16);
  Run(Range(0, 20));
  EXPECT_EQ(router_.blocks.size(), 2u);
  EXPECT_EQ(router_.Find(Range(0, 20), std::nullopt), 2u);
  Run(Range(0, 24));  // the tail grows into a full block
  EXPECT_EQ(router_.blocks.size(), 3u);
}

TEST_F(ObserverTest, HearsOfEvictionsAndOfClearing) {
  Make(8);
  Run(Range(0, 40));
  Run(Range(1000, 40));
  EXPECT_LE(router_.blocks.size(), 8u);
  EXPECT_EQ(router_.Find(Range(1000, 40), std::nullopt), 5u);
  cache_->Clear();
  EXPECT_TRUE(router_.blocks.empty());
  EXPECT_EQ(router_.clears, 1);
}

TEST_F(ObserverTest, TellsNamespacesApart) {
  Make(16);
  Run(Range(0, 16), {.tenant = "a"});
  EXPECT_EQ(router_.Find(Range(0, 16), std::nullopt), 0u);
  ASSERT_EQ(router_.blocks.size(), 2u);
  EXPECT_TRUE(router_.blocks.begin()->second.name_space.has_value());
  Run(Range(0, 16), {.tenant = "b"});
  EXPECT_EQ(router_.blocks.size(), 4u);
}

TEST_F(ObserverTest, WhatARequestMayNotStoreIsNotTold) {
  Make(16);
  const Tokens tokens = Range(0, 16);
  const LookupRequest request{.tokens = tokens, .store = false};
  auto sequence = cache_->Begin(request, cache_->Lookup(request));
  ASSERT_TRUE(sequence.ok());
  Branch branch(std::move(sequence).value(), {}, tokens, CacheHarness::Shape(kBlock));
  branch.ComputePrompt();
  EXPECT_TRUE(router_.blocks.empty());
}

TEST_F(ObserverTest, RandomPromptsThroughASmallCacheAreFoundByTheRouterAsByLookup) {
  Make(24);
  base::Random random(11);
  std::vector<Branch> live;
  for (int step = 0; step < 1500; ++step) {
    Tokens tokens;
    const uint64_t size = 1 + random.Below(60);
    while (tokens.size() < size) {
      // Few distinct blocks, so that prompts share, diverge and meet again.
      const auto kind = static_cast<TokenId>(random.Below(3));
      for (TokenId i = 0; i < static_cast<TokenId>(kBlock); ++i) tokens.push_back(kind * 100 + i);
    }
    tokens.resize(size);
    EXPECT_EQ(router_.Find(tokens, std::nullopt), Lookup(tokens));
    if (random.OneIn(50)) cache_->Clear();
    if (random.OneIn(3) && !live.empty()) live.erase(live.begin());
    const LookupRequest request{.tokens = tokens};
    auto sequence = cache_->Begin(request, cache_->Lookup(request));
    if (!sequence.ok()) {
      live.clear();
      continue;
    }
    live.emplace_back(std::move(sequence).value(), Namespace{}, tokens,
                      CacheHarness::Shape(kBlock));
    live.back().ComputePrompt();
  }
  live.clear();
  cache_->Clear();
  EXPECT_TRUE(router_.blocks.empty());
  EXPECT_GT(router_.clears, 0);
}

}  // namespace
}  // namespace kvlink::link
