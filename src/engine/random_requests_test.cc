// Random requests of every kind from several threads, on a cache so small that blocks are evicted
// and requests preempted all the time: whatever runs beside a request, its answer is the
// reference's.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/testing/harness.h"
#include "engine/testing/reference.h"

namespace kvlink::engine {
namespace {

// A few families of prompts that share prefixes of any length.
std::vector<TokenId> RandomPrompt(base::Random& random) {
  std::vector<TokenId> prompt =
      Prompt(1 + static_cast<uint32_t>(random.Below(90)), random.Below(3));
  if (!random.OneIn(4)) {
    const auto tail = Prompt(1 + static_cast<uint32_t>(random.Below(30)), random.Below(6) + 100);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
  }
  return prompt;
}

// Up to `most_branches` of a request.
GenerationRequest RandomRequest(base::Random& random, uint32_t most_branches) {
  GenerationRequest request =
      Greedy(RandomPrompt(random), 1 + static_cast<uint32_t>(random.Below(30)));
  request.sampling.seed = random.Below(5);
  if (random.OneIn(2)) request.sampling.temperature = 1;
  if (random.OneIn(3)) request.n = 1 + static_cast<uint32_t>(random.Below(3));
  if (random.OneIn(5)) request.best_of = 3;
  request.beam_search = random.OneIn(6);
  if (request.beam_search) request.n = std::min(request.n, 2u);
  if (!request.beam_search && random.OneIn(5)) {
    (random.OneIn(3) ? request.best_of : request.n) =
        3 + static_cast<uint32_t>(random.Below(most_branches - 2));
    if (request.best_of > 0) request.best_of = std::max(request.best_of, request.n);
  }
  if (random.OneIn(4) && !request.beam_search) request.stop = {"ab", "q", "\xE4\xBD\xA0"};
  request.sampling.ignore_eos = random.OneIn(2);
  if (random.OneIn(8)) request.store = false;
  if (random.OneIn(8)) request.reuse = false;
  if (random.OneIn(6)) request.logprobs = static_cast<int>(random.Below(4));
  if (random.OneIn(10)) request.prompt_logprobs = 1;
  if (random.OneIn(8)) request.sampling.repetition_penalty = 3;
  if (random.OneIn(5)) request.ns.salt = "other";
  if (random.OneIn(4)) request.ns.tenant = "another";
  request.weight = 1 + static_cast<uint32_t>(random.Below(2));
  if (random.OneIn(20)) request.deadline = std::chrono::milliseconds(1 + random.Below(20));
  return request;
}

bool RanToItsEnd(const RequestReport& report) {
  for (const BranchResult& branch : report.branches) {
    if (branch.reason != FinishReason::kStop && branch.reason != FinishReason::kLength)
      return false;
  }
  return true;
}

// What was streamed before the cut is the beginning of the answer.
void ExpectBeginning(Harness& harness, const GenerationRequest& request, const Outcome& outcome) {
  if (request.beam_search || request.best_of > request.n) return;
  const auto expected = Reference(harness.model(), harness.engine().options(), request);
  for (uint32_t b = 0; b < request.n; ++b) {
    const std::vector<TokenId> streamed = outcome.StreamedTokens(b);
    ASSERT_LE(streamed.size(), expected[b].tokens.size());
    ASSERT_TRUE(std::equal(streamed.begin(), streamed.end(), expected[b].tokens.begin()));
    ASSERT_TRUE(expected[b].text.starts_with(outcome.StreamedText(b)));
  }
}

struct Sums {
  uint64_t prompt = 0, cached = 0, computed = 0, generated = 0, preemptions = 0, whole = 0;
};

void SubmitSome(Harness& harness, uint64_t seed, int count, uint32_t most_branches,
                std::vector<std::pair<GenerationRequest, std::shared_ptr<Outcome>>>& out) {
  base::Random random(seed);
  std::vector<RequestId> ids;
  for (int i = 0; i < count; ++i) {
    const GenerationRequest request = RandomRequest(random, most_branches);
    RequestId id = 0;
    out.emplace_back(request, harness.Submit(request, &id));
    ids.push_back(id);
    if (random.OneIn(8)) harness.engine().Cancel(ids[random.Below(ids.size())]);
    if (random.OneIn(3)) std::this_thread::sleep_for(std::chrono::microseconds(random.Below(2000)));
    EXPECT_LE(harness.engine().Stats().cache.in_use_bytes,
              harness.engine().Stats().cache.budget_bytes);
  }
}

Sums CheckAll(Harness& harness,
              const std::vector<std::pair<GenerationRequest, std::shared_ptr<Outcome>>>& all) {
  Sums sums;
  for (const auto& [request, outcome] : all) {
    outcome->WaitUntilFinished();
    const RequestReport& report = outcome->report();
    EXPECT_EQ(outcome->times_finished(), 1);
    EXPECT_EQ(outcome->events_after_finish(), 0);
    EXPECT_LE(outcome->times_started(), 1);
    EXPECT_TRUE(report.status.ok()) << report.status.message();
    if (RanToItsEnd(report)) {
      ++sums.whole;
      harness.ExpectReference(request, *outcome);
      EXPECT_EQ(report.cached_tokens + report.computed_tokens, report.prompt_tokens);
    } else {
      ExpectBeginning(harness, request, *outcome);
    }
    if (::testing::Test::HasFatalFailure()) return sums;
    sums.prompt += report.prompt_tokens;
    sums.cached += report.cached_tokens;
    sums.computed += report.computed_tokens;
    sums.generated += report.generated_tokens;
    sums.preemptions += report.preemptions;
  }
  return sums;
}

struct Setting {
  uint32_t chunk, sequences, pages;
  Sharing sharing;
};

class RandomRequests : public ::testing::TestWithParam<Setting> {};

TEST_P(RandomRequests, AnswersDoNotDependOnWhatRunsBeside) {
  const Setting& setting = GetParam();
  HarnessOptions options;
  options.engine.chunk_tokens = setting.chunk;
  options.engine.max_sequences = setting.sequences;
  // In some, whoever waits keeps lanes for itself at once.
  if (setting.chunk == 7) options.engine.starvation = std::chrono::milliseconds(1);
  options.pages = setting.pages;
  options.sharing = setting.sharing;
  Harness harness(options);
  constexpr int kThreads = 3, kRequests = 60;
  std::vector<std::vector<std::pair<GenerationRequest, std::shared_ptr<Outcome>>>> sent(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&harness, &sent, t, &setting] {
      // Many of them where few run at once, so that pages for those do not run out.
      const uint32_t most_branches = setting.sequences == 3 ? 10 : 3;
      SubmitSome(harness, t + setting.chunk, kRequests, most_branches, sent[t]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Sums total;
  for (const auto& requests : sent) {
    const Sums sums = CheckAll(harness, requests);
    ASSERT_FALSE(HasFatalFailure());
    total.prompt += sums.prompt;
    total.cached += sums.cached;
    total.computed += sums.computed;
    total.generated += sums.generated;
    total.preemptions += sums.preemptions;
    total.whole += sums.whole;
  }
  harness.ExpectIdle();
  const EngineStats stats = harness.engine().Stats();
  EXPECT_EQ(stats.requests, uint64_t{kThreads} * kRequests);
  EXPECT_EQ(stats.prompt_tokens, total.prompt);
  EXPECT_EQ(stats.cached_prompt_tokens, total.cached);
  EXPECT_EQ(stats.computed_tokens, total.computed);
  EXPECT_EQ(stats.generated_tokens, total.generated);
  EXPECT_EQ(stats.preemptions, total.preemptions);
  EXPECT_GT(total.whole, uint64_t{kThreads} * kRequests / 2);
  if (setting.sharing == Sharing::kExact) {
    EXPECT_GT(total.cached, 0u);
    EXPECT_GT(stats.cache.evicted_blocks, 0u);
    if (setting.sequences > 3) {
      EXPECT_GT(total.preemptions, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, RandomRequests,
    ::testing::Values(Setting{1, 8, 44, Sharing::kExact}, Setting{7, 3, 44, Sharing::kExact},
                      Setting{7, 8, 44, Sharing::kExact}, Setting{64, 8, 44, Sharing::kExact},
                      Setting{64, 16, 60, Sharing::kExact}, Setting{64, 3, 44, Sharing::kExact},
                      Setting{7, 16, 130, Sharing::kOff}, Setting{64, 3, 130, Sharing::kOff}));

}  // namespace
}  // namespace kvlink::engine
