// Equal prompts at once: one computes, the others wait for its blocks.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

TEST(SingleFlight, SixteenEqualPromptsAtOnceAreComputedOnce) {
  HarnessOptions options = NoEos();
  options.pages = 1024;
  Harness harness(options);
  harness.Hold();
  const auto first = harness.Submit(Greedy(Prompt(4000, 1), 4));
  harness.WaitUntilHeld();
  std::vector<std::shared_ptr<Outcome>> outcomes = {first};
  const GenerationRequest request = Greedy(Prompt(4000, 1), 4);
  for (int i = 1; i < 16; ++i) outcomes.push_back(harness.Submit(request));
  harness.Release();
  uint64_t cached = 0, waited = 0;
  for (const auto& outcome : outcomes) {
    outcome->WaitUntilFinished();
    harness.ExpectReference(request, *outcome);
    cached += outcome->report().cached_tokens;
    waited += outcome->report().waited_for_leader ? 1 : 0;
  }
  EXPECT_EQ(cached, 15u * 3999);
  EXPECT_EQ(waited, 15u);
  EXPECT_LE(harness.model().counters().rows, 4000u + 15 * 1 + 16 * 3);
  const EngineStats stats = harness.engine().Stats();
  EXPECT_EQ(stats.computed_tokens, 4000u + 15);
  EXPECT_EQ(stats.cache.single_flight_waits, 15u);
  EXPECT_EQ(stats.cache.single_flight_takeovers, 0u);
  harness.ExpectIdle();
}

TEST(SingleFlight, TheOldestWaiterTakesOverFromACancelledLeader) {
  HarnessOptions options = NoEos();
  options.engine.chunk_tokens = 40;
  Harness harness(options);
  harness.Hold();
  RequestId leader = 0;
  const auto cancelled = harness.Submit(Greedy(Prompt(400, 1), 4), &leader);
  harness.WaitUntilHeld();
  const GenerationRequest request = Greedy(Prompt(400, 1), 4);
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (int i = 0; i < 3; ++i) outcomes.push_back(harness.Submit(request));
  int steps = 0;
  harness.OnRun([&] {  // by then they wait
    if (++steps == 2) harness.Hold();
  });
  harness.Release();
  harness.WaitUntilHeld();
  EXPECT_EQ(harness.engine().Stats().cache.single_flight_waits, 3u);
  harness.engine().Cancel(leader);
  harness.Release();
  for (const auto& outcome : outcomes) {
    outcome->WaitUntilFinished();
    harness.ExpectReference(request, *outcome);
  }
  EXPECT_EQ(cancelled->report().branches[0].reason, FinishReason::kCancelled);
  const EngineStats stats = harness.engine().Stats();
  EXPECT_EQ(stats.cache.single_flight_takeovers, 1u);
  EXPECT_LE(stats.computed_tokens, 400u + 40 + 2);  // nothing the leader had done was done again
  harness.ExpectIdle();
}

TEST(SingleFlight, ALateLeaderIsOvertakenByOneWaiter) {
  base::FakeClock clock;
  HarnessOptions options = NoEos();
  options.engine.chunk_tokens = 8;
  options.engine.clock = clock.clock();
  options.engine.single_flight_patience = std::chrono::milliseconds(500);
  options.engine.starvation = std::chrono::hours(1);
  Harness harness(options);
  harness.OnRun([&] { clock.Advance(std::chrono::milliseconds(60)); });
  const GenerationRequest request = Greedy(Prompt(160, 1), 4);  // 20 steps of prefill
  std::vector<std::shared_ptr<Outcome>> outcomes;
  harness.Hold();
  outcomes.push_back(harness.Submit(request));
  harness.WaitUntilHeld();
  for (int i = 0; i < 2; ++i) outcomes.push_back(harness.Submit(request));
  harness.Release();
  for (const auto& outcome : outcomes) {
    outcome->WaitUntilFinished();
    harness.ExpectReference(request, *outcome);
  }
  EXPECT_GE(harness.engine().Stats().cache.single_flight_takeovers, 1u);
  harness.ExpectIdle();
}

}  // namespace
}  // namespace kvlink::engine
