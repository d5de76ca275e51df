// Similar reuse through the engine: which rows run, what leaves, falling back, shadows.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

constexpr uint32_t kPromptTokens = 1200;

enum class Check { kAcceptsAll, kRefusesAll, kWantsMore };

// The fake model's rows are hashes of all before them, so that behind an edit every row is another:
// what a check says depends on its thresholds alone.
HarnessOptions With(Check check) {
  HarnessOptions options = {.model = {.eos_bias = -100}, .pages = 2048};
  SimilarOptions& similar = options.similar;
  similar.policy = SimilarPolicy::kOn;
  similar.max_reuse_distance = 1024;
  similar.always_shadowed = 0;
  similar.shadow_share = 0;
  similar.wasted_compute_share = 1;
  similar.accept_blast_radius = check == Check::kAcceptsAll ? 1e9 : 0;
  similar.refuse_blast_radius = check == Check::kRefusesAll ? 0 : 1e9;
  // What a hash says after another hash is never like it.
  similar.max_nll_increase = similar.max_entropy_increase = 1e9;
  similar.stale_js = 0;
  similar.garbled_js = 1;
  return options;
}

// The prompt with another clock in its first line.
GenerationRequest Clock(uint32_t time, uint32_t max_tokens = 12) {
  GenerationRequest request = Greedy(Prompt(kPromptTokens, 1), max_tokens);
  for (uint32_t i = 0; i < 4; ++i) {
    request.prompt[6 + i] = static_cast<TokenId>(2 + (time * 7 + i * 5) % 40);
  }
  request.similar = SimilarPolicy::kOn;
  return request;
}

void WaitForShadows(Harness& harness, uint64_t count) {
  for (int i = 0; i < 2000 && harness.engine().Stats().cache.shadows < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(harness.engine().Stats().cache.shadows, count);
}

TEST(SimilarRequests, RunOnlyTheRowsThatWereSelected) {
  Harness harness(With(Check::kAcceptsAll));
  const auto donor = harness.Run(Clock(1));
  EXPECT_EQ(donor->report().similar_reason, SimilarReason::kNoDonor);
  const uint64_t rows = harness.model().counters().rows;
  const auto outcome = harness.Run(Clock(2));
  const RequestReport& report = outcome->report();
  EXPECT_EQ(report.similar_reason, SimilarReason::kNone);
  EXPECT_GT(report.similar_tokens, kPromptTokens * 8 / 10);
  EXPECT_EQ(report.cached_tokens + report.similar_tokens + report.computed_tokens, kPromptTokens);
  EXPECT_EQ(harness.model().counters().rows - rows, report.computed_tokens + 11);
  // Each token once, although the prompt's rows came in several runs.
  EXPECT_EQ(report.generated_tokens, 12u);
  EXPECT_EQ(outcome->StreamedTokens(0), report.branches[0].tokens);
  EXPECT_EQ(outcome->StreamedTokens(0).size(), 12u);
  EXPECT_EQ(harness.engine().Stats().similar_prompt_tokens, report.similar_tokens);
  harness.ExpectIdle();
}

TEST(SimilarRequests, RunInChunksAsOthersDo) {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.engine.chunk_tokens = 5;
  Harness harness(options);
  harness.Run(Clock(1));
  const auto outcome = harness.Run(Clock(2));
  HarnessOptions whole = With(Check::kAcceptsAll);
  Harness other(whole);
  other.Run(Clock(1));
  EXPECT_EQ(outcome->report().branches[0].tokens, other.Run(Clock(2))->report().branches[0].tokens);
}

TEST(SimilarRequests, FallBackToTheExactAnswer) {
  Harness harness(With(Check::kRefusesAll));
  harness.Run(Clock(1));
  const auto outcome = harness.Run(Clock(2));
  const RequestReport& report = outcome->report();
  EXPECT_TRUE(report.fell_back);
  EXPECT_EQ(report.similar_reason, SimilarReason::kBlastRadius);
  EXPECT_EQ(report.similar_tokens, 0u);
  EXPECT_GT(report.computed_tokens, kPromptTokens - report.cached_tokens);  // the attempt as well
  EXPECT_EQ(outcome->times_started(), 1);
  harness.ExpectReference(Clock(2), *outcome);
  harness.ExpectIdle();
}

TEST(SimilarRequests, ComputeMoreWhenInDoubt) {
  Harness harness(With(Check::kWantsMore));
  harness.Run(Clock(1));
  const auto outcome = harness.Run(Clock(2));
  const RequestReport& report = outcome->report();
  EXPECT_TRUE(report.enlarged);
  // More rows gave other logits here, as a hash does.
  EXPECT_TRUE(report.fell_back);
  EXPECT_EQ(report.similar_reason, SimilarReason::kDiverged);
  harness.ExpectReference(Clock(2), *outcome);
  harness.ExpectIdle();
}

TEST(SimilarRequests, LeaveNothingThatAnExactRequestFinds) {
  Harness harness(With(Check::kAcceptsAll));
  harness.Run(Clock(1));
  EXPECT_GT(harness.Run(Clock(2))->report().similar_tokens, 0u);
  GenerationRequest exact = Clock(2);
  exact.similar = SimilarPolicy::kOff;
  const auto outcome = harness.Run(exact);
  harness.ExpectReference(exact, *outcome);
  EXPECT_EQ(outcome->report().similar_reason, SimilarReason::kPolicy);
}

// Acceptance 13: what comes once does not make later hits smaller, or the index larger for ever.
TEST(SimilarRequests, LendAsMuchAfterHundredsOfNovelPrompts) {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.pages = 512;
  Harness harness(options);
  const auto novel = [&](uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      GenerationRequest request = Greedy(Prompt(200, 1000 + first + i), 1);
      request.similar = SimilarPolicy::kOn;
      harness.Run(request);
    }
    return harness.engine().Stats().cache;
  };
  const auto borrow = [&](uint32_t time) {
    harness.Run(Clock(time));
    const uint32_t lent = harness.Run(Clock(time + 1))->report().similar_tokens;
    harness.ExpectIdle();
    harness.cache().Clear();
    return lent;
  };
  const uint32_t before = borrow(1);
  EXPECT_GT(before, kPromptTokens * 8 / 10);
  const CacheStats some = novel(0, 150), more = novel(150, 300);
  EXPECT_GT(some.evicted_blocks, 0u) << "the cache was never full";
  EXPECT_LE(more.donors, more.total_pages);
  EXPECT_LE(more.tracking_bytes, some.tracking_bytes * 12 / 10);
  harness.Run(Clock(3));  // among the donors that are left
  EXPECT_EQ(harness.Run(Clock(4))->report().similar_tokens, before);
  harness.ExpectIdle();
}

TEST(SimilarRequests, NeverBorrowForPromptLogprobs) {
  Harness harness(With(Check::kAcceptsAll));
  harness.Run(Clock(1));
  GenerationRequest request = Clock(2);
  request.prompt_logprobs = 0;
  const auto outcome = harness.Run(request);
  EXPECT_EQ(outcome->report().similar_tokens, 0u);
  harness.ExpectReference(request, *outcome);
}

TEST(SimilarRequests, BranchOffAsOthersDo) {
  Harness harness(With(Check::kAcceptsAll));
  harness.Run(Clock(1));
  GenerationRequest request = Clock(2, 20);
  request.n = 5;
  request.sampling.temperature = 1;
  const auto outcome = harness.Run(request);
  EXPECT_GT(outcome->report().similar_tokens, 0u);
  ASSERT_EQ(outcome->report().branches.size(), 5u);
  for (uint32_t b = 0; b < 5; ++b) EXPECT_EQ(outcome->StreamedTokens(b).size(), 20u);
  GenerationRequest beams = Clock(3, 8);
  beams.beam_search = true;
  beams.n = beams.best_of = 3;
  EXPECT_EQ(harness.Run(beams)->report().branches.size(), 3u);
  harness.ExpectIdle();
}

TEST(SimilarRequests, WaitForOneFullPrefillWhenTheyComeTogether) {
  Harness harness(With(Check::kAcceptsAll));
  harness.Hold();
  std::vector<std::shared_ptr<Outcome>> outcomes = {harness.Submit(Clock(1, 2))};
  harness.WaitUntilHeld();
  for (uint32_t time = 2; time < 10; ++time) outcomes.push_back(harness.Submit(Clock(time, 2)));
  harness.Release();
  uint64_t computed = 0;
  for (const auto& outcome : outcomes) {
    outcome->WaitUntilFinished();
    computed += outcome->report().computed_tokens;
  }
  EXPECT_LT(computed, 2 * kPromptTokens);
  harness.ExpectIdle();
}

// It computed most of its rows, lost them, and finds a donor when it starts again.
TEST(SimilarRequests, NeverBorrowAfterAPreemption) {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.engine.chunk_tokens = 64;
  options.engine.single_flight_patience = std::chrono::milliseconds(0);
  // Both prompts of 150 blocks, and the first 16 tokens of the older one's four branches.
  options.pages = 2 * 151 + 7;
  Harness harness(options);
  GenerationRequest older = Clock(1, 300);
  older.n = 4;
  older.sampling.temperature = 1;
  harness.Hold();
  const auto donor = harness.Submit(older);
  harness.WaitUntilHeld();
  const auto outcome = harness.Submit(Clock(2, 4));
  harness.Release();
  outcome->WaitUntilFinished();
  donor->WaitUntilFinished();
  const RequestReport& report = outcome->report();
  EXPECT_GT(report.preemptions, 0u);
  EXPECT_EQ(report.similar_tokens, 0u);
  EXPECT_EQ(report.cached_tokens + report.computed_tokens, kPromptTokens);
  harness.ExpectReference(Clock(2, 4), *outcome);
  EXPECT_EQ(harness.engine().Stats().similar_prompt_tokens, 0u);
  harness.ExpectIdle();
}

TEST(SimilarRequests, CanBeCancelledBeforeTheCheck) {
  Harness harness(With(Check::kAcceptsAll));
  harness.Run(Clock(1));
  harness.Hold();
  RequestId id = 0;
  const auto outcome = harness.Submit(Clock(2), &id);
  harness.WaitUntilHeld();
  harness.engine().Cancel(id);
  harness.Release();
  outcome->WaitUntilFinished();
  harness.Run(Clock(3));
  harness.ExpectIdle();
}

TEST(Shadows, FindOutInIdleTimeThatAnAnswerWasWrong) {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.similar.always_shadowed = 1000;
  Harness harness(options);
  harness.Run(Clock(1));
  EXPECT_GT(harness.Run(Clock(2))->report().similar_tokens, 0u);
  WaitForShadows(harness, 1);
  const EngineStats stats = harness.engine().Stats();
  EXPECT_EQ(stats.cache.shadow_failures, 1u);
  EXPECT_GT(stats.shadow_tokens, kPromptTokens / 2);
  EXPECT_EQ(stats.requests, 2u);  // nobody asked for it
  EXPECT_EQ(stats.finished, 2u);
  // One wrong answer in one trial: the cluster is closed.
  const auto outcome = harness.Run(Clock(3));
  EXPECT_EQ(outcome->report().similar_reason, SimilarReason::kClusterClosed);
  harness.ExpectReference(Clock(3), *outcome);
}

TEST(Shadows, FailByTheirDistributionHoweverWideTheTieGap) {
  for (const double tie_gap : {0.0, 1e9}) {
    HarnessOptions options = With(Check::kAcceptsAll);
    options.similar.always_shadowed = 1000;
    options.engine.shadow_tie_gap = tie_gap;
    Harness harness(options);
    harness.Run(Clock(1));
    harness.Run(Clock(2));
    WaitForShadows(harness, 1);
    // A hash's distribution is another one whatever its first token: the divergence still tells.
    EXPECT_EQ(harness.engine().Stats().cache.shadow_failures, 1u) << tie_gap;
  }
}

TEST(Shadows, StoreNothingForARequestThatMayNot) {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.similar.always_shadowed = 1000;
  Harness harness(options);
  harness.Run(Clock(1));
  GenerationRequest request = Clock(2);
  request.store = false;
  EXPECT_GT(harness.Run(request)->report().similar_tokens, 0u);
  WaitForShadows(harness, 1);
  GenerationRequest exact = Clock(2);
  exact.similar = SimilarPolicy::kOff;
  const auto outcome = harness.Run(exact);
  EXPECT_LT(outcome->report().cached_tokens, 16u);
  harness.ExpectReference(exact, *outcome);
}

TEST(Shadows, GiveWayToRequests) {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.similar.always_shadowed = 1000;
  options.engine.chunk_tokens = 100;
  Harness harness(options);
  harness.Run(Clock(1));
  harness.Run(Clock(2));
  for (uint32_t i = 0; i < 5; ++i) {
    const GenerationRequest request = Greedy(Prompt(500, 100 + i), 4);
    harness.ExpectReference(request, *harness.Run(request));
  }
  WaitForShadows(harness, 1);
  harness.ExpectIdle();
}

HarnessOptions Closed() {
  HarnessOptions options = With(Check::kAcceptsAll);
  options.calibrated = {.trials = 60, .failures = 60};
  // Five trials without a failure bound failures by 45 % at 95 % confidence.
  options.similar.min_trials = 5;
  options.similar.max_false_accepts = 0.5;
  return options;
}

TEST(Trials, OpenAKindOfRequestThatWasClosed) {
  HarnessOptions options = Closed();
  options.model.is_forgetful = true;  // right whatever the rows
  Harness harness(options);
  harness.Run(Clock(1));
  for (uint32_t time = 2; time < 7; ++time) {
    const auto outcome = harness.Run(Clock(time));
    const RequestReport& report = outcome->report();
    EXPECT_EQ(report.similar_reason, SimilarReason::kClusterClosed) << time;
    EXPECT_EQ(report.similar_tokens, 0u);
    EXPECT_FALSE(report.fell_back);
    EXPECT_EQ(report.cached_tokens + report.computed_tokens, kPromptTokens);
    EXPECT_EQ(outcome->times_started(), 1);
    harness.ExpectReference(Clock(time), *outcome);
  }
  const EngineStats closed = harness.engine().Stats();
  EXPECT_EQ(closed.cache.shadows, 5u);
  EXPECT_EQ(closed.cache.shadow_failures, 0u);
  EXPECT_GT(closed.shadow_tokens, 0u);
  EXPECT_LT(closed.shadow_tokens, kPromptTokens);
  // Open by itself, and the next answers leave from a donor's rows.
  const auto outcome = harness.Run(Clock(7));
  EXPECT_EQ(outcome->report().similar_reason, SimilarReason::kNone);
  EXPECT_GT(outcome->report().similar_tokens, kPromptTokens * 8 / 10);
  uint64_t outcomes = 0;
  for (const uint64_t count : harness.engine().Stats().cache.similar_outcomes) outcomes += count;
  EXPECT_EQ(outcomes, 7u) << "each request once, however often it was tried";
  harness.ExpectIdle();
}

TEST(Trials, LeaveAKindClosedThatFails) {
  Harness harness(Closed());  // a hash of other rows is another answer
  harness.Run(Clock(1));
  for (uint32_t time = 2; time < 12; ++time) {
    const auto outcome = harness.Run(Clock(time));
    EXPECT_EQ(outcome->report().similar_reason, SimilarReason::kClusterClosed) << time;
    harness.ExpectReference(Clock(time), *outcome);
  }
  const EngineStats stats = harness.engine().Stats();
  EXPECT_EQ(stats.cache.shadows, 10u);
  EXPECT_EQ(stats.cache.shadow_failures, 10u);
  harness.ExpectIdle();
}

TEST(Trials, AreNotMadeForRequestsThatMayNotBorrow) {
  HarnessOptions options = Closed();
  options.model.is_forgetful = true;
  Harness harness(options);
  harness.Run(Clock(1));
  GenerationRequest request = Clock(2);
  request.similar = SimilarPolicy::kOff;
  harness.Run(request);
  EXPECT_EQ(harness.engine().Stats().shadow_tokens, 0u);
}

TEST(Trials, EndWithTheirRequest) {
  HarnessOptions options = Closed();
  options.engine.chunk_tokens = 8;
  Harness harness(options);
  harness.Run(Clock(1));
  harness.Hold();
  RequestId id = 0;
  const auto outcome = harness.Submit(Clock(2), &id);
  harness.WaitUntilHeld();
  harness.engine().Cancel(id);
  harness.Release();
  outcome->WaitUntilFinished();
  EXPECT_EQ(harness.engine().Stats().cache.shadows, 0u);
  harness.ExpectIdle();
}

}  // namespace
}  // namespace kvlink::engine
