// Many requests: single flight, order of admission, preemption, cancel, deadlines, figures.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "engine/fair_turns.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

using testing::FakeModel;
using testing::Greedy;
using testing::Harness;
using testing::HarnessOptions;
using testing::Outcome;
using testing::Prompt;

HarnessOptions NoEos() { return {.model = {.eos_bias = -100}}; }

std::vector<TokenId> Joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A clock that stands until it is told to move; any thread.
class SharedClock {
 public:
  void Advance(std::chrono::milliseconds by) { now_ms_ += by.count(); }
  Clock clock() {
    return [this] {
      return std::chrono::steady_clock::time_point(std::chrono::milliseconds(now_ms_.load()));
    };
  }

 private:
  std::atomic<int64_t> now_ms_{1000};
};

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
  SharedClock clock;
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

// Order in which requests finish when one runs at a time: a cold one among many hits.
size_t PlaceOfTheColdOne(std::chrono::milliseconds starvation) {
  SharedClock clock;
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 1;
  options.engine.clock = clock.clock();
  options.engine.starvation = starvation;
  Harness harness(options);
  const std::vector<TokenId> prefix = Prompt(64, 1);
  harness.Run(Greedy(prefix, 1));

  harness.Hold();
  const auto blocker = harness.Submit(Greedy(Prompt(8, 2), 1));
  harness.WaitUntilHeld();
  const auto cold = harness.Submit(Greedy(Prompt(64, 3), 2));
  std::vector<std::shared_ptr<Outcome>> hits;
  std::atomic<size_t> finished{0};
  std::atomic<size_t> place{0};
  // A hit that finishes is followed by another one, so that there are always some.
  std::function<void(const Event&)> follow;
  constexpr size_t kHits = 40;
  std::atomic<size_t> submitted{0};
  const auto submit_hit = [&] {
    const uint64_t seed = 100 + submitted++;
    const auto id = harness.engine().Submit(Greedy(Joined(prefix, Prompt(4, seed)), 2), follow);
    EXPECT_TRUE(id.ok());
  };
  follow = [&](const Event& event) {
    if (event.kind != Event::Kind::kFinished) return;
    clock.Advance(std::chrono::milliseconds(100));
    if (!cold->finished()) place = finished + 1;
    ++finished;
    if (submitted < kHits) submit_hit();
  };
  for (int i = 0; i < 3; ++i) submit_hit();
  harness.Release();
  cold->WaitUntilFinished();
  while (finished < kHits) std::this_thread::yield();
  harness.Destroy();
  return place;
}

TEST(Admission, TheLongestHitComesFirst) {
  EXPECT_EQ(PlaceOfTheColdOne(std::chrono::hours(1)), 40u);
}

TEST(Admission, AColdRequestIsServedAlthoughHitsKeepComing) {
  const size_t place = PlaceOfTheColdOne(std::chrono::milliseconds(1000));
  EXPECT_GE(place, 8u);
  EXPECT_LE(place, 12u);
}

TEST(Admission, AWideRequestGetsItsSequencesAlthoughNarrowOnesKeepComing) {
  SharedClock clock;
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 4;
  options.engine.clock = clock.clock();
  options.engine.starvation = std::chrono::milliseconds(1000);
  Harness harness(options);
  harness.OnRun([&] { clock.Advance(std::chrono::milliseconds(10)); });
  std::atomic<int> narrow{0};
  std::atomic<bool> stop{false};
  std::function<void(const Event&)> follow;
  const auto submit = [&] {
    const auto id = harness.engine().Submit(
        Greedy(Prompt(9, 100 + static_cast<uint64_t>(narrow++)), 5), follow);
    EXPECT_TRUE(id.ok());
  };
  std::atomic<int> ended{0};
  follow = [&](const Event& event) {
    if (event.kind != Event::Kind::kFinished) return;
    if (!stop) submit();
    ++ended;
  };
  for (int i = 0; i < 6; ++i) submit();
  GenerationRequest wide = Greedy(Prompt(20, 1), 6);
  wide.n = 4;
  const auto outcome = harness.Submit(wide);
  outcome->WaitUntilFinished();
  stop = true;
  harness.ExpectReference(wide, *outcome);
  while (ended < narrow) std::this_thread::yield();
}

// Who finishes in which order when tenants hand these in, while one request runs that holds all
// sequences. Every request of "flood" is older than any of the others, and long overdue.
std::vector<std::string> OrderOfEndings(const std::vector<std::pair<std::string, int>>& handed_in,
                                        const std::map<std::string, uint32_t>& weights = {}) {
  SharedClock clock;
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 1;
  options.engine.clock = clock.clock();
  options.engine.starvation = std::chrono::milliseconds(1000);
  Harness harness(options);
  harness.Hold();
  const auto first = harness.Submit(Greedy(Prompt(9, 1), 2));
  harness.WaitUntilHeld();
  std::mutex mutex;
  std::vector<std::string> order;
  std::atomic<size_t> ended{0};
  size_t submitted = 0;
  for (const auto& [tenant, count] : handed_in) {
    for (int i = 0; i < count; ++i) {
      GenerationRequest request = Greedy(Prompt(40, 100 + submitted++), 4);
      request.ns.tenant = tenant;
      if (weights.contains(tenant)) request.weight = weights.at(tenant);
      const auto id =
          harness.engine().Submit(std::move(request), [&, name = tenant](const Event& event) {
            if (event.kind != Event::Kind::kFinished) return;
            {
              const std::lock_guard lock(mutex);
              order.push_back(name);
            }
            ++ended;
          });
      EXPECT_TRUE(id.ok());
    }
    clock.Advance(std::chrono::milliseconds(5000));
  }
  harness.Release();
  while (ended < submitted) std::this_thread::yield();
  harness.ExpectIdle();
  return order;
}

TEST(Admission, AFloodOfOneTenantDoesNotHoldUpAnother) {
  const std::vector<std::string> order = OrderOfEndings({{"flood", 60}, {"quiet", 3}});
  ASSERT_EQ(order.size(), 63u);
  // By turns, whoever begins: without them the quiet ones would be the last three.
  EXPECT_EQ(std::count(order.begin(), order.begin() + 7, "quiet"), 3);
}

TEST(Admission, TenantsThatAskForEquallyMuchAreServedEquallyMuch) {
  const std::vector<std::string> order = OrderOfEndings({{"a", 20}, {"b", 20}, {"c", 20}});
  for (size_t end = 3; end <= order.size(); end += 3) {
    for (const char* tenant : {"a", "b", "c"}) {
      const auto count = std::count(order.begin(), order.begin() + static_cast<int>(end), tenant);
      EXPECT_NEAR(static_cast<double>(count), static_cast<double>(end) / 3, 1.0) << end << tenant;
    }
  }
}

TEST(Admission, ATenantOfThreeTimesTheWeightIsServedThreeTimesAsMuch) {
  const std::vector<std::string> order =
      OrderOfEndings({{"light", 40}, {"heavy", 40}}, {{"heavy", 3}});
  for (int end = 8; end <= 48; end += 8) {
    const auto heavy = std::count(order.begin(), order.begin() + end, "heavy");
    EXPECT_NEAR(static_cast<double>(heavy), end * 0.75, 2.0) << end;
  }
}

TEST(FairTurns, WhoComesBackSavesUpNoTurns) {
  FairTurns turns;
  FairTurns::Turn* busy = turns.Arrive("busy");
  FairTurns::Turn* away = turns.Arrive("away");
  away->Charge(10);
  turns.Leave(away, 5);
  busy->Charge(1000);
  away = turns.Arrive("away");
  EXPECT_EQ(away->served, busy->served);
  turns.Leave(away, 3);
  EXPECT_EQ(away->served, 1003);
  away = turns.Arrive("away");  // nor does leaving pay a debt
  EXPECT_EQ(away->served, 1003);
  turns.Leave(away, 0);
  turns.Leave(busy, 7);
  EXPECT_EQ(turns.Arrive("busy")->served, 0);
}

TEST(Preemption, TokensAreUnchangedAndRequestsCountOnce) {
  HarnessOptions options = NoEos();
  options.pages = 24;  // 192 tokens: two of these requests at their full length
  Harness harness(options);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(Greedy(Prompt(20, i), 60));
    outcomes.push_back(harness.Submit(requests.back()));
  }
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
    for (uint64_t i = 0; i < 6; ++i) {
      GenerationRequest request = Greedy(Prompt(19, i), 40);
      request.n = 3;
      request.sampling.temperature = 1;
      request.sampling.seed = i;
      request.beam_search = i % 2 == 1;
      requests.push_back(request);
      outcomes.push_back(harness.Submit(request));
    }
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
  SharedClock clock;
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
