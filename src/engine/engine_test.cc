// One request, or a few: answers, branches, stop strings, log-probabilities, refusals, endings.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

using ::testing::HasSubstr;

TEST(Engine, AnswersAsTheModelAloneDoes) {
  Harness harness(NoEos());
  const GenerationRequest request = Greedy(Prompt(50, 1), 30);
  const auto outcome = harness.Run(request);
  harness.ExpectReference(request, *outcome);
  const RequestReport& report = outcome->report();
  EXPECT_EQ(report.branches[0].reason, FinishReason::kLength);
  EXPECT_EQ(report.prompt_tokens, 50u);
  EXPECT_EQ(report.cached_tokens, 0u);
  EXPECT_EQ(report.computed_tokens, 50u);
  EXPECT_EQ(report.generated_tokens, 30u);
  EXPECT_EQ(report.miss_reason, MissReason::kCold);
  EXPECT_EQ(outcome->times_started(), 1);
  EXPECT_EQ(outcome->started_report().prompt_tokens, 50u);
  harness.ExpectIdle();
}

TEST(Engine, TheSamePromptAgainIsCachedButForItsLastToken) {
  Harness harness(NoEos());
  const GenerationRequest request = Greedy(Prompt(50, 1), 10);
  harness.Run(request);
  const auto again = harness.Run(request);
  harness.ExpectReference(request, *again);
  EXPECT_EQ(again->report().cached_tokens, 49u);
  EXPECT_EQ(again->report().computed_tokens, 1u);
  EXPECT_EQ(again->report().partial_tokens, 1u);  // 48 are whole blocks
  EXPECT_EQ(harness.engine().Stats().cached_prompt_tokens, 49u);
}

TEST(Engine, ChunksAndBatchesDoNotChangeTokens) {
  for (const uint32_t chunk : {1u, 7u, 64u}) {
    for (const uint32_t sequences : {1u, 4u}) {
      HarnessOptions options = NoEos();
      options.engine.chunk_tokens = chunk;
      options.engine.max_sequences = sequences;
      Harness harness(options);
      std::vector<GenerationRequest> requests;
      std::vector<std::shared_ptr<Outcome>> outcomes;
      for (uint64_t i = 0; i < 6; ++i) {
        requests.push_back(Greedy(Prompt(20 + 13 * static_cast<uint32_t>(i), i / 2), 12));
        outcomes.push_back(harness.Submit(requests.back()));
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        outcomes[i]->WaitUntilFinished();
        harness.ExpectReference(requests[i], *outcomes[i]);
      }
      harness.ExpectIdle();
    }
  }
}

TEST(Engine, PrefillRowsOfAStepAreBoundedByTheChunk) {
  HarnessOptions options = NoEos();
  options.engine.chunk_tokens = 16;
  Harness harness(options);
  uint64_t rows_before = 0, most = 0;
  harness.OnRun([&] {
    const uint64_t rows = harness.model().counters().rows;
    most = std::max(most, rows - rows_before);
    rows_before = rows;
  });
  const auto a = harness.Submit(Greedy(Prompt(200, 1), 40));
  const auto b = harness.Submit(Greedy(Prompt(200, 2), 40));
  a->WaitUntilFinished();
  b->WaitUntilFinished();
  EXPECT_GE(most, 16u);
  EXPECT_LE(most, 16u + 2);
}

TEST(Engine, BranchesComputeThePromptOnceAndDrawFromTheSameLogits) {
  Harness harness(NoEos());
  GenerationRequest request = Greedy(Prompt(100, 3), 20);
  request.sampling.temperature = 1;
  request.sampling.seed = 7;
  request.n = 5;
  const auto outcome = harness.Run(request);
  harness.ExpectReference(request, *outcome);
  EXPECT_EQ(outcome->report().computed_tokens, 100u);
  EXPECT_EQ(outcome->report().generated_tokens, 100u);
  EXPECT_EQ(harness.model().counters().rows, 100u + 5 * 19);
  EXPECT_NE(outcome->report().branches[0].tokens, outcome->report().branches[1].tokens);
  harness.ExpectIdle();
}

TEST(Engine, BranchSeedsDecideABranch) {
  Harness harness(NoEos());
  GenerationRequest request = Greedy(Prompt(20, 3), 15);
  request.sampling.temperature = 1;
  request.n = 2;
  request.branch_seeds = {99, 99};
  const auto outcome = harness.Run(request);
  harness.ExpectReference(request, *outcome);
  EXPECT_EQ(outcome->report().branches[0].tokens, outcome->report().branches[1].tokens);
}

TEST(Engine, BestOfReturnsTheBranchesWithTheHighestMeanLogprob) {
  Harness harness;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = Greedy(Prompt(30, seed), 12);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.n = 2;
    request.best_of = 5;
    harness.ExpectReference(request, *harness.Run(request));
  }
  harness.ExpectIdle();
}

TEST(Engine, BeamSearchAgreesWithTheReference) {
  Harness harness({.model = {.eos_bias = 2}});
  for (uint64_t seed = 0; seed < 12; ++seed) {
    GenerationRequest request = Greedy(Prompt(21, seed), 2 + static_cast<uint32_t>(seed));
    request.beam_search = true;
    request.best_of = 1 + seed % 4;
    request.n = 1 + static_cast<uint32_t>(seed % 4) / 2;
    request.length_penalty = seed % 3 == 0 ? 1.0f : 0.5f;
    harness.ExpectReference(request, *harness.Run(request));
  }
  harness.ExpectIdle();
}

TEST(Engine, SharingOffGivesTheSameAnswersAndCachesNothing) {
  HarnessOptions options = NoEos();
  options.sharing = Sharing::kOff;
  Harness harness(options);
  GenerationRequest request = Greedy(Prompt(40, 3), 20);
  request.sampling.temperature = 1;
  request.n = 3;
  for (int i = 0; i < 2; ++i) {
    const auto outcome = harness.Run(request);
    harness.ExpectReference(request, *outcome);
    EXPECT_EQ(outcome->report().cached_tokens, 0u);
    EXPECT_EQ(outcome->report().miss_reason, MissReason::kPolicy);
  }
  harness.ExpectIdle();
}

TEST(Engine, AStopStringEndsTheAnswerWhereverTokensAreCut) {
  Harness harness(NoEos());
  int stopped = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    GenerationRequest request = Greedy(Prompt(10, seed), 40);
    request.stop = {"ab", "bc", "\xE4\xBD\xA0", "zh"};
    const auto outcome = harness.Run(request);
    harness.ExpectReference(request, *outcome);
    stopped += outcome->report().branches[0].reason == FinishReason::kStop ? 1 : 0;
  }
  EXPECT_GT(stopped, 10);
}

TEST(Engine, AnIncompleteCharacterAtTheEndIsShownAsAReplacement) {
  Harness harness(NoEos());
  int replaced = 0;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const GenerationRequest request = Greedy(Prompt(10, seed), 3);
    const auto outcome = harness.Run(request);
    harness.ExpectReference(request, *outcome);
    const BranchResult& branch = outcome->report().branches[0];
    if (branch.text.find("\xEF\xBF\xBD") == std::string::npos) continue;
    ++replaced;
    EXPECT_LT(branch.text_bytes, branch.text.size());
  }
  EXPECT_GT(replaced, 5);
}

TEST(Engine, TheEndTokenEndsAnAnswerUnlessItIsIgnored) {
  Harness harness({.model = {.eos_bias = 3}});
  GenerationRequest request = Greedy(Prompt(12, 4), 50);
  const auto ended = harness.Run(request);
  harness.ExpectReference(request, *ended);
  EXPECT_EQ(ended->report().branches[0].reason, FinishReason::kStop);
  EXPECT_EQ(ended->report().generated_tokens, ended->report().branches[0].tokens.size() + 1);
  request.sampling.ignore_eos = true;
  const auto ignored = harness.Run(request);
  harness.ExpectReference(request, *ignored);
  EXPECT_EQ(ignored->report().branches[0].tokens.size(), 50u);
}

TEST(Engine, PenaltiesSeeThePrompt) {
  Harness harness(NoEos());
  GenerationRequest request = Greedy(Prompt(30, 5), 20);
  request.sampling.repetition_penalty = 5;
  harness.ExpectReference(request, *harness.Run(request));
}

TEST(Engine, MaxTokensIsClippedByTheContext) {
  HarnessOptions options = NoEos();
  options.engine.context = 64;
  Harness harness(options);
  for (const uint32_t wanted : {0u, 1000u}) {
    const GenerationRequest request = Greedy(Prompt(60, 1), wanted);
    const auto outcome = harness.Run(request);
    harness.ExpectReference(request, *outcome);
    EXPECT_EQ(outcome->report().branches[0].tokens.size(), 4u);
    EXPECT_EQ(outcome->report().branches[0].reason, FinishReason::kLength);
  }
}

TEST(Engine, LogprobsAreThoseOfTheModel) {
  Harness harness(NoEos());
  GenerationRequest request = Greedy(Prompt(10, 6), 5);
  request.logprobs = 3;
  const auto outcome = harness.Run(request);
  std::vector<TokenId> context = request.prompt;
  ASSERT_EQ(outcome->events().size(), 5u);
  for (const TokenEvent& event : outcome->events()) {
    const std::vector<float> logits = harness.model().Logits(context);
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x});
    EXPECT_NEAR(event.logprob, logits[static_cast<size_t>(event.token)] - std::log(sum), 1e-5);
    ASSERT_EQ(event.top.size(), 3u);
    EXPECT_EQ(event.top[0].token, event.token);  // greedy
    EXPECT_GE(event.top[0].logprob, event.top[1].logprob);
    EXPECT_GE(event.top[1].logprob, event.top[2].logprob);
    context.push_back(event.token);
  }
}

TEST(Engine, PromptLogprobsAreFreshAlsoWhenThePromptIsCached) {
  Harness harness(NoEos());
  GenerationRequest request = Greedy(Prompt(90, 6), 5);
  harness.Run(request);
  request.prompt_logprobs = 2;
  const auto outcome = harness.Run(request);
  harness.ExpectReference(request, *outcome);
  const RequestReport& report = outcome->report();
  EXPECT_EQ(report.cached_tokens, 0u);
  EXPECT_EQ(report.computed_tokens, 90u);
  ASSERT_EQ(report.prompt_logprobs.size(), 90u);
  EXPECT_TRUE(report.prompt_logprobs[0].empty());
  for (size_t i = 1; i < 90; ++i) {
    const std::vector<float> logits = harness.model().Logits({request.prompt.data(), i});
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x});
    ASSERT_EQ(report.prompt_logprobs[i].size(), 3u);
    EXPECT_EQ(report.prompt_logprobs[i][0].token, request.prompt[i]);
    EXPECT_NEAR(report.prompt_logprobs[i][0].logprob,
                logits[static_cast<size_t>(request.prompt[i])] - std::log(sum), 1e-5);
  }
}

TEST(Engine, PromptLogprobsLeaveAPartlyCachedPromptRight) {
  Harness harness(NoEos());
  const std::vector<TokenId> prompt = Prompt(90, 6);
  harness.Run(Greedy({prompt.begin(), prompt.begin() + 43}, 1));
  GenerationRequest request = Greedy(prompt, 5);
  request.prompt_logprobs = 0;
  harness.ExpectReference(request, *harness.Run(request));
  EXPECT_EQ(harness.model().counters().rewrites, 0u) << "ready rows are shared";
  request.prompt_logprobs = -1;
  const auto again = harness.Run(request);
  harness.ExpectReference(request, *again);
  EXPECT_EQ(again->report().cached_tokens, 89u);
}

TEST(Engine, ItsOwnAnswerIsRememberedByTheTextThatWasShown) {
  Harness harness(NoEos());
  GenerationRequest request;
  std::shared_ptr<Outcome> outcome;
  for (uint64_t seed = 0; !outcome || outcome->report().branches[0].text_bytes < 16; ++seed) {
    request = Greedy(Prompt(10, seed), 40);
    request.ns.tenant = "one";
    outcome = harness.Run(request);
  }
  const BranchResult& branch = outcome->report().branches[0];
  const std::string text = branch.text.substr(0, branch.text_bytes);
  const auto recalled = harness.cache().Recall(request.ns, text);
  ASSERT_TRUE(recalled.has_value());
  EXPECT_EQ(*recalled, std::vector<TokenId>(branch.tokens.begin(),
                                            branch.tokens.begin() + branch.text_tokens));
  EXPECT_FALSE(harness.cache().Recall({.tenant = "two", .salt = ""}, text).has_value());

  request = Greedy(Prompt(10, 9), 12);
  request.store = false;
  const auto secret = harness.Run(request);
  EXPECT_FALSE(harness.cache().Recall({}, secret->report().branches[0].text).has_value());
}

TEST(Engine, ARequestThatIsNotToBeStoredIsNotFound) {
  Harness harness(NoEos());
  GenerationRequest request = Greedy(Prompt(40, 8), 12);
  request.store = false;
  harness.Run(request);
  EXPECT_EQ(harness.Run(request)->report().cached_tokens, 0u);
  request.store = true;
  harness.Run(request);
  EXPECT_GT(harness.Run(request)->report().cached_tokens, 30u);
  request.reuse = false;
  EXPECT_EQ(harness.Run(request)->report().cached_tokens, 0u);
}

void ExpectRefused(Harness& harness, const GenerationRequest& request, const char* figure) {
  const auto refused =
      harness.engine().Submit(request, [](const Event&) { FAIL() << "called after a refusal"; });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr(figure));
}

TEST(Engine, RefusesWhatCannotRunAndSaysTheFigures) {
  HarnessOptions options = NoEos();
  options.engine.context = 512;
  options.engine.max_sequences = 4;
  options.pages = 32;  // 256 tokens
  Harness harness(options);
  ExpectRefused(harness, Greedy({}, 1), "empty");
  ExpectRefused(harness, Greedy({3, 48}, 1), "prompt[1] is token 48");
  ExpectRefused(harness, Greedy({-1}, 1), "token -1");
  ExpectRefused(harness, Greedy(Prompt(512, 1), 1), "512");
  ExpectRefused(harness, Greedy(Prompt(256, 1), 1), "256 tokens");
  GenerationRequest request = Greedy(Prompt(5, 1), 1);
  request.n = 0;
  ExpectRefused(harness, request, "n is 0");
  request.n = 3;
  request.best_of = 2;
  ExpectRefused(harness, request, "best_of is 2");
  request.best_of = 129;
  ExpectRefused(harness, request, "at most 128 branches");
  request.best_of = 5;
  request.beam_search = true;
  ExpectRefused(harness, request, "at most 4 sequences");
  request.beam_search = false;
  request.best_of = 0;
  request.branch_seeds = {1, 2};
  ExpectRefused(harness, request, "branch_seeds has 2");
  request.branch_seeds.clear();
  request.logprobs = 49;
  ExpectRefused(harness, request, "logprobs is 49");
  request.logprobs = -1;
  request.stop = {"\xFF"};
  ExpectRefused(harness, request, "stop[0]");
  EXPECT_EQ(harness.engine().Stats().refused, 12u);
  EXPECT_EQ(harness.engine().Stats().requests, 0u);
  harness.ExpectReference(Greedy(Prompt(255, 1), 1), *harness.Run(Greedy(Prompt(255, 1), 1)));
}

TEST(Engine, BadOptionsAreNamed) {
  const FakeModel model;
  CacheOptions cache_options;
  cache_options.shape = model.kv_shape();
  const auto cache = CreateCache(cache_options);
  ASSERT_TRUE(cache.ok());
  EngineOptions options;
  options.new_sampler = NewFakeSampler;
  options.chunk_tokens = 0;
  const auto engine = Engine::Create(model, **cache, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), HasSubstr("chunk_tokens is 0"));
}

TEST(Engine, AFullQueueRefusesAndRecovers) {
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 1;
  options.engine.max_queue = 2;
  Harness harness(options);
  harness.Hold();
  std::vector<std::shared_ptr<Outcome>> outcomes = {harness.Submit(Greedy(Prompt(5, 1), 3))};
  harness.WaitUntilHeld();
  outcomes.push_back(harness.Submit(Greedy(Prompt(5, 2), 3)));
  outcomes.push_back(harness.Submit(Greedy(Prompt(5, 3), 3)));
  const auto refused = harness.engine().Submit(Greedy(Prompt(5, 4), 3), nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(harness.engine().Stats().waiting, 2u);
  harness.Release();
  for (const auto& outcome : outcomes) outcome->WaitUntilFinished();
  harness.Run(Greedy(Prompt(5, 4), 3));
  harness.ExpectIdle();
}

TEST(Engine, WhatACallbackThrowsIsSwallowedAndCounted) {
  Harness harness(NoEos());
  std::atomic<bool> finished{false};
  const auto id = harness.engine().Submit(Greedy(Prompt(5, 1), 3), [&](const Event& event) {
    if (event.kind == Event::Kind::kFinished) finished = true;
    throw std::runtime_error("a client went away");
  });
  ASSERT_TRUE(id.ok());
  while (!finished) std::this_thread::yield();
  const GenerationRequest next = Greedy(Prompt(5, 2), 3);
  harness.ExpectReference(next, *harness.Run(next));
  EXPECT_EQ(harness.engine().Stats().callback_errors, 1u + 3 + 1);
}

TEST(Engine, AFailedRunEndsItsRequestsWithTheErrorAndTheEngineGoesOn) {
  Harness harness(NoEos());
  harness.model().counters().fail = true;
  const auto failed = harness.Run(Greedy(Prompt(5, 1), 3));
  EXPECT_EQ(failed->report().status.code(), StatusCode::kInternal);
  EXPECT_EQ(failed->report().branches[0].reason, FinishReason::kError);
  EXPECT_EQ(harness.engine().Stats().errors, 1u);
  const GenerationRequest next = Greedy(Prompt(5, 1), 3);
  harness.ExpectReference(next, *harness.Run(next));
  harness.ExpectIdle();
}

TEST(Engine, ItsEndCancelsWhatRunsAndWhatWaits) {
  HarnessOptions options = NoEos();
  options.engine.max_sequences = 1;
  Harness harness(options);
  harness.Hold();
  const auto running = harness.Submit(Greedy(Prompt(50, 1), 1000));
  harness.WaitUntilHeld();
  const auto waiting = harness.Submit(Greedy(Prompt(50, 2), 10));
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    harness.Release();
  });
  harness.Destroy();
  release.join();
  for (const auto& outcome : {running, waiting}) {
    ASSERT_EQ(outcome->times_finished(), 1);
    EXPECT_EQ(outcome->report().branches[0].reason, FinishReason::kCancelled);
  }
  EXPECT_EQ(harness.cache().Stats().in_use_pages, 0u);
}

TEST(Engine, ReportsTimesThatAddUp) {
  Harness harness(NoEos());
  const auto outcome = harness.Run(Greedy(Prompt(50, 1), 20));
  const RequestReport& report = outcome->report();
  EXPECT_GT(report.prompt_ms, 0);
  EXPECT_GT(report.predicted_ms, 0);
  EXPECT_NEAR(report.first_token_ms, report.queue_ms + report.prompt_ms, 1e-6);
  EXPECT_NEAR(report.total_ms, report.first_token_ms + report.predicted_ms, 1e-6);
}

}  // namespace
}  // namespace kvlink::engine
