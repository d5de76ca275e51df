// Requests whose blocks left RAM: they wait for a load instead of computing, and answer the same.
// The tier is a real folder on disk.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

class TieredEngineTest : public ::testing::Test {
 protected:
  TieredEngineTest() {
    std::string folder = std::filesystem::temp_directory_path() / "kvlink-engine-tiers-XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~TieredEngineTest() override {
    harness_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // The fake model takes no time; the clock pretends that each run takes two seconds, so that
  // loading pays.
  void Start(uint32_t pages, uint32_t max_sequences = 16) {
    harness_.reset();
    HarnessOptions options;
    options.model.eos_bias = -100;
    options.pages = pages;
    options.engine.chunk_tokens = 32;
    options.engine.max_sequences = max_sequences;
    options.engine.clock = [this] {
      return std::chrono::steady_clock::now() + std::chrono::seconds(2 * runs_.load());
    };
    options.tiers.cold_dir = folder_;
    options.tiers.cold_bytes = uint64_t{64} << 20;
    harness_ = std::make_unique<Harness>(options);
    harness_->OnRun([this] { ++runs_; });
  }
  Harness& harness() { return *harness_; }
  // Everything is written, and RAM holds other things.
  void PushOut() {
    ASSERT_TRUE(harness().cache().Drain(std::chrono::seconds(20)));
    harness().cache().Clear();
  }

  std::string folder_;
  std::atomic<int> runs_{0};
  std::unique_ptr<Harness> harness_;
};

TEST_F(TieredEngineTest, ARequestLoadsWhatLeftRamAndAnswersTheSame) {
  Start(64);
  const GenerationRequest request = Greedy(Prompt(100, 1), 20);
  harness().Run(request);
  PushOut();
  const auto outcome = harness().Run(request);
  harness().ExpectReference(request, *outcome);
  const RequestReport& report = outcome->report();
  EXPECT_EQ(report.cached_tokens, 96u);
  EXPECT_EQ(report.computed_tokens, 4u);
  ASSERT_EQ(report.loaded.size(), 1u);
  EXPECT_EQ(report.loaded[0].tier, "cold");
  EXPECT_EQ(report.loaded[0].tokens, 96u);
  EXPECT_TRUE(report.tiers_asked);
  EXPECT_EQ(report.miss_reason, MissReason::kNone);
  EXPECT_EQ(harness().engine().Stats().tiers.at(0).hits, 12u);
  harness().ExpectIdle();
}

TEST_F(TieredEngineTest, WhatIsInRamIsNotCountedAsLoaded) {
  Start(64);
  const GenerationRequest request = Greedy(Prompt(100, 1), 4);
  harness().Run(request);
  const auto again = harness().Run(request);
  EXPECT_EQ(again->report().cached_tokens, 99u);
  EXPECT_EQ(again->report().loaded_tokens(), 0u);
}

TEST_F(TieredEngineTest, EqualRequestsAtOnceLoadOnce) {
  Start(64);
  const GenerationRequest request = Greedy(Prompt(120, 1), 8);
  harness().Run(request);
  PushOut();
  const auto other = harness().Submit(Greedy(Prompt(10, 9), 4));
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (int i = 0; i < 6; ++i) outcomes.push_back(harness().Submit(request));
  uint32_t loaded = 0;
  for (const auto& outcome : outcomes) {
    outcome->WaitUntilFinished();
    harness().ExpectReference(request, *outcome);
    loaded += outcome->report().loaded_tokens();
  }
  other->WaitUntilFinished();
  EXPECT_EQ(loaded, 119u);  // all but the row that always runs
  EXPECT_EQ(harness().engine().Stats().tiers.at(0).hits, 15u);
  harness().ExpectIdle();
}

TEST_F(TieredEngineTest, AfterARestartTheSameBlocksAreFound) {
  Start(64);
  const GenerationRequest request = Greedy(Prompt(100, 1), 20);
  harness().Run(request);
  ASSERT_TRUE(harness().cache().Drain(std::chrono::seconds(20)));
  Start(64);
  const auto outcome = harness().Run(request);
  harness().ExpectReference(request, *outcome);
  EXPECT_EQ(outcome->report().loaded_tokens(), 96u);
}

TEST_F(TieredEngineTest, ARequestThatMayNotReuseOrStoreLoadsAndWritesNothing) {
  Start(64);
  GenerationRequest request = Greedy(Prompt(100, 1), 4);
  request.store = false;
  harness().Run(request);
  ASSERT_TRUE(harness().cache().Drain(std::chrono::seconds(20)));
  EXPECT_EQ(harness().engine().Stats().tiers.at(0).blocks, 0u);
  request.store = true;
  harness().Run(request);
  PushOut();
  request.reuse = false;
  const auto outcome = harness().Run(request);
  EXPECT_EQ(outcome->report().cached_tokens, 0u);
  EXPECT_FALSE(outcome->report().tiers_asked);
}

TEST_F(TieredEngineTest, WaitingRequestsLoadWhileAllSequencesAreTaken) {
  Start(200, /*max_sequences=*/1);
  const GenerationRequest request = Greedy(Prompt(100, 1), 4);
  harness().Run(request);
  PushOut();
  harness().OnRun([this] {
    ++runs_;
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  });
  const auto longer = harness().Submit(Greedy(Prompt(60, 2), 1000));
  longer->WaitUntilStarted();
  const auto outcome = harness().Submit(request);
  while (harness().engine().Stats().cache.loaded_tokens == 0 && !longer->finished()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(longer->finished()) << "the load waited for the sequence";
  outcome->WaitUntilFinished();
  harness().ExpectReference(request, *outcome);
  EXPECT_EQ(outcome->report().loaded_tokens(), 96u);
  harness().ExpectIdle();
}

// Prompts that share prefixes, in RAM for a few of them: evicted, loaded, cancelled and preempted.
TEST_F(TieredEngineTest, RandomRequestsOnLittleRamAnswerAsTheModelAloneDoes) {
  Start(40, 6);
  base::Random random(5);
  std::vector<std::pair<GenerationRequest, std::shared_ptr<Outcome>>> all;
  for (int i = 0; i < 400; ++i) {
    std::vector<TokenId> prompt =
        Prompt(20 + static_cast<uint32_t>(random.Below(120)), random.Below(12));
    const auto tail = Prompt(1 + static_cast<uint32_t>(random.Below(20)), random.Below(4) + 100);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    GenerationRequest request = Greedy(prompt, 1 + static_cast<uint32_t>(random.Below(20)));
    if (random.OneIn(4)) request.n = 2;
    if (random.OneIn(8)) request.store = false;
    RequestId id = 0;
    all.emplace_back(request, harness().Submit(request, &id));
    if (random.OneIn(10)) harness().engine().Cancel(id);
    if (random.OneIn(3)) all.back().second->WaitUntilFinished();
  }
  uint64_t cached = 0, loaded = 0;
  for (const auto& [request, outcome] : all) {
    outcome->WaitUntilFinished();
    const RequestReport& report = outcome->report();
    EXPECT_LE(report.loaded_tokens(), report.cached_tokens);
    cached += report.cached_tokens;
    loaded += report.loaded_tokens();
    if (report.branches.empty() || report.branches[0].reason != FinishReason::kLength) continue;
    ASSERT_NO_FATAL_FAILURE(harness().ExpectReference(request, *outcome));
    EXPECT_EQ(report.cached_tokens + report.computed_tokens, report.prompt_tokens);
  }
  EXPECT_EQ(harness().engine().Stats().cached_prompt_tokens, cached);
  EXPECT_GT(loaded, 0u);
  harness().ExpectIdle();
}

}  // namespace
}  // namespace kvlink::engine
