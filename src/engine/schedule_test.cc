// Many requests: preemption, cancel, deadlines, figures.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

TEST(Preemption, TokensAreUnchangedAndRequestsCountOnce) {
  HarnessOptions options = NoEos();
  options.pages = 24;  // 192 tokens: two of these requests at their full length
  Harness harness(options);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  harness.Hold();  // until all are there, or they would run one after the other
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(Greedy(Prompt(20, i), 60));
    outcomes.push_back(harness.Submit(requests.back()));
  }
  harness.Release();
  uint64_t preempted = 0, cached = 0, computed = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    outcomes[i]->WaitUntilFinished();
    harness.ExpectReference(requests[i], *outcomes[i]);
    const RequestReport& report = outcomes[i]->report();
    EXPECT_EQ(report.cached_tokens + report.computed_tokens, report.prompt_tokens);
    EXPECT_EQ(outcomes[i]->times_started(), 1);
    preempted += report.preemptions;
    cached += report.cached_tokens;
    computed += report.computed_tokens;
  }
  const EngineStats stats = harness.engine().Stats();
  EXPECT_GT(preempted, 0u);
  EXPECT_EQ(stats.preemptions, preempted);
  EXPECT_EQ(stats.requests, 6u);
  EXPECT_EQ(stats.prompt_tokens, 6u * 20);
  EXPECT_EQ(stats.cached_prompt_tokens, cached);
  EXPECT_EQ(stats.computed_tokens, computed);
  EXPECT_EQ(outcomes[0]->report().preemptions, 0u) << "the oldest is never preempted";
  harness.ExpectIdle();
}

TEST(Preemption, BranchesAndBeamsResumeWhereTheyWere) {
  for (const Sharing sharing : {Sharing::kExact, Sharing::kOff}) {
    HarnessOptions options = NoEos();
    options.sharing = sharing;
    options.pages = sharing == Sharing::kOff ? 48 : 28;
    Harness harness(options);
    std::vector<GenerationRequest> requests;
    std::vector<std::shared_ptr<Outcome>> outcomes;
    harness.Hold();
    for (uint64_t i = 0; i < 6; ++i) {
      GenerationRequest request = Greedy(Prompt(19, i), 40);
      request.n = 3;
      request.sampling.temperature = 1;
      request.sampling.seed = i;
      request.beam_search = i % 2 == 1;
      requests.push_back(request);
      outcomes.push_back(harness.Submit(request));
    }
    harness.Release();
    for (size_t i = 0; i < requests.size(); ++i) {
      outcomes[i]->WaitUntilFinished();
      harness.ExpectReference(requests[i], *outcomes[i]);
    }
    EXPECT_GT(harness.engine().Stats().preemptions, 0u);
    harness.ExpectIdle();
  }
}

TEST(Preemption, ARequestThatDoesNotFitAloneEndsWithTheFigures) {
  HarnessOptions options = NoEos();
  options.pages = 12;  // 96 tokens
  Harness harness(options);
  GenerationRequest request = Greedy(Prompt(16, 1), 70);
  request.n = 4;
  request.sampling.temperature = 1;
  const auto outcome = harness.Run(request);
  EXPECT_EQ(outcome->report().status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(outcome->report().status.message().find("96 tokens"), std::string::npos)
      << outcome->report().status.message();
  EXPECT_EQ(outcome->report().branches.size(), 4u);
  const GenerationRequest next = Greedy(Prompt(16, 1), 70);
  harness.ExpectReference(next, *harness.Run(next));
  harness.ExpectIdle();
}

TEST(Preemption, PinnedPagesThatLeaveNoRoomAreAnErrorNotAHang) {
  HarnessOptions options = NoEos();
  options.pages = 16;
  Harness harness(options);
  const GenerationRequest pinned = Greedy(Prompt(60, 1), 1);
  harness.Run(pinned);
  LookupRequest lookup;
  lookup.tokens = pinned.prompt;
  const auto pins = harness.cache().Pin(lookup, std::chrono::hours(1));
  ASSERT_TRUE(pins.ok()) << pins.status().message();
  ASSERT_GT(*pins, 40u);
  const auto outcome = harness.Run(Greedy(Prompt(100, 2), 1));
  EXPECT_EQ(outcome->report().status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(outcome->report().status.message().find("pinned"), std::string::npos);
}

TEST(Cancel, APromptCutAtHalfItsPrefillIsHalfCachedWhenItIsSentAgain) {
  HarnessOptions options = NoEos();
  options.model.context = 8192;
  options.pages = 1100;
  options.engine.chunk_tokens = 500;
  Harness harness(options);
  int steps = 0;
  harness.OnRun([&] {
    if (++steps == 7) harness.Hold();
  });
  const GenerationRequest request = Greedy(Prompt(7000, 1), 4);
  RequestId id = 0;
  const auto cut = harness.Submit(request, &id);
  const GenerationRequest other = Greedy(Prompt(30, 2), 30);
  const auto beside = harness.Submit(other);
  harness.WaitUntilHeld();
  harness.engine().Cancel(id);
  harness.Release();
  cut->WaitUntilFinished();
  beside->WaitUntilFinished();
  EXPECT_EQ(cut->report().branches[0].reason, FinishReason::kCancelled);
  EXPECT_TRUE(cut->report().branches[0].tokens.empty());
  harness.ExpectReference(other, *beside);
  const auto again = harness.Run(request);
  harness.ExpectReference(request, *again);
  EXPECT_GE(again->report().cached_tokens, 7000u * 45 / 100);
  harness.ExpectIdle();
}

TEST(Cancel, EndsARequestAtEveryStageOnce) {
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 1;
  Harness harness(options);
  harness.Hold();
  RequestId running = 0, waiting = 0;
  const auto decoding = harness.Submit(Greedy(Prompt(20, 1), 1000), &running);
  harness.WaitUntilHeld();
  const auto queued = harness.Submit(Greedy(Prompt(20, 2), 10), &waiting);
  harness.engine().Cancel(waiting);
  harness.engine().Cancel(9999);  // nobody
  harness.Release();
  queued->WaitUntilFinished();
  EXPECT_EQ(queued->times_started(), 0);
  EXPECT_EQ(queued->report().branches[0].reason, FinishReason::kCancelled);
  while (decoding->streamed_tokens() < 5) std::this_thread::yield();
  harness.engine().Cancel(running);
  harness.engine().Cancel(running);
  decoding->WaitUntilFinished();
  const std::vector<TokenId> streamed = decoding->StreamedTokens(0);
  EXPECT_EQ(decoding->report().branches[0].tokens, streamed);
  EXPECT_EQ(decoding->report().generated_tokens, streamed.size());
  harness.Run(Greedy(Prompt(9, 3), 2));
  EXPECT_EQ(decoding->times_finished(), 1);
  EXPECT_EQ(decoding->events_after_finish(), 0);
  EXPECT_EQ(harness.engine().Stats().cancelled, 2u);
  harness.ExpectIdle();
}

TEST(Deadline, EndsWaitingAndRunningRequests) {
  base::FakeClock clock;
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 1;
  options.engine.clock = clock.clock();
  Harness harness(options);
  harness.OnRun([&] { clock.Advance(std::chrono::milliseconds(10)); });
  GenerationRequest request = Greedy(Prompt(20, 1), 500);
  request.deadline = std::chrono::milliseconds(300);
  harness.Hold();
  const auto running = harness.Submit(request);
  harness.WaitUntilHeld();
  request.deadline = std::chrono::milliseconds(100);
  const auto waiting = harness.Submit(request);
  harness.Release();
  running->WaitUntilFinished();
  waiting->WaitUntilFinished();
  EXPECT_EQ(running->report().branches[0].reason, FinishReason::kDeadline);
  const size_t tokens = running->report().branches[0].tokens.size();
  EXPECT_GE(tokens, 28u);
  EXPECT_LE(tokens, 31u);
  EXPECT_EQ(waiting->report().branches[0].reason, FinishReason::kDeadline);
  EXPECT_EQ(waiting->times_started(), 0);
  EXPECT_EQ(harness.engine().Stats().deadline_missed, 2u);
  harness.ExpectIdle();
}

TEST(Cache, IsNotTiedToSlots) {
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 2;
  Harness harness(options);
  const GenerationRequest chat = Greedy(Prompt(600, 1), 8);
  harness.Run(chat);
  for (uint64_t i = 0; i < 20; ++i) {
    std::vector<TokenId> few(chat.prompt.begin(), chat.prompt.begin() + 5);
    harness.Run(Greedy(Joined(few, Prompt(8, 100 + i)), 4));
  }
  EXPECT_EQ(harness.Run(chat)->report().cached_tokens, 599u);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < 3; ++i) {  // N + 1 prompts over N sequences
      const auto outcome = harness.Run(Greedy(Prompt(100, 50 + i), 4));
      EXPECT_EQ(outcome->report().cached_tokens, round == 0 ? 0u : 99u);
    }
  }
}

TEST(Stats, PeakFiguresAreThoseOfTheRunningRequests) {
  Harness harness(NoEos());
  harness.Hold();
  std::vector<std::shared_ptr<Outcome>> outcomes = {harness.Submit(Greedy(Prompt(16, 0), 10))};
  harness.WaitUntilHeld();
  for (uint64_t i = 1; i < 5; ++i) outcomes.push_back(harness.Submit(Greedy(Prompt(16, i), 10)));
  harness.Release();
  for (const auto& outcome : outcomes) outcome->WaitUntilFinished();
  const EngineStats stats = harness.engine().Stats();
  EXPECT_EQ(stats.peak_running, 5u);
  EXPECT_EQ(stats.running_at_peak_kv, 5u);
}

}  // namespace
}  // namespace kvlink::engine
