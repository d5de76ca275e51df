// How requests that borrow end: verdicts, what they cost, what closes similar reuse, and how many
// wait for one donor.
#include <gtest/gtest.h>

#include <deque>

#include "link/similar_gate.h"
#include "link/similar_harness.h"
#include "link/waiting_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 32;
using Action = Verdict::Action;

class SimilarCheckTest : public ::testing::Test {
 protected:
  void SetUp() override { harness_.Create(); }
  CacheStats Stats() const { return harness_.cache->Stats(); }
  uint64_t Outcomes(SimilarReason reason) const {
    return Stats().similar_outcomes[static_cast<size_t>(reason)];
  }
  uint64_t AllOutcomes() const {
    uint64_t all = 0;
    for (const uint64_t count : Stats().similar_outcomes) all += count;
    return all;
  }
  Tokens Prompt(uint64_t seed) const {
    return system_ + RandomTokens(1000 + seed, 6) + policy_ + RandomTokens(2000 + seed, 20);
  }
  void Lend(uint64_t seed) {
    Running run = harness_.Start(harness_.RequestOf(Prompt(seed)));
    harness_.Compute(run);
  }
  Running Borrow(uint64_t seed, SimilarPolicy policy = SimilarPolicy::kOn) {
    const Tokens prompt = Prompt(seed);
    Running run = harness_.Start(harness_.Similar(prompt, {}, policy));
    EXPECT_TRUE(run.tainted) << SimilarReasonName(run.plan.similar_reason);
    harness_.Compute(run);
    return run;
  }
  static std::vector<float> Certain(TokenId token) { return SimilarHarness::Certain(token); }

  const Tokens system_ = RandomTokens(1, 50);
  const Tokens policy_ = RandomTokens(2, 1000);
  SimilarHarness harness_{kBlock, 400};
};

TEST_F(SimilarCheckTest, WhereNothingHasChangedTheAnswerLeaves) {
  Lend(1);
  Running run = Borrow(2);
  const Verdict verdict = run->CheckFirstToken(Certain(1));
  EXPECT_EQ(verdict.action, Action::kAccept);
  EXPECT_EQ(verdict.reason, SimilarReason::kNone);
  EXPECT_FALSE(run->computed_rows().empty());
  EXPECT_EQ(Stats().similar_attempts, 1u);
  EXPECT_EQ(Outcomes(SimilarReason::kNone), 1u);
  EXPECT_EQ(Stats().similar_tokens, run.plan.similar->reused_rows);
}

// The V of rows behind the edit depends on what stands before: it is not clear how far that
// reaches, so more rows run, and nothing may move.
TEST_F(SimilarCheckTest, WhereRowsHaveChangedMoreRunAndTheAnswerMustStay) {
  harness_.context = 0.25f;
  Lend(1);
  Running run = Borrow(2);
  const uint64_t first_rows = run.own.size();
  EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kEnlarge);
  EXPECT_EQ(run.ready(), 50u);
  EXPECT_GE(run->capacity(), run.prompt + 1);
  const auto before = harness_.rows_computed;
  run.own.clear();
  harness_.Compute(run);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_GT(harness_.rows_computed - before, first_rows * 5 / 4);
  EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kAccept);
  EXPECT_EQ(harness_.WrongRows(run), "");
  EXPECT_EQ(Stats().similar_enlarged, 1u);
  EXPECT_EQ(Outcomes(SimilarReason::kNone), 1u);
  EXPECT_EQ(Stats().similar_tokens, run.prompt - 50 - (harness_.rows_computed - before));
  for (TokenId token = 0; token < 50; ++token) ASSERT_TRUE(harness_.Generate(run, token).ok());
  EXPECT_EQ(harness_.WrongRows(run), "");
}

TEST_F(SimilarCheckTest, AnAnswerThatMovesWithMoreRowsFallsBack) {
  harness_.context = 0.25f;
  Lend(1);
  {
    Running run = Borrow(2);
    ASSERT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kEnlarge);
    run.own.clear();
    harness_.Compute(run);
    const Verdict verdict = run->CheckFirstToken(Certain(2));
    EXPECT_EQ(verdict.action, Action::kFallBack);
    EXPECT_EQ(verdict.reason, SimilarReason::kDiverged);
  }
  EXPECT_EQ(Outcomes(SimilarReason::kDiverged), 1u);
  EXPECT_EQ(Stats().similar_tokens, 0u);
  // From the end of the exact rows, and what comes of it is a donor.
  const Tokens prompt = Prompt(2);
  Running exact = harness_.Start(harness_.RequestOf(prompt));
  EXPECT_EQ(exact.ready(), 50u);
  harness_.Compute(exact);
  EXPECT_EQ(harness_.WrongRows(exact), "");
  EXPECT_EQ(Stats().donors, 2u);
  EXPECT_EQ(AllOutcomes(), 1u);
}

TEST_F(SimilarCheckTest, WhereTooMuchHasChangedItFallsBackAtOnce) {
  harness_.options.similar.refuse_blast_radius = 0.1;
  harness_.Create();
  harness_.context = 1;
  Lend(1);
  Running run = Borrow(2);
  const Verdict verdict = run->CheckFirstToken(Certain(1));
  EXPECT_EQ(verdict.action, Action::kFallBack);
  EXPECT_EQ(verdict.reason, SimilarReason::kBlastRadius);
  EXPECT_EQ(Outcomes(SimilarReason::kBlastRadius), 1u);
}

TEST_F(SimilarCheckTest, StrictAlwaysRunsMoreRowsOnce) {
  Lend(1);
  Running run = Borrow(2, SimilarPolicy::kStrict);
  EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kEnlarge);
  run.own.clear();
  harness_.Compute(run);
  EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kAccept);
  // Of the server: stricter than a request.
  harness_.options.similar.policy = SimilarPolicy::kStrict;
  harness_.Create();
  Lend(1);
  EXPECT_EQ(Borrow(2)->CheckFirstToken(Certain(1)).action, Action::kEnlarge);
}

TEST_F(SimilarCheckTest, LogitsThatAreNoNumbersFallBack) {
  Lend(1);
  for (const float bad : {std::nanf(""), INFINITY}) {
    Running run = Borrow(2);
    std::vector<float> logits = Certain(1);
    logits[7] = bad;
    EXPECT_EQ(run->CheckFirstToken(logits).reason, SimilarReason::kGarbled);
  }
  EXPECT_EQ(Outcomes(SimilarReason::kGarbled), 2u);
}

TEST_F(SimilarCheckTest, WhereMoreRowsDoNotFitItFallsBack) {
  harness_.options.budget_bytes = 50 * harness_.options.shape.page_bytes();
  harness_.Create();
  Lend(1);
  Running run = Borrow(2, SimilarPolicy::kStrict);
  const uint64_t left = 50 - Stats().in_use_pages;
  Running other = harness_.Start(harness_.RequestOf(RandomTokens(9, left * kBlock - 1)));
  EXPECT_EQ(Stats().in_use_pages, 50u);
  const Verdict verdict = run->CheckFirstToken(Certain(1));
  EXPECT_EQ(verdict.action, Action::kFallBack);
  EXPECT_EQ(verdict.reason, SimilarReason::kNoRoom);
  EXPECT_EQ(AllOutcomes(), 1u);
  run.sequence.reset();
  harness_.ExpectConserved();
}

// Every request that asked is counted once, with its reason.
TEST_F(SimilarCheckTest, EveryRequestThatAskedIsCountedOnce) {
  Lend(1);
  uint64_t asked = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    Running run = Borrow(10 + i);
    ++asked;
    if (i % 2 == 0) {
      EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kAccept);
      continue;
    }
    EXPECT_EQ(run->CheckFirstToken(std::vector<float>(100, NAN)).action, Action::kFallBack);
    run.sequence.reset();
    const Tokens prompt = Prompt(10 + i);
    Running exact = harness_.Start(harness_.RequestOf(prompt));
    harness_.Compute(exact);
  }
  for (uint64_t i = 0; i < 5; ++i) {
    Running stranger = harness_.Start(RandomTokens(900 + i, 300));
    ++asked;
  }
  EXPECT_EQ(AllOutcomes(), asked);
  EXPECT_EQ(Outcomes(SimilarReason::kNone), 5u);
  EXPECT_EQ(Outcomes(SimilarReason::kGarbled), 5u);
  EXPECT_EQ(Outcomes(SimilarReason::kNoDonor), 5u);
}

// Acceptance c: a bad day costs a share of all compute.
TEST_F(SimilarCheckTest, FailedAttemptsCostAShareOfAllCompute) {
  Lend(1);
  uint64_t attempts = 0, wasted = 0, refused = 0;
  for (uint64_t i = 0; i < 250; ++i) {
    const Tokens prompt = Prompt(100 + i);
    {
      Running run = harness_.Start(harness_.Similar(prompt));
      if (run.tainted) {
        harness_.Compute(run);
        ++attempts;
        wasted += run.own.size();
        run->CheckFirstToken(std::vector<float>(100, NAN));
      } else {
        EXPECT_EQ(run.plan.similar_reason, SimilarReason::kBudget);
        ++refused;
      }
    }
    Running exact = harness_.Start(harness_.RequestOf(prompt));
    harness_.Compute(exact);
  }
  EXPECT_GT(attempts, 50u);
  EXPECT_GT(refused, 15u);
  const auto all = static_cast<double>(harness_.rows_computed + SimilarGate::kHeadStart);
  EXPECT_LE(static_cast<double>(wasted), 0.05 * all);
  EXPECT_GE(static_cast<double>(wasted), 0.04 * all);
  EXPECT_EQ(Outcomes(SimilarReason::kBudget), refused);
}

TEST_F(SimilarCheckTest, AnAttemptThatIsCancelledWastesNothing) {
  harness_.options.similar.wasted_compute_share = 0.002;  // 200 rows of the head start
  harness_.Create();
  Lend(1);
  for (int i = 0; i < 20; ++i) {
    const Tokens prompt = Prompt(2);
    Running run = harness_.Start(harness_.Similar(prompt));
    ASSERT_TRUE(run.tainted);
    Running second = harness_.Start(harness_.Similar(prompt));
    Running third = harness_.Start(harness_.Similar(prompt));
    EXPECT_EQ(third.plan.similar_reason, SimilarReason::kBudget);
  }
}

TEST_F(SimilarCheckTest, FailedShadowsCloseTheKindOfRequestAndNoOther) {
  harness_.options.similar.always_shadowed = 1000;
  harness_.options.similar_model.calibrated.fill({.trials = 100, .failures = 0});
  harness_.Create();
  Lend(1);
  const auto shadow_of = [&](uint64_t seed) {
    return Borrow(seed)->CheckFirstToken(Certain(1)).shadow;
  };
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t shadow = shadow_of(10 + i);
    ASSERT_NE(shadow, 0u);
    harness_.cache->RecordShadow(shadow, true);
    harness_.cache->RecordShadow(shadow, false);  // counts once
  }
  EXPECT_EQ(Stats().shadows, 20u);
  EXPECT_EQ(Stats().shadow_failures, 0u);
  for (uint64_t i = 0; i < 2; ++i) harness_.cache->RecordShadow(shadow_of(50 + i), false);
  EXPECT_EQ(Stats().shadow_failures, 2u);
  const auto reason_of = [&](const Tokens& prompt, const Namespace& ns) {
    return harness_.cache->Lookup(harness_.Similar(prompt, ns)).similar_reason;
  };
  EXPECT_EQ(reason_of(Prompt(99), {}), SimilarReason::kClusterClosed);
  // Another tenant's requests are not touched.
  const Namespace other{"other", ""};
  const Tokens prompt = Prompt(1);
  LookupRequest request = harness_.RequestOf(prompt, other);
  Running run = harness_.Start(request);
  harness_.Compute(run);
  EXPECT_EQ(reason_of(Prompt(99), other), SimilarReason::kNone);
}

TEST_F(SimilarCheckTest, TrialsThatNobodySeesOpenAKindOfRequestAgain) {
  harness_.options.similar_model.calibrated[static_cast<size_t>(EditClass::kWords)] = {100, 90};
  harness_.Create();
  Lend(1);
  const auto request_of = [&](const Tokens& prompt, bool trial) {
    LookupRequest request = harness_.Similar(prompt);
    request.trial = trial;
    return request;
  };
  for (uint64_t i = 0; i < 60; ++i) {
    const Tokens prompt = Prompt(10 + i);
    EXPECT_EQ(harness_.cache->Lookup(request_of(prompt, false)).similar_reason,
              SimilarReason::kClusterClosed);
    Running run = harness_.Start(request_of(prompt, true));
    ASSERT_TRUE(run.tainted);
    harness_.Compute(run);
    const Verdict verdict = run->CheckFirstToken(Certain(1));
    EXPECT_EQ(verdict.action, Action::kAccept);
    ASSERT_NE(verdict.shadow, 0u);
    harness_.cache->RecordShadow(verdict.shadow, true);
  }
  EXPECT_EQ(AllOutcomes(), 0u) << "no request";
  EXPECT_EQ(Stats().similar_attempts, 0u);
  EXPECT_EQ(Stats().similar_tokens, 0u);
  EXPECT_EQ(Stats().shadows, 60u);
  const Tokens prompt = Prompt(99);
  EXPECT_EQ(harness_.cache->Lookup(request_of(prompt, false)).similar_reason, SimilarReason::kNone);
}

TEST_F(SimilarCheckTest, TrialsArePaidForAsFailedAttemptsAre) {
  harness_.options.similar.wasted_compute_share = 0.002;  // 200 rows of the head start
  harness_.Create();
  Lend(1);
  const Tokens prompt = Prompt(2);
  LookupRequest request = harness_.Similar(prompt);
  request.trial = true;
  for (int i = 0; i < 2; ++i) {
    Running run = harness_.Start(request);
    ASSERT_TRUE(run.tainted);
    harness_.Compute(run);
    EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kAccept);
  }
  EXPECT_EQ(harness_.Start(request).plan.similar_reason, SimilarReason::kBudget);
}

TEST_F(SimilarCheckTest, ChangedNumbersAreAClassOfTheirOwn) {
  harness_.options.similar_model.token_texts.resize(50000);
  for (size_t i = 0; i < 10; ++i) {
    harness_.options.similar_model.token_texts[40000 + i] = std::to_string(i);
  }
  harness_.Create();
  const auto prompt = [&](const Tokens& clock) {
    return system_ + clock + policy_ + RandomTokens(77 + clock.size(), 20);
  };
  const Tokens lent = prompt({40001, 40002, 7, 40003});
  Running donor = harness_.Start(harness_.RequestOf(lent));
  harness_.Compute(donor);
  const auto edit_of = [&](const Tokens& clock) {
    const Plan plan = harness_.cache->Lookup(harness_.Similar(prompt(clock)));
    EXPECT_TRUE(plan.similar.has_value());
    return plan.similar ? plan.similar->edit : EditClass::kCount;
  };
  EXPECT_EQ(edit_of({40005, 7, 40006, 40009}), EditClass::kValues);
  EXPECT_EQ(edit_of({40005, 40002, 8, 40009}), EditClass::kWords);
}

// --- Waiting for a donor that is being computed. ---

class DonorWaitTest : public SimilarCheckTest {
 protected:
  using Request = WaitingRequest<Running>;

  std::vector<Request> Requests(size_t count) const {
    std::vector<Request> requests(count);
    for (size_t i = 0; i < count; ++i) requests[i].prompt = Prompt(100 + i);
    return requests;
  }
  template <typename AtStep>
  void Serve(std::vector<Request>& requests, uint32_t chunk, AtStep at_step) {
    RunToTheEnd(
        requests, at_step, [this](Request& request) { TryStart(request); },
        [&](Request& request) {
          Running& running = *request.running;
          harness_.Compute(running, chunk);
          if (running.left() > 0) return false;
          EXPECT_EQ(harness_.WrongRows(running), "");
          if (running.tainted) {
            EXPECT_EQ(running->CheckFirstToken(Certain(1)).action, Action::kAccept);
          }
          return true;
        });
  }
  void TryStart(Request& request) {
    if (request.wait && harness_.cache->StillComputing(*request.wait)) return;
    const LookupRequest lookup = harness_.Similar(request.prompt);
    const Plan plan = harness_.cache->Lookup(lookup);
    request.wait = plan.in_flight;
    if (plan.in_flight) return;
    auto run = harness_.TryStart(lookup, plan);
    if (run.ok()) request.running = std::move(run).value();
  }
};

TEST_F(DonorWaitTest, TenRequestsAtOnceWithTenClocksNeedOneFullPrefill) {
  for (const size_t system_tokens : {50, 0}) {  // nothing of theirs is equal, or a block is
    harness_.Create();
    harness_.rows_computed = 0;
    std::vector<Request> requests = Requests(10);
    for (Request& request : requests) {
      request.prompt.erase(request.prompt.begin(),
                           request.prompt.begin() + static_cast<ptrdiff_t>(50 - system_tokens));
    }
    Serve(requests, 100, [](int, auto&) {});
    EXPECT_EQ(Stats().similar_attempts, 9u);
    EXPECT_EQ(Outcomes(SimilarReason::kNone), 9u);
    EXPECT_EQ(Outcomes(SimilarReason::kNoDonor), 1u);
    EXPECT_LT(harness_.rows_computed, 1076u + 9 * 150);
    EXPECT_GT(Stats().similar_waits, 0u);
    EXPECT_EQ(Stats().donors, 1u);
  }
}

TEST_F(DonorWaitTest, WhoWaitsIsToldWhenThePromptIsWhole) {
  const Tokens prompt = RandomTokens(11, 6) + policy_;
  Running leader = harness_.Start(harness_.Similar(prompt));
  const Tokens other = RandomTokens(12, 8) + policy_;
  const Plan plan = harness_.cache->Lookup(harness_.Similar(other));
  ASSERT_TRUE(plan.in_flight.has_value());
  EXPECT_EQ(plan.in_flight->leader, leader->id());
  EXPECT_EQ(plan.in_flight->num_tokens, 0u);
  EXPECT_FALSE(plan.similar.has_value());
  while (leader.left() > 0) {
    ASSERT_TRUE(harness_.cache->StillComputing(*plan.in_flight)) << leader.ready();
    harness_.Compute(leader, 1);
  }
  EXPECT_FALSE(harness_.cache->StillComputing(*plan.in_flight));
  EXPECT_TRUE(harness_.Start(harness_.Similar(other)).tainted);
}

TEST_F(DonorWaitTest, ACancelledLeaderIsReplaced) {
  std::vector<Request> requests = Requests(10);
  Serve(requests, 100, [&](int step, std::vector<Request>& all) {
    if (step != 5) return;
    ASSERT_TRUE(all[0].running.has_value());
    all[0].running.reset();
    all[0].done = true;
  });
  EXPECT_EQ(Stats().similar_attempts, 8u);
  EXPECT_LT(harness_.rows_computed, 500u + 1076 + 8 * 150);
}

TEST_F(DonorWaitTest, WhileADonorIsThereNobodyWaitsForANewerOne) {
  Lend(1);
  const Tokens prompt = Prompt(2);
  Running leader = harness_.Start(harness_.RequestOf(prompt));
  harness_.Compute(leader, 300);
  const Plan plan = harness_.cache->Lookup(harness_.Similar(Prompt(3)));
  EXPECT_TRUE(plan.similar.has_value());
  EXPECT_FALSE(plan.in_flight.has_value());
}

TEST_F(DonorWaitTest, NobodyWaitsForWhatHeCouldNotUse) {
  const Tokens prompt = RandomTokens(70, 300) + policy_;
  Running leader = harness_.Start(harness_.RequestOf(prompt));
  const Plan plan = harness_.cache->Lookup(harness_.Similar(RandomTokens(71, 20) + policy_));
  EXPECT_FALSE(plan.in_flight.has_value());
  // Another tenant's leader.
  const Plan other = harness_.cache->Lookup(
      harness_.Similar(RandomTokens(70, 299) + RandomTokens(5, 1) + policy_, {"b", ""}));
  EXPECT_FALSE(other.in_flight.has_value());
}

}  // namespace
}  // namespace kvlink::link
