// What leaves RAM besides rows: news of what tiers have, for an observer, and generated texts.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "kvlink/block_observer.h"
#include "link/tier_harness.h"
#include "tier/testing/tier_world.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 8;
constexpr size_t kPrompt = 8 * kBlock + 3;  // eight whole blocks and a rest

// What was told, by the low half of the hash. Must outlive the cache.
class Listener final : public BlockObserver {
 public:
  void Stored(const StoredBlock& block) override { ram.insert(block.hash.lo); }
  void Removed(const BlockHash& hash) override { EXPECT_EQ(ram.erase(hash.lo), 1u); }
  void Cleared() override {
    ram.clear();
    tiers.clear();
  }
  void StoredInTier(const StoredBlock& block, std::string_view tier) override {
    auto& in = tiers[std::string(tier)];
    EXPECT_TRUE(!block.parent || in.contains(block.parent->lo)) << "a block before its parent";
    EXPECT_TRUE(in.emplace(block.hash.lo, Tokens(block.tokens.begin(), block.tokens.end())).second);
    name_spaces.insert(block.name_space ? block.name_space->lo : 0);
  }
  void RemovedFromTier(const BlockHash& hash, std::string_view tier) override {
    EXPECT_EQ(tiers[std::string(tier)].erase(hash.lo), 1u) << "removed, and never stored";
  }
  size_t in(const std::string& tier) const {
    const auto found = tiers.find(tier);
    return found == tiers.end() ? 0 : found->second.size();
  }

  std::set<uint64_t> ram, name_spaces;
  std::map<std::string, std::map<uint64_t, Tokens>> tiers;
};

class TierNewsTest : public ::testing::Test {
 protected:
  void Make(std::vector<std::string> names = {"cold"}) {
    harness_ = std::make_unique<TierHarness>(kBlock, 64, KvType::kF16, std::move(names));
    harness_->options.observer = &listener_;
    harness_->Create();
  }
  // As an engine that has nothing to do, until nothing is new.
  void RunIdle() {
    harness_->DrainAll();
    harness_->clock.Advance(std::chrono::seconds(1));
    harness_->cache->RunIdle();
  }
  // A tier may be later than a request has patience for: then the next request finds the text.
  bool EventuallyRecalls(const Namespace& ns, std::string_view text, const Tokens& ids) {
    return tier::Eventually([&] { return harness_->cache->Recall(ns, text) == ids; });
  }
  void LoseAllOf(size_t tier) {
    std::vector<tier::BlockKey> keys;
    ASSERT_TRUE(harness_->blocks[tier]
                    ->List([&keys](const tier::TierEntry& entry) {
                      keys.push_back(entry.key);
                      return true;
                    })
                    .ok());
    harness_->blocks[tier]->Remove(keys, std::chrono::steady_clock::now());
  }

  Listener listener_;
  std::unique_ptr<TierHarness> harness_;
  const Tokens prompt_ = RandomTokens(1, kPrompt);
};

TEST_F(TierNewsTest, WhatATierHasIsToldAndToldAgainAfterAClear) {
  Make();
  harness_->Serve(prompt_);
  RunIdle();
  EXPECT_EQ(listener_.ram.size(), 8u);
  ASSERT_EQ(listener_.in("cold"), 8u);
  for (const auto& [hash, tokens] : listener_.tiers["cold"]) {
    EXPECT_TRUE(listener_.ram.contains(hash)) << "the same name as in RAM";
    EXPECT_EQ(tokens.size(), kBlock);
  }
  EXPECT_FALSE(harness_->cache->RunIdle()) << "nothing more to tell";
  harness_->cache->Clear();
  EXPECT_EQ(listener_.in("cold"), 0u);
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 8u);
  EXPECT_EQ(listener_.ram.size(), 0u);
}

TEST_F(TierNewsTest, AClearThatLeavesWhatARequestUsesTellsNothingTwice) {
  Make();
  harness_->Serve(prompt_);
  RunIdle();
  Branch running = harness_->Begin(FirstOf(prompt_, 2 * kBlock + 1));
  harness_->cache->Clear();
  EXPECT_GE(listener_.ram.size(), 2u) << "in use";
  EXPECT_LT(listener_.ram.size(), 8u);
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 8u);
  LoseAllOf(0);
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 0u);
}

TEST_F(TierNewsTest, WhatATierLosesIsTold) {
  Make({"cold", "remote"});
  harness_->Serve(prompt_);
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 8u);
  EXPECT_EQ(listener_.in("remote"), 8u);
  LoseAllOf(0);
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 0u);
  EXPECT_EQ(listener_.in("remote"), 8u);
  LoseAllOf(1);
  RunIdle();
  EXPECT_EQ(listener_.in("remote"), 0u);
}

TEST_F(TierNewsTest, BlocksOfAnEarlierRunAreToldWhenTheyWereLoaded) {
  Make();
  harness_->Serve(prompt_);
  harness_->DrainAll();
  harness_->cache.reset();
  listener_ = {};
  harness_->Create();
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 0u);
  harness_->ServeLoaded(FirstOf(prompt_, 3 * kBlock + 1));
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 3u);
  EXPECT_EQ(listener_.ram.size(), 3u);
}

TEST_F(TierNewsTest, NamespacesAreToldApart) {
  Make();
  harness_->Serve(prompt_);
  RunIdle();
  EXPECT_EQ(listener_.name_spaces, std::set<uint64_t>{0});
  harness_->Serve(prompt_, {}, {.tenant = "a", .salt = ""});
  RunIdle();
  EXPECT_EQ(listener_.name_spaces.size(), 2u);
  EXPECT_EQ(listener_.in("cold"), 16u);
}

TEST_F(TierNewsTest, ABlockThatNoTierTakesIsGivenUp) {
  Make();
  harness_->faults[0]->put_errors = 1000;
  harness_->Serve(prompt_);
  RunIdle();
  EXPECT_EQ(listener_.in("cold"), 0u);
  harness_->clock.Advance(TierNotices::kGiveUpAfter);
  EXPECT_FALSE(harness_->cache->RunIdle());
}

const Namespace kTenant{.tenant = "a", .salt = ""};

TEST_F(TierNewsTest, ATextIsRecalledAfterARestartUnderItsNamespaceOnly) {
  Make();
  const Tokens ids = {5, 0, 70'000, 1};
  harness_->cache->Remember(kTenant, "an answer", ids);
  harness_->DrainAll();
  harness_->Create();
  EXPECT_EQ(harness_->cache->Recall({}, "an answer"), std::nullopt);
  EXPECT_EQ(harness_->cache->Recall(kTenant, "an answe"), std::nullopt);
  EXPECT_EQ(harness_->cache->Stats().output_splices, 0u);
  EXPECT_TRUE(EventuallyRecalls(kTenant, "an answer", ids));
  EXPECT_EQ(harness_->cache->Stats().output_splices, 1u);
  LoseAllOf(0);
  EXPECT_EQ(harness_->cache->Recall(kTenant, "an answer"), ids) << "in RAM again";
}

TEST_F(TierNewsTest, ATextComesFromAPeerThatOnlyLoadingCanAsk) {
  Make({"remote"});
  harness_->cache->Remember({}, "an answer", Tokens{1, 2});
  harness_->DrainAll();
  harness_->faults[0]->asks_peer = true;
  // It answers within the patience for a peer, sooner or later.
  EXPECT_TRUE(tier::Eventually([&] {
    harness_->Create();
    return harness_->cache->Recall({}, "an answer") == Tokens{1, 2};
  }));
}

TEST_F(TierNewsTest, ATextThatWasDamagedOrHangsIsTokenisedAgain) {
  Make();
  harness_->cache->Remember({}, "an answer", Tokens{1, 2});
  harness_->DrainAll();
  harness_->Create();
  harness_->faults[0]->hangs = true;
  EXPECT_EQ(harness_->cache->Recall({}, "an answer"), std::nullopt);
  harness_->faults[0]->hangs = false;
  harness_->faults[0]->bit_flips = 1000;
  EXPECT_EQ(harness_->cache->Recall({}, "an answer"), std::nullopt);
}

TEST_F(TierNewsTest, TextsOfATenantThatStaysInRamStayThere) {
  Make();
  harness_->options.tiers.may_leave_ram = [](const Namespace& ns) { return ns.tenant != "a"; };
  harness_->Create();
  harness_->cache->Remember(kTenant, "an answer", Tokens{1, 2});
  harness_->DrainAll();
  EXPECT_EQ(harness_->BlocksIn(0), 0u);
  EXPECT_EQ(harness_->cache->Recall(kTenant, "an answer"), (Tokens{1, 2})) << "from RAM";
}

TEST_F(TierNewsTest, ATextIsNoBlockInTheFigures) {
  Make();
  harness_->Serve(prompt_);
  harness_->cache->Remember({}, "an answer", Tokens{1, 2});
  harness_->DrainAll();
  EXPECT_EQ(harness_->BlocksIn(0), 9u);
  EXPECT_EQ(harness_->cache->Tiers()[0].stored, 8u);
  harness_->Create();
  EXPECT_TRUE(EventuallyRecalls({}, "an answer", {1, 2}));
  EXPECT_EQ(harness_->cache->Tiers()[0].hits, 0u);
}

}  // namespace
}  // namespace kvlink::link
