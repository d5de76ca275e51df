// Operations on a cache against a naive reference, which remembers every prefix that was ever
// committed and finds the longest common one by comparing with all of them.
//
// Who asks for an operation chooses: a random generator, or the bytes of a fuzzer. A broken law is
// a fatal failure of gtest's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "link/cache_harness.h"
#include "link/committed_prompts.h"
#include "link/pinned_prompts.h"
#include "link/random_harness.h"

namespace kvlink::link {

struct OperationsSetting {
  const char* name;
  uint32_t tokens_per_block = 8;
  uint64_t pages = 24;  // few: constant eviction; many: nothing is ever evicted
  int hash_bits = 128;
  double cow_copy_threshold = 0.15;
  Sharing sharing = Sharing::kExact;
  int steps = 3000;          // of a test
  uint64_t quota_pages = 0;  // that tenant "b" may hold; 0: as many as there are
};

class OperationsHarness {
 public:
  using Choose = std::function<uint64_t(uint64_t bound)>;  // in [0, bound)

  OperationsHarness(const OperationsSetting& setting, KvType kv_type, Choose choose)
      : setting_(setting),
        harness_(setting.tokens_per_block, setting.pages, kv_type),
        random_{std::move(choose)} {
    harness_.options.hash_bits = setting_.hash_bits;
    harness_.options.cow_copy_threshold = setting_.cow_copy_threshold;
    harness_.options.sharing = setting_.sharing;
    harness_.Create();
    harness_.cache->SetQuota("b", setting_.quota_pages * harness_.options.shape.page_bytes());
  }

  uint64_t quota_evictions() const { return quota_evictions_; }
  CacheHarness& harness() { return harness_; }
  std::vector<LiveBranch>& live() { return live_; }

  // One operation, whichever is chosen.
  void Step() {
    const uint64_t dice = random_.Below(100);
    const size_t index = live_.empty() ? 0 : random_.Below(live_.size());
    if (live_.empty() || (dice < 16 && live_.size() < 10)) {
      Begin();
    } else if (dice < 70) {
      Compute(live_[index]);
    } else if (dice < 80 && live_.size() < 10) {
      Fork(index);
    } else if (dice < 93) {
      Release(index);
    } else if (dice < 95) {
      Pin();
    } else if (dice < 96) {
      Unpin();
    } else if (dice < 99) {
      harness_.clock.Advance(std::chrono::seconds(3));
    } else if (setting_.pages < 1000 && random_.OneIn(5)) {
      harness_.cache->Clear();
      pins_.Clear();
    }
  }
  void Begin() {
    const Namespace ns = RandomNamespace();
    const Tokens prompt = RandomPrompt(ns);
    LookupRequest request =
        harness_.RequestOf(prompt, ns, static_cast<uint32_t>(random_.Below(12)));
    request.store = !random_.OneIn(6);
    request.reuse = !random_.OneIn(10);
    request.min_compute = random_.OneIn(8) ? static_cast<uint32_t>(prompt.size()) : 1;
    const CacheStats before = harness_.cache->Stats();
    const Plan plan = harness_.cache->Lookup(request);
    const uint32_t found = plan.exact_tokens + plan.partial_tokens;
    const bool may_find = request.reuse && setting_.sharing == Sharing::kExact;
    const uint32_t longest = may_find ? committed_.LongestCommon(prompt, ns) : 0;
    ASSERT_LE(found, longest) << "rows that nobody committed";
    if (before.evicted_blocks == 0) {
      ASSERT_EQ(found, longest) << "resident rows were missed";
    }
    ASSERT_EQ(plan.compute_from, std::min<size_t>(found, prompt.size() - request.min_compute));
    ASSERT_EQ(plan.diverged_at, found);
    ASSERT_EQ(harness_.cache->Stats().in_use_bytes, before.in_use_bytes);

    auto sequence = harness_.cache->Begin(request, plan);
    if (!sequence.ok()) {
      ASSERT_TRUE(IsFull(sequence.status(), ns)) << sequence.status().ToString();
      ASSERT_EQ(harness_.cache->Stats().in_use_bytes, before.in_use_bytes);
      if (live_.empty()) {
        ASSERT_GT(before.pinned_bytes, 0u) << "a prompt alone must fit";
      }
      return;
    }
    ASSERT_EQ((*sequence)->num_ready(), found);
    ASSERT_GE((*sequence)->capacity(), prompt.size() + 1);
    const auto size = static_cast<uint32_t>(prompt.size());
    // One in four breaks its word and generates more than it announced.
    const uint32_t more = random_.OneIn(4) ? 20 : request.max_new_tokens;
    live_.push_back({Branch(std::move(sequence).value(), ns, prompt, harness_.options.shape),
                     request.store, size + more});
    Check(live_.back());
  }
  void Compute(LiveBranch& live) {
    const Branch& branch = live.branch;
    const Status advanced = live.Advance(random_);
    if (!advanced.ok()) {
      ASSERT_TRUE(IsFull(advanced, branch.ns())) << advanced.ToString();
    }
    if (live.store && setting_.sharing == Sharing::kExact && branch.ready() > 0) {
      committed_.Add(FirstOf(branch.tokens(), branch.ready()), branch.ns());
    }
    Check(live);
  }
  void Fork(size_t index) {
    const uint64_t in_use = harness_.cache->Stats().in_use_bytes;
    auto forked = live_[index].Fork(random_);
    if (!forked.ok()) {
      ASSERT_TRUE(IsFull(forked.status(), live_[index].branch.ns())) << forked.status().ToString();
      ASSERT_EQ(harness_.cache->Stats().in_use_bytes, in_use);
      return;
    }
    live_.push_back(std::move(forked).value());
    Check(live_.back());
  }
  void Release(size_t index) { live_.erase(live_.begin() + static_cast<ptrdiff_t>(index)); }

  void CheckAccounts() {
    Referenced referenced;
    for (LiveBranch& live : live_) referenced.Add(*live.branch);
    const uint64_t in_use = referenced.BytesBy(harness_.options);
    peak_ = std::max(peak_, in_use);
    const CacheStats stats = harness_.cache->Stats();
    ASSERT_EQ(stats.in_use_bytes, in_use);
    ASSERT_GE(stats.peak_in_use_bytes, peak_);
    harness_.ExpectConserved();
    CheckTenants(stats);
  }
  void CheckAll() {
    for (const LiveBranch& live : live_) ASSERT_NO_FATAL_FAILURE(Check(live));
    pins_.Expire(harness_.clock.now());
    for (const PinnedPrompts::Pin& pin : pins_.all()) {
      // A tail whose rows were found under another number since is not held any more.
      ASSERT_GE(harness_.Lookup(pin.prompt, pin.ns).diverged_at, WholeBlocks(pin.tokens));
    }
  }
  // One prompt after the other: in the end nothing is pinned.
  void UnpinAll() {
    ASSERT_NO_FATAL_FAILURE(UnpinPrompt(RandomTokens(1, 8), {}));  // ends those that are over
    while (!pins_.all().empty()) {
      const PinnedPrompts::Pin pin = pins_.all().front();
      ASSERT_NO_FATAL_FAILURE(UnpinPrompt(pin.prompt, pin.ns));
    }
    ASSERT_EQ(harness_.cache->Stats().pinned_bytes, 0u);
  }

 private:
  // Choices, in the words of base::Random.
  struct Choices {
    Choose choose;
    uint64_t Below(uint64_t bound) const { return choose(bound); }
    bool OneIn(uint64_t n) const { return choose(n) == 0; }
  };

  Namespace RandomNamespace() {
    return {.tenant = random_.OneIn(4) ? "b" : "a", .salt = random_.OneIn(6) ? "s" : ""};
  }
  Tokens RandomPrompt(const Namespace& ns) {
    return committed_.RandomPrompt(ns, setting_.tokens_per_block, setting_.pages, random_);
  }

  void Pin() {
    const Namespace ns = RandomNamespace();
    const Tokens prompt = RandomPrompt(ns);
    const auto ttl = std::chrono::seconds(1 + random_.Below(20));
    const auto pinned = harness_.cache->Pin(harness_.RequestOf(prompt, ns), ttl);
    pins_.Expire(harness_.clock.now());
    if (!pinned.ok()) {
      ASSERT_EQ(pinned.status().code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(pins_.Take(ns, prompt), 0u) << "it had a pin, and could have that again";
    } else if (*pinned > 0) {
      pins_.Set({ns, prompt, *pinned, harness_.clock.now() + ttl});
    }
    const CacheStats stats = harness_.cache->Stats();
    ASSERT_LE(stats.pinned_bytes, stats.budget_bytes / 2);
    if (pinned.ok()) {
      ASSERT_LE(*pinned, harness_.Lookup(prompt, ns).diverged_at);
    }
  }

  // Of a prompt that is pinned, mostly.
  void Unpin() {
    const std::vector<PinnedPrompts::Pin>& pins = pins_.all();
    if (pins.empty() || random_.OneIn(4)) {
      const Namespace ns = RandomNamespace();
      return UnpinPrompt(RandomPrompt(ns), ns);
    }
    const PinnedPrompts::Pin pin = pins[random_.Below(pins.size())];
    UnpinPrompt(pin.prompt, pin.ns);
  }
  void UnpinPrompt(const Tokens& prompt, const Namespace& ns) {
    pins_.Expire(harness_.clock.now());
    const uint32_t held = pins_.Take(ns, prompt);
    const uint32_t others = pins_.HeldByOthers(ns, prompt, setting_.tokens_per_block);
    const auto unpinned = harness_.cache->Unpin(harness_.RequestOf(prompt, ns));
    if (held == 0) {
      ASSERT_EQ(unpinned.ok(), harness_.Lookup(prompt, ns).diverged_at > 0);
      if (unpinned.ok()) {
        ASSERT_EQ(*unpinned, 0u) << "another prompt's pin";
      }
      return;
    }
    ASSERT_TRUE(unpinned.ok()) << unpinned.status().ToString();
    ASSERT_LE(*unpinned, held - std::min(held, others));
    if (others == 0 && pins_.all().empty()) {
      ASSERT_GE(*unpinned, WholeBlocks(held));
      ASSERT_EQ(harness_.cache->Stats().pinned_bytes, 0u);
    }
  }
  uint32_t WholeBlocks(uint32_t tokens) const {
    return tokens / setting_.tokens_per_block * setting_.tokens_per_block;
  }

  // There is no room: in the budget, or in the quota of the tenant that has one.
  bool IsFull(const Status& status, const Namespace& ns) const {
    return status.code() == StatusCode::kResourceExhausted ||
           (status.code() == StatusCode::kQuotaExhausted && setting_.quota_pages > 0 &&
            ns.tenant == "b");
  }
  void CheckTenants(const CacheStats& stats) {
    uint64_t bytes = 0;
    for (const TenantUse& use : harness_.cache->Tenants()) {
      bytes += use.bytes;
      if (use.quota_bytes == 0) continue;
      ASSERT_EQ(use.tenant, "b");
      ASSERT_LE(use.bytes, use.quota_bytes);
      quota_evictions_ = use.evicted_blocks;
    }
    ASSERT_EQ(bytes, stats.in_use_bytes + stats.cached_bytes);
  }

  static void Check(const LiveBranch& live) { ASSERT_EQ(live.branch.WrongRows(), 0u); }

  const OperationsSetting setting_;
  CacheHarness harness_;
  const Choices random_;
  std::vector<LiveBranch> live_;
  CommittedPrompts committed_;
  PinnedPrompts pins_;
  uint64_t peak_ = 0, quota_evictions_ = 0;
};

}  // namespace kvlink::link
