// What is shared, token by token, and what a write into shared rows does.
#include <gtest/gtest.h>

#include "link/cache_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 32;

class SharingTest : public ::testing::Test {
 protected:
  SharingTest() { harness_.Create(); }
  CacheStats Stats() const { return harness_.cache->Stats(); }
  uint64_t PagesInUse() const { return Stats().in_use_bytes / Stats().page_bytes; }
  MissReason ReasonOf(const Tokens& tokens, const Namespace& ns = {}) const {
    return harness_.Lookup(tokens, ns).miss_reason;
  }

  CacheHarness harness_{kBlock, 400};
};

TEST_F(SharingTest, APrefixHitsTokenByToken) {
  const Tokens first = RandomTokens(1, 200);
  harness_.Serve(first);
  for (uint32_t shared = 1; shared < 200; ++shared) {
    const Tokens other = FirstOf(first, shared) + RandomTokens(1000 + shared, 40);
    const Plan plan = harness_.Lookup(other);
    EXPECT_EQ(plan.exact_tokens, shared / kBlock * kBlock);
    EXPECT_EQ(plan.partial_tokens, shared % kBlock);
    EXPECT_EQ(plan.compute_from, shared);
    EXPECT_EQ(plan.diverged_at, shared);
    EXPECT_EQ(plan.miss_reason, MissReason::kDiverged);
  }
  const Tokens other = FirstOf(first, 77) + RandomTokens(2, 40);
  EXPECT_EQ(harness_.Serve(other), 77u);
  const CacheStats stats = Stats();
  EXPECT_EQ(stats.exact_tokens, 64u);
  EXPECT_EQ(stats.partial_tokens, 13u);
  EXPECT_EQ(stats.queried_tokens, 200u + 117u);
}

TEST_F(SharingTest, TwoRequestsHoldOneCopyOfWhatTheyShare) {
  const Tokens prompt = RandomTokens(1, 10 * kBlock);
  Branch a = harness_.Begin(prompt + RandomTokens(2, 5));
  a.ComputePrompt();
  EXPECT_EQ(PagesInUse(), 11u);
  Branch b = harness_.Begin(prompt + RandomTokens(3, 5));
  EXPECT_EQ(PagesInUse(), 12u);
  b.ComputePrompt();
  for (uint32_t block = 0; block < 10; ++block) {
    EXPECT_EQ(a->table().blocks[block], b->table().blocks[block]);
  }
  EXPECT_EQ(a.WrongRows() + b.WrongRows(), 0u);
}

TEST_F(SharingTest, AnEntirelyCachedPromptRecomputesOneTokenAndWritesNone) {
  const Tokens prompt = RandomTokens(1, 3 * kBlock);
  harness_.Serve(prompt);
  const Plan plan = harness_.Lookup(prompt);
  EXPECT_EQ(plan.exact_tokens, 96u);
  EXPECT_EQ(plan.compute_from, 95u);
  EXPECT_EQ(plan.miss_reason, MissReason::kNone);
  EXPECT_EQ(plan.diverged_at, 96u);
  Branch branch = harness_.Begin(prompt);
  EXPECT_EQ(branch.ready(), 96u);
  EXPECT_EQ(branch->capacity(), 128u);
  EXPECT_EQ(Stats().cow_full_copies + Stats().cow_difference_blocks, 0u);
  EXPECT_EQ(branch.WrongRows(), 0u);
}

TEST_F(SharingTest, ARequestForPromptLogProbabilitiesComputesAllOfIt) {
  const Tokens prompt = RandomTokens(1, 100);
  harness_.Serve(prompt);
  LookupRequest request = harness_.RequestOf(prompt);
  request.min_compute = 100;
  EXPECT_EQ(harness_.cache->Lookup(request).compute_from, 0u);
  auto branch = harness_.TryBegin(request);
  ASSERT_TRUE(branch.ok());
  EXPECT_EQ(branch->ready(), 100u);  // their rows are shared all the same
  EXPECT_EQ(Stats().exact_tokens + Stats().partial_tokens, 0u);
}

TEST_F(SharingTest, RowsAreVisibleOnlyAfterCommit) {
  const Tokens prompt = RandomTokens(1, 100);
  Branch branch = harness_.Begin(prompt);
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 0u);
  branch.Compute(40);
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 40u);  // its tail is visible while it lives
  branch.Compute(1);
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 41u);
}

TEST_F(SharingTest, ACancelledRequestLeavesWhatItCommitted) {
  const Tokens prompt = RandomTokens(1, 320);
  Branch branch = harness_.Begin(prompt);
  branch.Compute(170);
  branch.Release();
  EXPECT_EQ(PagesInUse(), 0u);
  EXPECT_EQ(Stats().cached_pages, 6u);  // what was reserved and never written is free again
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 170u);
  EXPECT_EQ(harness_.Serve(prompt), 170u);
}

TEST_F(SharingTest, TheNextTurnOfAChatTakesTheTailOverInPlace) {
  Tokens history;
  for (uint64_t turn = 0; turn < 8; ++turn) {
    const auto cached = static_cast<uint32_t>(history.size());
    history = history + RandomTokens(10 + turn, 21);
    const Tokens answer = RandomTokens(50 + turn, 12);
    EXPECT_EQ(harness_.Lookup(history).miss_reason,
              turn == 0 ? MissReason::kCold : MissReason::kNone)
        << "nothing else follows the cached rows: everything that was there is reused";
    EXPECT_EQ(harness_.Serve(history, answer), cached);
    history = history + answer;
  }
  EXPECT_EQ(Stats().cow_full_copies + Stats().cow_difference_blocks, 0u);
  EXPECT_EQ(Stats().cached_pages, (history.size() + kBlock - 1) / kBlock);
}

TEST_F(SharingTest, ALiveTailIsCopiedAndBothGoOn) {
  const Tokens prompt = RandomTokens(1, 50);
  Branch a = harness_.Begin(prompt, {}, 20);
  a.ComputePrompt();
  Branch b = harness_.Begin(prompt, {}, 20);  // 14 more rows: above the threshold
  EXPECT_EQ(b.ready(), 50u);
  EXPECT_EQ(Stats().cow_full_copies, 1u);
  for (TokenId token = 0; token < 20; ++token) {
    ASSERT_TRUE(a.Generate(100 + token).ok());
    ASSERT_TRUE(b.Generate(200 + token).ok());
  }
  EXPECT_EQ(a.WrongRows() + b.WrongRows(), 0u);
  EXPECT_EQ(a->table().blocks[0], b->table().blocks[0]);
  EXPECT_NE(a->table().blocks[1].page, b->table().blocks[1].page);
}

TEST_F(SharingTest, AFewRowsOverASharedPageAreADifferenceBlockAndMoreAFullCopy) {
  const Tokens prompt = RandomTokens(1, 50);
  Branch a = harness_.Begin(prompt, {}, 1);
  a.ComputePrompt();
  const uint64_t before = Stats().in_use_bytes;
  Branch difference = harness_.Begin(prompt, {}, 4);  // rows 18 to 21: 4 of 32
  EXPECT_EQ(Stats().cow_difference_blocks, 1u);
  EXPECT_EQ(Stats().cow_full_copies, 0u);
  EXPECT_EQ(Stats().in_use_bytes - before, DifferenceView::CellsBytes(harness_.options.shape, 4));
  EXPECT_EQ(difference->table().blocks[1].page, a->table().blocks[1].page);
  ASSERT_NE(difference->table().blocks[1].difference, nullptr);
  EXPECT_EQ(difference->capacity(), 54u);

  Branch copy = harness_.Begin(prompt, {}, 5);
  EXPECT_EQ(Stats().cow_full_copies, 1u);
  EXPECT_NE(copy->table().blocks[1].page, a->table().blocks[1].page);
  for (TokenId token = 0; token < 4; ++token) {
    ASSERT_TRUE(a.Generate(100 + token).ok());
    ASSERT_TRUE(difference.Generate(200 + token).ok());
    ASSERT_TRUE(copy.Generate(300 + token).ok());
  }
  EXPECT_EQ(a.WrongRows() + difference.WrongRows() + copy.WrongRows(), 0u);
  EXPECT_EQ(Stats().cow_full_copies + Stats().cow_difference_blocks, 2u);
}

TEST_F(SharingTest, AFullDifferenceBlockIsFoundAndBuiltUponAndItsBaseStays) {
  const Tokens prompt = RandomTokens(1, 60);
  Branch a = harness_.Begin(prompt, {}, 1);
  a.ComputePrompt();
  Branch b = harness_.Begin(prompt, {}, 100);  // rows 60 to 63 end the block: 4 of 32
  EXPECT_EQ(Stats().cow_difference_blocks, 1u);
  for (TokenId token = 0; token < 4; ++token) {
    ASSERT_TRUE(a.Generate(100 + token).ok());
    ASSERT_TRUE(b.Generate(200 + token).ok());
  }
  a.Release();
  b.Release();
  const Tokens longer = prompt + Tokens{200, 201, 202, 203, 7, 8, 9};
  EXPECT_EQ(harness_.Lookup(longer).exact_tokens, 64u);
  Branch c = harness_.Begin(longer);
  EXPECT_NE(c->table().blocks[1].difference, nullptr);
  for (uint64_t flood = 0; flood < 100; ++flood) harness_.Serve(RandomTokens(10 + flood, 300));
  EXPECT_GT(Stats().evicted_blocks, 0u);
  c.ComputePrompt();
  EXPECT_EQ(c.WrongRows(), 0u);
}

TEST_F(SharingTest, ASequenceThatOutgrowsItsDifferenceBlockGetsAPage) {
  const Tokens prompt = RandomTokens(1, 40);
  Branch a = harness_.Begin(prompt, {}, 1);
  a.ComputePrompt();
  Branch b = harness_.Begin(prompt, {}, 2);
  EXPECT_EQ(b->capacity(), 44u);
  for (TokenId token = 0; token < 50; ++token) ASSERT_TRUE(b.Generate(token).ok());
  EXPECT_EQ(b.WrongRows(), 0u);
  EXPECT_EQ(b->table().blocks[1].difference, nullptr);
  EXPECT_EQ(Stats().cow_difference_blocks, 1u);
  EXPECT_EQ(Stats().cow_full_copies, 1u);
  EXPECT_EQ(Stats().in_use_bytes % Stats().page_bytes, 0u);  // the cells are given back, or cached
}

TEST_F(SharingTest, TwoThatComputeTheSameBlockAtOnceEndUpWithOne) {
  const Tokens prompt = RandomTokens(1, 3 * kBlock + 3);
  Branch a = harness_.Begin(prompt);
  Branch b = harness_.Begin(prompt);
  EXPECT_EQ(PagesInUse(), 8u);
  a.ComputePrompt();
  b.ComputePrompt();
  EXPECT_EQ(PagesInUse(), 5u);  // three shared, and a tail each
  for (uint32_t block = 0; block < 3; ++block) {
    EXPECT_EQ(a->table().blocks[block], b->table().blocks[block]);
  }
  for (TokenId token = 0; token < 40; ++token) {  // equal answers as well
    ASSERT_TRUE(a.Generate(token).ok());
    ASSERT_TRUE(b.Generate(token).ok());
  }
  EXPECT_EQ(PagesInUse(), 6u);
  EXPECT_EQ(a.WrongRows() + b.WrongRows(), 0u);
}

TEST_F(SharingTest, ForksShareTheirPastAndDivergeIndependently) {
  Branch root = harness_.Begin(RandomTokens(1, 70), {}, 40);
  root.ComputePrompt();
  std::vector<Branch> branches;
  for (int depth = 0; depth < 6; ++depth) {  // each forks the one before, a bit further on
    Branch& parent = branches.empty() ? root : branches.back();
    auto fork = parent.Fork(parent.ready(), 40);
    ASSERT_TRUE(fork.ok()) << fork.status().ToString();
    for (TokenId token = 0; token < 9; ++token) {
      ASSERT_TRUE(fork->Generate(1000 * depth + token).ok());
      ASSERT_TRUE(root.Generate(token).ok());
    }
    branches.push_back(std::move(fork).value());
  }
  EXPECT_EQ(root.WrongRows(), 0u);
  for (const Branch& branch : branches) {
    EXPECT_EQ(branch.WrongRows(), 0u);
    EXPECT_EQ(branch->table().blocks[0], root->table().blocks[0]);
  }
  root.Release();  // a parent may go first
  for (const Branch& branch : branches) EXPECT_EQ(branch.WrongRows(), 0u);
}

TEST_F(SharingTest, AForkInsideAFullBlockSharesItsFirstRows) {
  Branch root = harness_.Begin(RandomTokens(1, 96));
  root.ComputePrompt();
  auto fork = root.Fork(45, 40);
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(fork->ready(), 45u);
  for (TokenId token = 0; token < 40; ++token) ASSERT_TRUE(fork->Generate(token).ok());
  EXPECT_EQ(fork->WrongRows(), 0u);
  EXPECT_EQ(harness_.Lookup(fork->tokens()).diverged_at, 85u);
  EXPECT_EQ(root.Fork(97, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SharingTest, WhatMustNotBeStoredIsNeverFound) {
  const Tokens prompt = RandomTokens(1, 100);
  LookupRequest request = harness_.RequestOf(prompt);
  request.store = false;
  auto secret = harness_.TryBegin(request);
  ASSERT_TRUE(secret.ok());
  secret->ComputePrompt();
  ASSERT_TRUE(secret->Generate(5).ok());
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 0u);
  EXPECT_FALSE(harness_.Lookup(prompt).in_flight.has_value());
  auto fork = secret->Fork(70, 10);
  ASSERT_TRUE(fork.ok());
  ASSERT_TRUE(fork->Generate(6).ok());
  EXPECT_EQ(fork->WrongRows(), 0u);
  secret->Release();
  fork->Release();
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 0u);
  EXPECT_EQ(Stats().free_pages, Stats().total_pages);

  // It reads what others stored, and leaves that as it was.
  harness_.Serve(FirstOf(prompt, 40));
  auto again = harness_.TryBegin(request);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->ready(), 40u);
  EXPECT_EQ(Stats().cow_full_copies, 2u)
      << "the fork's, and its own: it writes into no stored page";
  again->ComputePrompt();
  again->Release();
  EXPECT_EQ(harness_.Lookup(prompt).diverged_at, 40u);
  EXPECT_EQ(harness_.Serve(prompt), 40u);
}

TEST_F(SharingTest, SharingOffSharesNothingAndForksCopy) {
  harness_.options.sharing = Sharing::kOff;
  harness_.Create();
  const Tokens prompt = RandomTokens(1, 100);
  Branch a = harness_.Begin(prompt);
  a.ComputePrompt();
  const Plan plan = harness_.Lookup(prompt);
  EXPECT_EQ(plan.miss_reason, MissReason::kPolicy);
  EXPECT_EQ(plan.compute_from, 0u);
  Branch b = harness_.Begin(prompt);
  EXPECT_EQ(b.ready(), 0u);
  b.ComputePrompt();
  auto fork = a.Fork(100, 10);
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(PagesInUse(), 12u);
  for (TokenId token = 0; token < 40; ++token) {
    ASSERT_TRUE(a.Generate(token).ok());
    ASSERT_TRUE(fork->Generate(100 + token).ok());
  }
  EXPECT_EQ(a.WrongRows() + b.WrongRows() + fork->WrongRows(), 0u);
  a.Release();
  b.Release();
  fork->Release();
  EXPECT_EQ(Stats().free_pages, Stats().total_pages);
}

TEST_F(SharingTest, ASequenceMayOutliveItsCache) {
  Branch branch = harness_.Begin(RandomTokens(1, 50));
  harness_.cache.reset();
  branch.ComputePrompt();
  EXPECT_EQ(branch.WrongRows(), 0u);
}

// Acceptance 24 and 4: the same tenant hits, another one never does, whatever the hashes do.
TEST_F(SharingTest, TenantsAndSaltsDoNotShareEvenWhenHashesCollide) {
  const auto prompt_of = [](uint64_t i) {  // no two start alike
    return Tokens{static_cast<TokenId>(i)} + RandomTokens(i, 70 + i % 50);
  };
  for (const int hash_bits : {128, 8}) {
    harness_.options.hash_bits = hash_bits;
    harness_.options.budget_bytes = 20000 * harness_.options.shape.page_bytes();
    harness_.Create();
    const Namespace a{.tenant = "a", .salt = ""}, b{.tenant = "b", .salt = ""};
    const Namespace salted{.tenant = "a", .salt = "x"};
    for (uint64_t i = 0; i < 1500; ++i) {
      const Tokens prompt = prompt_of(i);
      ASSERT_EQ(harness_.Serve(prompt, {}, a), 0u);
      ASSERT_EQ(harness_.Serve(prompt, {}, b), 0u) << "a foreign hit";
      ASSERT_EQ(harness_.Lookup(prompt, salted).diverged_at, 0u);
    }
    for (uint64_t i = 0; i < 1500; ++i) {
      const Tokens prompt = prompt_of(i);
      ASSERT_EQ(harness_.Serve(prompt, {}, a), prompt.size());
      ASSERT_EQ(harness_.Serve(prompt, {}, b), prompt.size());
    }
    EXPECT_EQ(Stats().collisions > 1000, hash_bits == 8);
    EXPECT_GT(Stats().exact_tokens, 150000u);
  }
}

TEST_F(SharingTest, AMissSaysWhy) {
  const Tokens prompt = RandomTokens(1, 100);
  const Namespace plain{.tenant = "t", .salt = ""}, salted{.tenant = "t", .salt = "s"};
  EXPECT_EQ(ReasonOf(prompt, plain), MissReason::kCold);
  harness_.Serve(prompt, {}, plain);
  EXPECT_EQ(ReasonOf(prompt, plain), MissReason::kNone);
  EXPECT_EQ(ReasonOf(FirstOf(prompt, 50) + RandomTokens(2, 50), plain), MissReason::kDiverged);
  EXPECT_EQ(ReasonOf(RandomTokens(3, 50), plain), MissReason::kCold);
  EXPECT_EQ(ReasonOf(prompt, salted), MissReason::kSalt);
  EXPECT_EQ(ReasonOf(prompt, {.tenant = "u", .salt = "s"}), MissReason::kCold);
  // Another salt's blocks are not mentioned, neither to other salts nor without one.
  const Tokens other = RandomTokens(4, 100);
  harness_.Serve(other, {}, salted);
  EXPECT_EQ(ReasonOf(other, {.tenant = "t", .salt = "s2"}), MissReason::kCold);
  EXPECT_EQ(ReasonOf(other, plain), MissReason::kCold);
  LookupRequest request = harness_.RequestOf(prompt, plain);
  request.reuse = false;
  EXPECT_EQ(harness_.cache->Lookup(request).miss_reason, MissReason::kPolicy);

  for (uint64_t flood = 100; flood < 300; ++flood)
    harness_.Serve(RandomTokens(flood, 90), {}, plain);
  EXPECT_EQ(ReasonOf(prompt, plain), MissReason::kEvicted);
  harness_.cache->Clear();
  EXPECT_EQ(ReasonOf(prompt, plain), MissReason::kCold);
}

// Acceptance 28.
TEST_F(SharingTest, AMissThatAnotherScopeOfTheAskersOwnWouldHitSaysSo) {
  const Tokens prompt = RandomTokens(1, 100), strangers = RandomTokens(2, 100);
  const Namespace before{.tenant = "acme", .salt = ""}, group{.tenant = "group:g", .salt = ""};
  harness_.Serve(prompt, {}, before);
  harness_.Serve(strangers, {}, {.tenant = "other", .salt = ""});
  const std::vector<std::string> own = {"acme", "sensitive:acme"};
  const auto reason = [&](const Tokens& tokens, const Namespace& ns) {
    LookupRequest request = harness_.RequestOf(tokens, ns);
    request.own_scopes = own;
    return harness_.cache->Lookup(request).miss_reason;
  };
  EXPECT_EQ(reason(prompt, group), MissReason::kNamespace);
  EXPECT_EQ(reason(FirstOf(prompt, kBlock) + RandomTokens(3, 9), group), MissReason::kNamespace);
  EXPECT_EQ(reason(FirstOf(prompt, kBlock - 1), group), MissReason::kCold) << "not a block";
  EXPECT_EQ(reason(RandomTokens(4, 100), group), MissReason::kCold);
  // Nothing of others is told, and nothing to others.
  EXPECT_EQ(reason(strangers, group), MissReason::kCold);
  EXPECT_EQ(ReasonOf(prompt, group), MissReason::kCold);
  EXPECT_EQ(reason(prompt, {.tenant = "group:g", .salt = "s"}), MissReason::kCold);
  // Where prompts of a template leave each other is not why this one misses.
  harness_.Serve(FirstOf(prompt, 20) + RandomTokens(5, 40), {}, group);
  EXPECT_EQ(reason(prompt, group), MissReason::kNamespace);
  EXPECT_EQ(reason(FirstOf(prompt, 20) + RandomTokens(6, 40), group), MissReason::kDiverged);
  harness_.Serve(FirstOf(prompt, 40) + RandomTokens(7, 40), {}, group);
  EXPECT_EQ(reason(prompt, group), MissReason::kNamespace);
  harness_.Serve(prompt, {}, group);
  EXPECT_EQ(harness_.Lookup(prompt, group).miss_reason, MissReason::kNone);
}

TEST_F(SharingTest, APlanThatNoLongerHoldsBecomesComputingAndIsCounted) {
  const Tokens prompt = RandomTokens(1, 100);
  harness_.Serve(prompt);
  const LookupRequest request = harness_.RequestOf(prompt);
  const Plan plan = harness_.cache->Lookup(request);
  EXPECT_EQ(plan.exact_tokens, 96u);
  harness_.cache->Clear();
  auto sequence = harness_.cache->Begin(request, plan);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ((*sequence)->num_ready(), 0u);
  EXPECT_EQ(Stats().fallbacks, 1u);
  // And the other way round: committed in between.
  const Plan cold = harness_.Lookup(RandomTokens(2, 100));
  harness_.Serve(RandomTokens(2, 100));
  const Tokens second = RandomTokens(2, 100);
  auto warm = harness_.cache->Begin(harness_.RequestOf(second), cold);
  ASSERT_TRUE(warm.ok());
  EXPECT_EQ((*warm)->num_ready(), 100u);
  EXPECT_EQ(Stats().fallbacks, 1u);
}

// Acceptance 8, as far as the cache goes: the ids that were generated come back, per namespace.
TEST_F(SharingTest, OwnOutputIsRecalledAsTheTokensItWasMadeOf) {
  const Namespace ns{.tenant = "t", .salt = ""}, other{.tenant = "u", .salt = ""};
  const Tokens prompt = RandomTokens(1, 40), answer = RandomTokens(2, 30);
  harness_.Serve(prompt, answer, ns);
  const std::string text = " 你好 🙂 x = 1";
  harness_.cache->Remember(ns, text, answer);
  EXPECT_EQ(harness_.cache->Recall(ns, text), answer);
  EXPECT_FALSE(harness_.cache->Recall(other, text).has_value());
  const auto prefix = harness_.cache->RecallPrefix(ns, text + " and more");
  ASSERT_TRUE(prefix.has_value());
  EXPECT_EQ(prefix->text_bytes, text.size());
  EXPECT_EQ(Stats().output_splices, 2u);
  const Tokens next = prompt + prefix->tokens + RandomTokens(3, 10);
  EXPECT_EQ(harness_.Serve(next, {}, ns), 70u);
}

}  // namespace
}  // namespace kvlink::link
