// Requests that need the same uncomputed blocks: one computes them, the others wait without pages.
#include <gtest/gtest.h>

#include <deque>

#include "link/cache_harness.h"
#include "link/waiting_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 32;

class SingleFlightTest : public ::testing::Test {
 protected:
  SingleFlightTest() { harness_.Create(); }

  using Request = WaitingRequest<Branch>;

  // Returns the rows computed.
  template <typename AtStep>
  uint64_t Run(std::vector<Request>& requests, uint32_t chunk, AtStep at_step) {
    uint64_t computed = 0;
    RunToTheEnd(
        requests, at_step, [this](Request& request) { TryStart(request); },
        [&](Request& request) {
          Branch& branch = *request.running;
          const auto left = static_cast<uint32_t>(request.prompt.size()) - branch.ready();
          branch.Compute(std::min(chunk, left));
          computed += std::min(chunk, left);
          if (left > chunk) return false;
          EXPECT_EQ(branch.WrongRows(), 0u);
          return true;
        });
    return computed;
  }
  void TryStart(Request& request) {
    if (request.wait && harness_.cache->StillComputing(*request.wait)) return;
    const Plan plan = harness_.Lookup(request.prompt);
    request.wait = plan.in_flight;
    if (plan.in_flight) return;
    request.running = harness_.Begin(request.prompt);
  }
  std::vector<Request> Equal(size_t count, const Tokens& prompt) {
    std::vector<Request> requests(count);
    for (Request& request : requests) request.prompt = prompt;
    return requests;
  }

  CacheHarness harness_{kBlock, 400};
};

// Acceptance 18.
TEST_F(SingleFlightTest, SixteenEqualPromptsAtOnceAreComputedOnce) {
  std::vector<Request> requests = Equal(16, RandomTokens(1, 4096));
  uint64_t most_pages = 0;
  const uint64_t computed = Run(requests, 512, [&](int, std::vector<Request>&) {
    const CacheStats stats = harness_.cache->Stats();
    most_pages = std::max(most_pages, stats.in_use_bytes / stats.page_bytes);
  });
  EXPECT_EQ(computed, 4096u);
  EXPECT_LE(most_pages, 129u + 15u);  // the prompt once, and a page to generate into each
}

TEST_F(SingleFlightTest, WaitersHoldNoPages) {
  const Tokens prompt = RandomTokens(1, 1024);
  Branch leader = harness_.Begin(prompt);
  const uint64_t in_use = harness_.cache->Stats().in_use_bytes;
  const Plan plan = harness_.Lookup(prompt);
  ASSERT_TRUE(plan.in_flight.has_value());
  EXPECT_EQ(plan.in_flight->leader, leader->id());
  EXPECT_EQ(plan.in_flight->num_tokens, 1024u);
  EXPECT_EQ(harness_.cache->Stats().in_use_bytes, in_use);
}

TEST_F(SingleFlightTest, ACancelledLeaderIsTakenOverAndItsBlocksStay) {
  const Tokens prompt = RandomTokens(1, 4096);
  std::vector<Request> requests = Equal(16, prompt);
  const uint64_t computed = Run(requests, 512, [&](int step, std::vector<Request>& all) {
    if (step != 4) return;
    ASSERT_TRUE(all[0].running.has_value());
    EXPECT_EQ(all[0].running->ready(), 2048u);
    all[0].running.reset();  // cancelled
    all[0].done = true;
    ASSERT_TRUE(all[1].wait.has_value());
    EXPECT_FALSE(harness_.cache->StillComputing(*all[1].wait));
  });
  EXPECT_EQ(computed, 4096u);
}

TEST_F(SingleFlightTest, AWaiterWaitsForTheLastBlockThatItSharesWithTheLeader) {
  const Tokens common = RandomTokens(1, 5 * kBlock + 7);
  Branch leader = harness_.Begin(common + RandomTokens(2, 300));
  const Tokens prompt = common + RandomTokens(3, 300);
  const Plan plan = harness_.Lookup(prompt);
  ASSERT_TRUE(plan.in_flight.has_value());
  EXPECT_EQ(plan.in_flight->num_tokens, 5 * kBlock);
  leader.Compute(5 * kBlock - 1);
  EXPECT_TRUE(harness_.cache->StillComputing(*plan.in_flight));
  leader.Compute(1);
  EXPECT_FALSE(harness_.cache->StillComputing(*plan.in_flight));
  EXPECT_FALSE(harness_.Lookup(prompt).in_flight.has_value());
  EXPECT_EQ(harness_.Lookup(prompt).exact_tokens, 5 * kBlock);
}

TEST_F(SingleFlightTest, OneThatOvertakesALateLeaderIsWaitedForWhenThatGoesAway) {
  const Tokens prompt = RandomTokens(1, 320);
  Branch late = harness_.Begin(prompt);
  Branch second = harness_.Begin(prompt);
  EXPECT_EQ(harness_.Lookup(prompt).in_flight->leader, late->id());
  late.Release();
  EXPECT_EQ(harness_.Lookup(prompt).in_flight->leader, second->id());
  second.ComputePrompt();
  EXPECT_FALSE(harness_.Lookup(prompt).in_flight.has_value());
}

TEST_F(SingleFlightTest, NobodyWaitsForWhatWillNotBeStoredOrBelongsToAnotherTenant) {
  const Tokens prompt = RandomTokens(1, 320);
  LookupRequest unstored = harness_.RequestOf(prompt);
  unstored.store = false;
  auto secret = harness_.TryBegin(unstored);
  ASSERT_TRUE(secret.ok());
  EXPECT_FALSE(harness_.Lookup(prompt).in_flight.has_value());
  Branch other = harness_.Begin(prompt, {.tenant = "b", .salt = ""});
  EXPECT_FALSE(harness_.Lookup(prompt).in_flight.has_value());
  Branch leader = harness_.Begin(prompt);
  EXPECT_TRUE(harness_.Lookup(prompt).in_flight.has_value());
  LookupRequest alone = harness_.RequestOf(prompt);
  alone.reuse = false;
  EXPECT_FALSE(harness_.cache->Lookup(alone).in_flight.has_value());
}

TEST_F(SingleFlightTest, WaitsAndTakeoversAreCounted) {
  harness_.cache->CountWait();
  harness_.cache->CountWait();
  harness_.cache->CountTakeover();
  EXPECT_EQ(harness_.cache->Stats().single_flight_waits, 2u);
  EXPECT_EQ(harness_.cache->Stats().single_flight_takeovers, 1u);
}

}  // namespace
}  // namespace kvlink::link
