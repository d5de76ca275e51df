// Tenants with a quota of KV: who waits, who gives way, and who is not concerned.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

GenerationRequest Of(const std::string& tenant, uint32_t prompt, uint64_t seed, uint32_t answer) {
  GenerationRequest request = Greedy(Prompt(prompt, seed), answer);
  request.ns.tenant = tenant;
  return request;
}

void SetQuota(Harness& harness, const std::string& tenant, uint64_t pages) {
  harness.cache().SetQuota(tenant, pages * harness.cache().shape().page_bytes());
}

// "+a1" when it starts, "-a1" when it has ended; in the order in which the engine told.
class Diary {
 public:
  void Submit(Harness& harness, const std::string& name, GenerationRequest request) {
    const auto id = harness.engine().Submit(std::move(request), [this, name](const Event& event) {
      if (event.kind == Event::Kind::kToken) return;
      const std::lock_guard lock(mutex_);
      lines_.push_back((event.kind == Event::Kind::kStarted ? "+" : "-") + name);
      ended_ += event.kind == Event::Kind::kFinished;
      changed_.notify_all();
    });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
  }
  void WaitForEndings(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= count; });
  }
  // Which line it is; the number of lines if there is none.
  ptrdiff_t At(const std::string& line) {
    const std::lock_guard lock(mutex_);
    return std::find(lines_.begin(), lines_.end(), line) - lines_.begin();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  int ended_ = 0;
};

TEST(Quota, ATenantThatIsFullWaitsForItsOwnRequestsAndHoldsUpNobody) {
  Harness harness(NoEos());
  SetQuota(harness, "a", 9);  // 72 tokens
  harness.Hold();
  Diary diary;
  diary.Submit(harness, "a1", Of("a", 40, 1, 30));
  harness.WaitUntilHeld();
  diary.Submit(harness, "a2", Of("a", 40, 2, 4));
  diary.Submit(harness, "b1", Of("b", 40, 3, 4));
  harness.Release();
  diary.WaitForEndings(3);
  EXPECT_LT(diary.At("+b1"), diary.At("-a1"));
  EXPECT_GT(diary.At("+a2"), diary.At("-a1"));
  EXPECT_EQ(harness.engine().Stats().preemptions, 0u);
  EXPECT_EQ(harness.engine().Stats().errors, 0u);
  harness.ExpectIdle();
}

TEST(Quota, GrowthBeyondItPreemptsTheTenantsOwnYoungestAndNobodyElse) {
  Harness harness(NoEos());
  SetQuota(harness, "a", 12);  // 96 tokens: both begin, but only one can end
  const GenerationRequest requests[] = {Of("a", 20, 1, 60), Of("a", 20, 2, 60), Of("b", 20, 3, 70)};
  harness.Hold();
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (const GenerationRequest& request : requests) outcomes.push_back(harness.Submit(request));
  harness.Release();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    outcomes[i]->WaitUntilFinished();
    harness.ExpectReference(requests[i], *outcomes[i]);
  }
  EXPECT_EQ(outcomes[0]->report().preemptions, 0u);
  EXPECT_GE(outcomes[1]->report().preemptions, 1u);
  EXPECT_EQ(outcomes[2]->report().preemptions, 0u);  // although it is the youngest
  harness.ExpectIdle();
}

// What is preempted may lie in the middle of what runs; those behind it still get their room.
TEST(Quota, ManyRequestsOfTwoTenantsWithQuotasAllEndAsIfTheyWereAlone) {
  HarnessOptions options = NoEos();
  options.pages = 60;
  Harness harness(options);
  SetQuota(harness, "a", 20);
  SetQuota(harness, "b", 13);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  uint64_t preempted = 0;
  harness.Hold();
  for (uint64_t i = 0; i < 24; ++i) {
    const char* const tenant = i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "c";
    requests.push_back(Of(tenant, 10 + static_cast<uint32_t>(i), i / 2, 50));
    outcomes.push_back(harness.Submit(requests.back()));
  }
  harness.Release();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    outcomes[i]->WaitUntilFinished();
    harness.ExpectReference(requests[i], *outcomes[i]);
    preempted += outcomes[i]->report().preemptions;
  }
  EXPECT_GT(preempted, 0u);
  for (const TenantUse& use : harness.cache().Tenants()) {
    EXPECT_TRUE(use.quota_bytes == 0 || use.bytes <= use.quota_bytes) << use.tenant;
  }
  harness.ExpectIdle();
}

TEST(Quota, WhatCanNeverFitIsRefusedWithTheFigures) {
  Harness harness(NoEos());
  GenerationRequest request = Of("a", 40, 1, 4);
  request.max_kv_tokens = 40;
  const auto refused = harness.engine().Submit(request, [](const Event&) {});
  ASSERT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("holds 40 tokens"), std::string::npos);
  request.max_kv_tokens = 48;
  request.max_tokens = 100;
  const auto outcome = harness.Run(request);
  EXPECT_EQ(outcome->report().branches[0].reason, FinishReason::kLength);
  EXPECT_EQ(outcome->report().generated_tokens, 8u);
}

TEST(Quota, BranchesThatDoNotFitAloneEndWithAnErrorThatNamesTheTenant) {
  Harness harness(NoEos());
  SetQuota(harness, "a", 6);
  GenerationRequest request = Of("a", 40, 1, 100);
  request.n = 4;
  const auto outcome = harness.Run(request);
  EXPECT_EQ(outcome->report().status.code(), StatusCode::kQuotaExhausted);
  EXPECT_NE(outcome->report().status.message().find("\"a\""), std::string::npos);
  harness.ExpectIdle();
}

TEST(Withhold, TheEngineGivesCachedPagesBackAlsoWhileItHasNothingToDo) {
  Harness harness(NoEos());
  for (uint64_t i = 0; i < 8; ++i) harness.Run(Of("a", 64, i, 2));
  const CacheStats before = harness.cache().Stats();
  ASSERT_GT(before.cached_pages, 60u);
  harness.engine().Withhold((before.total_pages - 20) * before.page_bytes);
  while (harness.engine().Stats().cache.cached_pages > 20) std::this_thread::yield();
  harness.Run(Of("a", 64, 99, 2));
  EXPECT_EQ(harness.engine().Stats().withheld_bytes, (before.total_pages - 20) * before.page_bytes);
  EXPECT_LE(harness.cache().Stats().cached_pages, 20u);
  harness.ExpectIdle();
}

}  // namespace
}  // namespace kvlink::engine
