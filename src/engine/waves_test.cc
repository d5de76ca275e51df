// Requests with more branches than sequences: the answers of a server with room for all of them at
// once, whatever ends them, and other tenants' turns in between.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/harness.h"
#include "engine/testing/reference.h"

namespace kvlink::engine {
namespace {

GenerationRequest Branches(uint32_t n, uint32_t max_tokens, float temperature = 1) {
  GenerationRequest request = Greedy(Prompt(100, 3), max_tokens);
  request.sampling.temperature = temperature;
  request.sampling.seed = 7;
  request.n = n;
  return request;
}

class WavesAtOnce : public ::testing::TestWithParam<uint32_t> {};  // sequences that may run

TEST_P(WavesAtOnce, GiveTheAnswersOfAllAtOnceAndComputeNothingTwice) {
  for (const float temperature : {0.0f, 1.0f}) {
    Harness harness(NoEos(GetParam()));
    uint64_t rows_before = 0, most = 0;
    harness.OnRun([&] {
      const uint64_t rows = harness.model().counters().rows;
      if (rows > 100) most = std::max(most, rows - std::max<uint64_t>(rows_before, 100));
      rows_before = rows;
    });
    const GenerationRequest request = Branches(8, 20, temperature);
    const auto outcome = harness.Run(request);
    harness.ExpectReference(request, *outcome);
    EXPECT_EQ(outcome->report().computed_tokens, 100u);
    EXPECT_EQ(outcome->report().generated_tokens, 8u * 20);
    EXPECT_EQ(harness.model().counters().rows, 100u + 8 * 19);
    EXPECT_EQ(most, GetParam()) << "all sequences are in use, and no more than there are";
    EXPECT_EQ(outcome->times_started(), 1);
    harness.ExpectIdle();
  }
}

TEST_P(WavesAtOnce, BranchesThatEndAtDifferentTimesMakeRoomForTheNext) {
  HarnessOptions options = NoEos(GetParam());
  options.model.eos_bias = 3;
  Harness harness(options);
  std::vector<size_t> lengths;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    GenerationRequest request = Branches(8, 30);
    request.sampling.seed = 100 * seed;
    request.stop = {"q"};
    const auto outcome = harness.Run(request);
    harness.ExpectReference(request, *outcome);
    for (const auto& branch : outcome->report().branches) lengths.push_back(branch.tokens.size());
  }
  EXPECT_NE(*std::min_element(lengths.begin(), lengths.end()),
            *std::max_element(lengths.begin(), lengths.end()));
  harness.ExpectIdle();
}

TEST_P(WavesAtOnce, TheBestOfAllAreReturned) {
  HarnessOptions options = NoEos(GetParam());
  options.model.eos_bias = 1;
  Harness harness(options);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    GenerationRequest request = Branches(2, 12);
    request.best_of = 9;
    request.sampling.seed = 50 * seed;
    harness.ExpectReference(request, *harness.Run(request));
  }
  harness.ExpectIdle();
}

TEST_P(WavesAtOnce, BranchesOfOneTokenAndManyOfThem) {
  Harness harness(NoEos(GetParam()));
  const GenerationRequest request = Branches(100, 1);
  const auto outcome = harness.Run(request);
  harness.ExpectReference(request, *outcome);
  EXPECT_EQ(harness.model().counters().rows, 100u);
  harness.ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(Sequences, WavesAtOnce, ::testing::Values(1u, 2u, 3u, 8u));

TEST(Waves, BranchSeedsAndPenaltiesBelongToTheBranchWheneverItBegins) {
  Harness harness(NoEos(2));
  GenerationRequest request = Branches(5, 15);
  request.branch_seeds = {9, 1, 5, 9, 1};
  request.sampling.repetition_penalty = 3;
  request.logprobs = 2;
  const auto outcome = harness.Run(request);
  harness.ExpectReference(request, *outcome);
  EXPECT_EQ(outcome->report().branches[0].tokens, outcome->report().branches[3].tokens);
  EXPECT_EQ(outcome->report().branches[1].tokens, outcome->report().branches[4].tokens);
}

// The third pair of eight branches is at work in the 45th run: one of the prompt, then 19 a pair.
constexpr int kRunOfTheThirdPair = 45;

void ExpectCutInTheThirdPair(Harness& harness, const GenerationRequest& request,
                             const Outcome& outcome, FinishReason reason) {
  const auto expected = Reference(harness.model(), harness.engine().options(), request);
  const RequestReport& report = outcome.report();
  ASSERT_EQ(report.branches.size(), 8u);
  size_t generated = 0;
  for (uint32_t b = 0; b < 8; ++b) {
    const BranchResult& branch = report.branches[b];
    EXPECT_EQ(outcome.StreamedTokens(b), branch.tokens);
    EXPECT_EQ(branch.reason, b < 4 ? FinishReason::kLength : reason) << b;
    EXPECT_EQ(branch.tokens.size() == 20, b < 4) << b;
    EXPECT_EQ(branch.tokens.empty(), b >= 6) << b;
    EXPECT_TRUE(std::equal(branch.tokens.begin(), branch.tokens.end(), expected[b].tokens.begin()));
    generated += branch.tokens.size();
  }
  EXPECT_EQ(report.generated_tokens, generated);
  EXPECT_EQ(outcome.times_finished(), 1);
  harness.ExpectIdle();
}

TEST(Waves, ACancelInTheMiddleEndsWhatRunsAndWhatHasNotBegun) {
  Harness harness(NoEos(2));
  int runs = 0;
  harness.OnRun([&] {
    if (++runs == kRunOfTheThirdPair) harness.Hold();
  });
  const GenerationRequest request = Branches(8, 20);
  RequestId id = 0;
  const auto outcome = harness.Submit(request, &id);
  harness.WaitUntilHeld();
  harness.engine().Cancel(id);
  harness.Release();
  outcome->WaitUntilFinished();
  ExpectCutInTheThirdPair(harness, request, *outcome, FinishReason::kCancelled);
  const GenerationRequest next = Greedy(Prompt(20, 9), 5);
  harness.ExpectReference(next, *harness.Run(next));
}

TEST(Waves, ADeadlineInTheMiddleEndsThemToo) {
  std::atomic<int64_t> now_ms{1000};
  HarnessOptions options = NoEos(2);
  options.engine.clock = [&now_ms] {
    return std::chrono::steady_clock::time_point(std::chrono::milliseconds(now_ms.load()));
  };
  Harness harness(options);
  harness.OnRun([&] { now_ms += 10; });
  GenerationRequest request = Branches(8, 20);
  request.deadline = std::chrono::milliseconds(10 * kRunOfTheThirdPair);
  const auto outcome = harness.Run(request);
  ExpectCutInTheThirdPair(harness, request, *outcome, FinishReason::kDeadline);
  EXPECT_EQ(harness.engine().Stats().deadline_missed, 1u);
}

// Older requests of a tenant that was served more begin between the branches, and need the pages.
TEST(Waves, SurvivePreemption) {
  for (const Sharing sharing : {Sharing::kExact, Sharing::kOff}) {
    HarnessOptions options = NoEos(4);
    options.sharing = sharing;
    options.pages = sharing == Sharing::kOff ? 28 : 26;
    Harness harness(options);
    const auto request_of = [](const char* tenant, uint64_t seed, uint32_t n, uint32_t max_tokens) {
      GenerationRequest request = Greedy(Prompt(19, seed), max_tokens);
      request.ns.tenant = tenant;
      request.sampling.temperature = 1;
      request.sampling.seed = 100 * seed;
      request.n = n;
      return request;
    };
    const GenerationRequest requests[] = {
        request_of("served", 1, 4, 30), request_of("served", 2, 1, 60),
        request_of("served", 3, 1, 60), request_of("wide", 4, 10, 30)};
    std::vector<std::shared_ptr<Outcome>> outcomes;
    harness.Hold();
    outcomes.push_back(harness.Submit(requests[0]));
    harness.WaitUntilHeld();
    for (size_t i = 1; i < 4; ++i) outcomes.push_back(harness.Submit(requests[i]));
    harness.Release();
    for (size_t i = 0; i < 4; ++i) {
      outcomes[i]->WaitUntilFinished();
      harness.ExpectReference(requests[i], *outcomes[i]);
      const RequestReport& report = outcomes[i]->report();
      EXPECT_EQ(report.cached_tokens + report.computed_tokens, report.prompt_tokens);
      EXPECT_EQ(report.generated_tokens, requests[i].n * requests[i].max_tokens);
    }
    EXPECT_GT(outcomes[3]->report().preemptions, 0u);
    harness.ExpectIdle();
  }
}

// Runs a request of "wide" with 12 branches on 2 sequences, while 4 requests of `other` wait behind
// it; returns how many tokens the wide one had generated when the last of those ended.
size_t WideTokensWhenTheOthersHaveEnded(const std::string& other) {
  Harness harness(NoEos(2));
  harness.Hold();
  GenerationRequest wide = Branches(12, 20);
  wide.ns.tenant = "wide";
  const auto outcome = harness.Submit(wide);
  harness.WaitUntilHeld();
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Outcome>> others;
  std::atomic<size_t> seen{0}, left{4};
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(Greedy(Prompt(10, 50 + i), 20));
    requests.back().ns.tenant = other;
    others.push_back(std::make_shared<Outcome>());
    const auto id =
        harness.engine().Submit(requests.back(), [&, to = others.back()](const Event& event) {
          if (event.kind == Event::Kind::kFinished && --left == 0) {
            seen = outcome->streamed_tokens();
          }
          to->Take(event);
        });
    EXPECT_TRUE(id.ok());
  }
  harness.Release();
  outcome->WaitUntilFinished();
  harness.ExpectReference(wide, *outcome);
  for (size_t i = 0; i < others.size(); ++i) {
    others[i]->WaitUntilFinished();
    harness.ExpectReference(requests[i], *others[i]);
  }
  harness.ExpectIdle();
  return seen;
}

TEST(Waves, OtherTenantsTakeTheirTurnsBetweenTheBranches) {
  // A pair before they come to their turn, and one beside each of them.
  EXPECT_LE(WideTokensWhenTheOthersHaveEnded("narrow"), 8u * 20);
}

TEST(Waves, YoungerRequestsOfTheSameTenantComeAfterTheBranches) {
  EXPECT_GE(WideTokensWhenTheOthersHaveEnded("wide"), 11u * 20);
}

// One that needs every sequence waits until the branches are done, and keeps none idle meanwhile.
TEST(Waves, ARequestThatNeedsAllSequencesDoesNotSlowTheBranchesDown) {
  std::atomic<int64_t> now_ms{1000};
  HarnessOptions options = NoEos(2);
  options.engine.starvation = std::chrono::milliseconds(50);
  options.engine.clock = [&now_ms] {
    return std::chrono::steady_clock::time_point(std::chrono::milliseconds(now_ms.load()));
  };
  Harness harness(options);
  harness.OnRun([&] { now_ms += 10; });
  harness.Hold();
  GenerationRequest wide = Branches(8, 20);
  wide.ns.tenant = "wide";
  const auto outcome = harness.Submit(wide);
  harness.WaitUntilHeld();
  GenerationRequest pair = Greedy(Prompt(10, 60), 20);
  pair.n = 2;
  pair.ns.tenant = "pair";
  const auto both = harness.Submit(pair);
  harness.Release();
  outcome->WaitUntilFinished();
  both->WaitUntilFinished();
  harness.ExpectReference(wide, *outcome);
  harness.ExpectReference(pair, *both);
  // The wide one's rows, two a step, and the pair's.
  EXPECT_LE(harness.model().counters().steps, 1u + 4 * 19 + 1 + 19 + 2);
  harness.ExpectIdle();
}

}  // namespace
}  // namespace kvlink::engine
