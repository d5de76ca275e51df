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
  SimilarReason ReasonOf(const Tokens& tokens, const Namespace& ns = {}) {
    return harness_.cache->Lookup(harness_.Similar(tokens, ns)).similar_reason;
  }
  static Tokens Head(uint64_t seed, size_t count = 6) { return RandomTokens(1000 + seed, count); }
  // The system prompt, a clock, the policy, a question.
  Tokens Prompt(uint64_t seed, size_t clock_tokens = 6, size_t question_tokens = 20) const {
    return system_ + Head(seed, clock_tokens) + policy_ +
           RandomTokens(2000 + seed, question_tokens);
  }
  void Serve(const Tokens& prompt, const Namespace& ns = {}) {
    Running run = harness_.Start(harness_.RequestOf(prompt, ns));
    harness_.Compute(run);
    ASSERT_EQ(harness_.WrongRows(run), "");
  }

  const Tokens system_ = RandomTokens(1, 50);
  const Tokens policy_ = RandomTokens(2, 1000);
  SimilarHarness harness_{kBlock, 400};
};

TEST_F(BorrowingTest, BehindAChangedHeadRowsAreTheDonorsInPlace) {
  for (const size_t clock_tokens : {6, 11, 3}) {  // as long as the donor's, longer, shorter
    Running donor = harness_.Start(harness_.RequestOf(Prompt(1)));
    harness_.Compute(donor);
    const uint64_t pages = PagesInUse();
    const Tokens prompt = Prompt(2 + clock_tokens, clock_tokens, 25);
    Running run = harness_.Start(prompt);
    ASSERT_TRUE(run.plan.similar.has_value()) << SimilarReasonName(run.plan.similar_reason);
    EXPECT_EQ(run.ready(), 50u);
    EXPECT_GE(run->capacity(), prompt.size() + 1);
    harness_.Compute(run);
    EXPECT_EQ(harness_.WrongRows(run), "");
    const auto computed = static_cast<uint32_t>(run.own.size());
    EXPECT_LT(computed, 150u);
    EXPECT_EQ(harness_.BorrowedRows(run), prompt.size() - 50 - computed);
    EXPECT_EQ(run.plan.similar->selection.num_computed, computed);
    EXPECT_EQ(run.plan.similar->reused_rows, prompt.size() - 50 - computed);
    // Its own pages hold what it computed; all others are the donor's.
    EXPECT_EQ(PagesInUse() - pages, (computed + 1 + kBlock - 1) / kBlock);
    EXPECT_EQ(Stats().cow_full_copies + Stats().cow_difference_blocks, 0u);
  }
}

// Positions, donor rows and own rows are three ways to count.
TEST_F(BorrowingTest, AnyExactPrefixAndAnyChunksGiveTheSameRows) {
  for (uint32_t exact = 0; exact < 70; exact += 7) {
    for (const uint32_t chunk : {1u, 7u, 64u, 1000u}) {
      harness_.cache->Clear();
      const Tokens head = FirstOf(RandomTokens(5, 100), exact);
      Serve(head + Head(exact, 9) + policy_ + Head(1, 40) + policy_);
      const Tokens prompt = head + Head(100 + exact, 5) + policy_ + Head(2, 33) + policy_ + Head(3);
      Running run = harness_.Start(prompt);
      ASSERT_TRUE(run.tainted) << SimilarReasonName(run.plan.similar_reason);
      EXPECT_EQ(run.ready(), exact);
      while (run.left() > 0) {
        const uint32_t before = run.ready();
        harness_.Compute(run, chunk);
        ASSERT_GT(run.ready(), before);
      }
      ASSERT_EQ(harness_.WrongRows(run), "") << "exact " << exact << " chunk " << chunk;
      EXPECT_EQ(run->CheckFirstToken(harness_.Certain(1)).action, Verdict::Action::kAccept);
      for (TokenId token = 0; token < 70; ++token) {
        ASSERT_TRUE(harness_.Generate(run, token).ok());
      }
      ASSERT_EQ(harness_.WrongRows(run), "");
    }
  }
}

// Correctness test 1.
TEST_F(BorrowingTest, TheSamePromptAgainIsExact) {
  Serve(Prompt(1));
  const Plan plan = harness_.cache->Lookup(harness_.Similar(Prompt(1)));
  EXPECT_FALSE(plan.similar.has_value());
  EXPECT_EQ(plan.similar_reason, SimilarReason::kNothingToGain);
  EXPECT_EQ(plan.compute_from, Prompt(1).size() - 1);
  Running run = harness_.Start(Prompt(1));
  EXPECT_FALSE(run.tainted);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_EQ(Outcomes(SimilarReason::kNothingToGain), 1u);
}

// Correctness test 5.
TEST_F(BorrowingTest, AnotherQuestionAtTheEndIsExact) {
  Serve(Prompt(1));
  const Tokens prompt = FirstOf(Prompt(1), 1056) + RandomTokens(9, 50);
  Running run = harness_.Start(prompt);
  EXPECT_FALSE(run.tainted);
  EXPECT_EQ(run.plan.similar_reason, SimilarReason::kNothingToGain);
  EXPECT_EQ(run.ready(), 1056u);
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_EQ(harness_.BorrowedRows(run), 0u);
}

// Correctness test 9, acceptance 11.
TEST_F(BorrowingTest, NothingComputedOnADonorsRowsIsFoundAgain) {
  Serve(Prompt(1));
  const CacheStats before = Stats();
  {
    Running run = harness_.Start(Prompt(2));
    harness_.Compute(run);
    EXPECT_EQ(run->CheckFirstToken(harness_.Certain(1)).action, Verdict::Action::kAccept);
    for (TokenId token = 0; token < 100; ++token) {
      ASSERT_TRUE(harness_.Generate(run, token).ok());
    }
    EXPECT_EQ(harness_.Lookup(run.tokens).diverged_at, 50u);
    EXPECT_EQ(Stats().stored_blocks, before.stored_blocks);
    EXPECT_EQ(Stats().donors, 1u);
  }
  EXPECT_EQ(Stats().cached_pages, before.cached_pages);
  EXPECT_EQ(Stats().in_use_pages, 0u);
  EXPECT_EQ(Stats().similar_tokens,
            Prompt(2).size() - 50 - harness_.rows_computed + Prompt(1).size() + 100);
  Running exact = harness_.Start(harness_.RequestOf(Prompt(2)));
  EXPECT_FALSE(exact.tainted);
  EXPECT_EQ(exact.ready(), 50u);
  harness_.Compute(exact);
  EXPECT_EQ(harness_.WrongRows(exact), "");
  EXPECT_EQ(harness_.BorrowedRows(exact), 0u);
  EXPECT_EQ(Stats().donors, 2u);
}

TEST_F(BorrowingTest, BranchesAreTaintedToo) {
  Serve(Prompt(1));
  Running run = harness_.Start(Prompt(2));
  harness_.Compute(run);
  EXPECT_EQ(run->Fork(run.ready(), 8).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(run->CheckFirstToken(harness_.Certain(1)).action, Verdict::Action::kAccept);
  const uint64_t stored = Stats().stored_blocks;
  std::vector<Running> branches;
  const auto size = static_cast<uint32_t>(Prompt(2).size());
  for (const uint32_t at : {size, size, size - 1, 700u, 60u, 50u, 20u, 0u}) {
    auto branch = harness_.Fork(run, at);
    ASSERT_TRUE(branch.ok()) << branch.status().ToString();
    EXPECT_TRUE((*branch)->computed_rows().empty());
    EXPECT_EQ(branch->ready(), at);
    branches.push_back(std::move(branch).value());
  }
  for (TokenId token = 0; token < 40; ++token) {
    ASSERT_TRUE(harness_.Generate(run, token).ok());
    for (Running& branch : branches) ASSERT_TRUE(harness_.Generate(branch, token + 1).ok());
  }
  run.sequence.reset();
  for (Running& branch : branches) {
    EXPECT_EQ(harness_.WrongRows(branch), "");
    auto twig = harness_.Fork(branch, branch.ready() - 3);
    ASSERT_TRUE(twig.ok());
    ASSERT_TRUE(harness_.Generate(*twig, 9).ok());
    EXPECT_EQ(harness_.WrongRows(*twig), "");
    EXPECT_EQ(harness_.WrongRows(branch), "");
  }
  EXPECT_EQ(Stats().stored_blocks, stored);
  EXPECT_EQ(Stats().donors, 1u);
  EXPECT_EQ(branches[0]->Fork(2000, 1).status().code(), StatusCode::kInvalidArgument);
  branches.clear();
  EXPECT_EQ(Stats().in_use_pages, 0u);
}

// Correctness test 10, acceptance 24.
TEST_F(BorrowingTest, OtherTenantsAndSaltsDonorsAreNeverLent) {
  const Namespace mine{.tenant = "a", .salt = ""};
  Serve(Prompt(1), mine);
  EXPECT_EQ(ReasonOf(Prompt(2), mine), SimilarReason::kNone);
  for (const Namespace& other :
       {Namespace{"b", ""}, Namespace{"a", "s"}, Namespace{"", "a"}, Namespace{}}) {
    EXPECT_EQ(ReasonOf(Prompt(2), other), SimilarReason::kNoDonor);
    Running run = harness_.Start(Prompt(2), other);
    EXPECT_FALSE(run.tainted);
    harness_.Compute(run);
    EXPECT_EQ(harness_.WrongRows(run), "");
  }
}

TEST_F(BorrowingTest, ADonorThatIsGoneWhenTheRequestBeginsIsNotBorrowedFrom) {
  Serve(Prompt(1));
  const LookupRequest request = harness_.Similar(Prompt(2));
  const Tokens tokens = Prompt(2);
  LookupRequest kept = request;
  kept.tokens = tokens;
  const Plan plan = harness_.cache->Lookup(kept);
  ASSERT_TRUE(plan.similar.has_value());
  harness_.cache->Clear();
  EXPECT_EQ(Stats().donors, 0u);
  // Another tenant's prompt now lies in blocks of the same numbers.
  Serve(Prompt(3), {"other", ""});
  auto run = harness_.TryStart(kept, plan);
  ASSERT_TRUE(run.ok());
  EXPECT_FALSE(run->tainted);
  harness_.Compute(*run);
  EXPECT_EQ(harness_.WrongRows(*run), "");
  EXPECT_EQ(Outcomes(SimilarReason::kDonorGone), 1u);
  EXPECT_EQ(Stats().similar_attempts, 0u);
}

TEST_F(BorrowingTest, ExactRowsThatCameMeanwhileAreNotBorrowed) {
  Serve(Prompt(1));
  const Tokens tokens = Prompt(2);
  LookupRequest request = harness_.Similar(tokens);
  const Plan plan = harness_.cache->Lookup(request);
  Running other = harness_.Start(harness_.RequestOf(FirstOf(tokens, 400)));
  harness_.Compute(other);
  auto run = harness_.TryStart(request, plan);
  ASSERT_TRUE(run.ok());
  EXPECT_TRUE(run->tainted);
  EXPECT_EQ(run->ready(), 400u);
  harness_.Compute(*run);
  EXPECT_EQ(harness_.WrongRows(*run), "");
}

TEST_F(BorrowingTest, TheDonorsPagesStayWhileTheyAreLent) {
  Serve(Prompt(1));
  Running run = harness_.Start(Prompt(2));
  harness_.Compute(run, 30);
  for (uint64_t i = 0; i < 40; ++i) Serve(RandomTokens(100 + i, 1200));
  harness_.cache->Clear();
  EXPECT_GT(Stats().evicted_blocks, 500u);
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
  harness_.ExpectConserved();
}

TEST_F(BorrowingTest, ADonorOfWhichTheEndIsEvictedLendsWhatIsLeft) {
  harness_.options.budget_bytes = 48 * harness_.options.shape.page_bytes();
  harness_.Create();
  Serve(Prompt(1));              // 34 pages
  Serve(RandomTokens(99, 600));  // 19 pages: 5 of the donor's are gone
  EXPECT_EQ(Stats().evicted_blocks, 5u);
  const Tokens prompt = FirstOf(Prompt(2), 900);
  Running run = harness_.Start(prompt);
  ASSERT_TRUE(run.tainted) << SimilarReasonName(run.plan.similar_reason);
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_GT(harness_.BorrowedRows(run), 700u);
}

TEST_F(BorrowingTest, APromptIsADonorFromItsLastRowOn) {
  const Tokens prompt = Prompt(1);
  Running donor = harness_.Start(harness_.RequestOf(prompt));
  harness_.Compute(donor, static_cast<uint32_t>(prompt.size()) - 1);
  EXPECT_EQ(Stats().donors, 0u);
  harness_.Compute(donor);
  EXPECT_EQ(Stats().donors, 1u);
  LookupRequest request = harness_.RequestOf(RandomTokens(50, 500));
  const Tokens secret = RandomTokens(50, 500);
  request.tokens = secret;
  request.store = false;
  Running unstored = harness_.Start(request);
  harness_.Compute(unstored);
  EXPECT_EQ(Stats().donors, 1u);
}

TEST_F(BorrowingTest, WhatGenerationAddsToTheDonorsTailDoesNotMatter) {
  Running donor = harness_.Start(harness_.RequestOf(Prompt(1)));
  harness_.Compute(donor);
  Running run = harness_.Start(Prompt(2));
  ASSERT_TRUE(run.tainted);
  for (TokenId token = 0; token < 50; ++token) {
    ASSERT_TRUE(harness_.Generate(donor, token).ok());
    harness_.Compute(run, 3);
  }
  donor.sequence.reset();
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
}

// Two sequences compute equal blocks: the later one goes over to the earlier one's, while a third
// borrows from the block that it leaves.
TEST_F(BorrowingTest, ADonorThatGoesOverToAnEqualBlockStaysOne) {
  const Tokens prompt = RandomTokens(31, 500), answer = RandomTokens(32, 40);
  Running first = harness_.Start(harness_.RequestOf(prompt));
  Running second = harness_.Start(harness_.RequestOf(prompt));
  harness_.Compute(first);
  harness_.Compute(second);
  EXPECT_EQ(Stats().donors, 2u);  // their tails are two blocks
  const Tokens similar = RandomTokens(33, 5) + Tokens(prompt.begin() + 5, prompt.end());
  Running run = harness_.Start(similar);
  ASSERT_TRUE(run.tainted);
  for (const TokenId token : answer) {
    ASSERT_TRUE(harness_.Generate(first, token).ok());
    ASSERT_TRUE(harness_.Generate(second, token).ok());
  }
  EXPECT_EQ(Stats().donors, 1u);
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_EQ(ReasonOf(similar), SimilarReason::kNone);
}

TEST_F(BorrowingTest, ACancelledRequestGivesEverythingBackAtEveryStage) {
  Serve(Prompt(1));
  const CacheStats before = Stats();
  for (uint32_t rows = 0; rows < 100; rows += 9) {
    Running run = harness_.Start(Prompt(2));
    ASSERT_TRUE(run.tainted);
    harness_.Compute(run, rows);
  }
  EXPECT_EQ(Stats().in_use_pages, 0u);
  EXPECT_EQ(Stats().cached_pages, before.cached_pages);
  EXPECT_EQ(Stats().free_pages, before.free_pages);
  uint64_t outcomes = 0;
  for (const uint64_t count : Stats().similar_outcomes) outcomes += count;
  EXPECT_EQ(outcomes, 0u) << "nobody saw how they would have ended";
}

TEST_F(BorrowingTest, WhereTheDonorAndThePromptDoNotFitTogetherThePromptIsComputed) {
  harness_.options.budget_bytes = 35 * harness_.options.shape.page_bytes();
  harness_.Create();
  Serve(Prompt(1));  // 34 pages; the other prompt needs 3 beside 33 of them
  Running run = harness_.Start(Prompt(2));
  EXPECT_TRUE(run.plan.similar.has_value());
  EXPECT_FALSE(run.tainted);
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_EQ(Outcomes(SimilarReason::kNoRoom), 1u);
}

// Why a request that asked for similar rows got none.
TEST_F(BorrowingTest, SaysWhyNobodyLends) {
  EXPECT_EQ(ReasonOf(Prompt(1)), SimilarReason::kNoDonor);
  Serve(Prompt(1));
  EXPECT_EQ(ReasonOf(RandomTokens(77, 1000)), SimilarReason::kNoDonor);
  EXPECT_EQ(ReasonOf(RandomTokens(77, 63)), SimilarReason::kNothingToGain);
  EXPECT_EQ(ReasonOf(RandomTokens(77, 200) + policy_), SimilarReason::kMaskMismatch);
  const auto part = [&](size_t first, size_t count) {
    return Tokens(policy_.begin() + static_cast<ptrdiff_t>(first),
                  policy_.begin() + static_cast<ptrdiff_t>(first + count));
  };
  EXPECT_EQ(ReasonOf(system_ + part(500, 500) + part(0, 500)), SimilarReason::kReordered);
  const Tokens prompt = Prompt(2);
  LookupRequest request = harness_.Similar(prompt);
  request.reuse = false;
  EXPECT_EQ(harness_.cache->Lookup(request).similar_reason, SimilarReason::kPolicy);
  request.reuse = true;
  request.min_compute = 10;
  EXPECT_EQ(harness_.cache->Lookup(request).similar_reason, SimilarReason::kPolicy);
  request.min_compute = 1;
  request.similar = SimilarPolicy::kOff;
  EXPECT_EQ(harness_.cache->Lookup(request).similar_reason, SimilarReason::kPolicy);
  EXPECT_FALSE(harness_.Start(request).tainted);
}

TEST_F(BorrowingTest, WithoutCalibrationNothingIsBorrowed) {
  for (SimilarTrials& trials : harness_.options.similar_model.calibrated) trials = {};
  harness_.Create();
  Serve(Prompt(1));
  EXPECT_EQ(ReasonOf(Prompt(2)), SimilarReason::kUncalibrated);
  // Another class than that of this edit passed.
  harness_.options.similar_model.calibrated[static_cast<size_t>(EditClass::kMany)] = {300, 0};
  harness_.Create();
  Serve(Prompt(1));
  EXPECT_EQ(ReasonOf(Prompt(2)), SimilarReason::kClusterClosed);
}

TEST_F(BorrowingTest, WhenItIsOffNothingIsKept) {
  harness_.options.similar.policy = SimilarPolicy::kOff;
  harness_.Create();
  Serve(Prompt(1));
  EXPECT_EQ(ReasonOf(Prompt(2)), SimilarReason::kPolicy);
  EXPECT_FALSE(harness_.Start(Prompt(2)).tainted);
  EXPECT_EQ(Stats().donors, 0u);
  EXPECT_EQ(Outcomes(SimilarReason::kPolicy), 1u);
  harness_.cache->RecordShadow(1, false);
  EXPECT_EQ(Stats().shadows, 0u);
}

TEST_F(BorrowingTest, OptionsThatCannotBeHonouredAreRefused) {
  const CacheOptions good = harness_.options;
  const auto refused = [&](auto change, StatusCode code, const char* words) {
    CacheOptions options = good;
    change(options);
    const auto created = CreateCache(options);
    ASSERT_FALSE(created.ok()) << words;
    EXPECT_EQ(created.status().code(), code) << created.status().ToString();
    EXPECT_NE(created.status().message().find(words), std::string::npos)
        << created.status().ToString();
  };
  refused([](CacheOptions& o) { o.similar_model.attention.sliding_window = 512; },
          StatusCode::kFailedPrecondition, "window");
  refused([](CacheOptions& o) { o.similar.mode = ReuseMode::kLayered; },
          StatusCode::kFailedPrecondition, "layered: no checkpoint");
  refused(
      [](CacheOptions& o) {
        o.similar.mode = ReuseMode::kAnchored;
        o.shape.num_layers = 20;
      },
      StatusCode::kInvalidArgument, "similar_model.embedding is 0");
  refused([](CacheOptions& o) { o.similar.max_reuse_distance = 1; },
          StatusCode::kFailedPrecondition, "2 layers in a row");
  refused([](CacheOptions& o) { o.similar.mask_similarity = 1.5; }, StatusCode::kInvalidArgument,
          "similar.mask_similarity");
  refused([](CacheOptions& o) { o.similar.enlarge_factor = 0.5; }, StatusCode::kInvalidArgument,
          "similar.enlarge_factor");
  CacheOptions off = good;
  off.similar.policy = SimilarPolicy::kOff;
  off.similar_model.attention.recurrent = true;
  EXPECT_TRUE(CreateCache(off).ok());
}

}  // namespace
}  // namespace kvlink::link
