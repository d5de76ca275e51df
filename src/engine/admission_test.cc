// Who starts next: the longest hit, who has waited long, and tenants by turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/fair_turns.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

// Order in which requests finish when one runs at a time: a cold one among many hits.
size_t PlaceOfTheColdOne(std::chrono::milliseconds starvation) {
  base::FakeClock clock;
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
  base::FakeClock clock;
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
  base::FakeClock clock;
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

}  // namespace
}  // namespace kvlink::engine
