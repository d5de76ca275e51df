// Thousands of random operations on a cache with tiers that fail, hang and lose blocks, against a
// naive reference: every row that is ready must hold what a cold run would write, whatever the
// tiers do; pages are conserved after every step, and all come back. Unowned pages are NaN.
#include <gtest/gtest.h>

#include <algorithm>

#include "link/committed_prompts.h"
#include "link/random_harness.h"
#include "link/tier_harness.h"

namespace kvlink::link {
namespace {

struct Setting {
  const char* name;
  uint32_t tokens_per_block = 8;
  uint64_t pages = 24;
  double cow_copy_threshold = 0.15;
  bool two_tiers = false;
  bool asks_peer = false;
  bool faults = true;
  int steps = 2000;
};

const Setting kSettings[] = {
    {.name = "Sound", .faults = false},
    {.name = "Faults"},
    {.name = "ManyDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0.5},
    {.name = "TwoTiers", .two_tiers = true},
    {.name = "PeerKnows", .pages = 40, .asks_peer = true, .steps = 1000},
};

// A request that waits for its load.
struct Waiting {
  Tokens prompt;
  Namespace ns;
  std::unique_ptr<Load> load;
};

class TiersRandomTest : public ::testing::TestWithParam<std::tuple<Setting, uint64_t>> {
 protected:
  TiersRandomTest()
      : setting_(std::get<0>(GetParam())),
        harness_(setting_.tokens_per_block, setting_.pages,
                 kKvTypes[std::get<1>(GetParam()) % std::size(kKvTypes)],
                 setting_.two_tiers ? std::vector<std::string>{"cold", "remote"}
                                    : std::vector<std::string>{"cold"}),
        random_(std::get<1>(GetParam())) {
    harness_.options.cow_copy_threshold = setting_.cow_copy_threshold;
    harness_.options.similar_model.prefill_us_per_row = 3000;  // late loads are over soon
    harness_.options.tiers.may_leave_ram = [](const Namespace& ns) { return ns.tenant != "c"; };
    harness_.faults.back()->asks_peer = setting_.asks_peer;
    harness_.Create();
  }
  ~TiersRandomTest() override {
    for (const auto& faults : harness_.faults) faults->hangs = false;
  }

  Namespace RandomNamespace() {
    const char* const tenants[] = {"a", "a", "b", "c"};
    return {.tenant = tenants[random_.Below(4)], .salt = random_.OneIn(6) ? "s" : ""};
  }
  Tokens RandomPrompt(const Namespace& ns) {
    return committed_.RandomPrompt(ns, setting_.tokens_per_block, setting_.pages, random_);
  }

  void StartWaiting() {
    const Namespace ns = RandomNamespace();
    const Tokens prompt = RandomPrompt(ns);
    const LookupRequest request = harness_.RequestOf(prompt, ns);
    const Plan plan = harness_.cache->Lookup(request);
    ASSERT_EQ(plan.loadable_tokens % setting_.tokens_per_block, 0u);
    if (ns.tenant == "c") {
      ASSERT_EQ(plan.loadable_tokens, 0u);
    }
    if (!setting_.asks_peer) {
      ASSERT_LE(plan.loadable_tokens, committed_.LongestCommon(prompt, ns))
          << "a block that nobody stored";
    }
    if (plan.loadable_tokens == 0 || plan.in_flight) return;
    auto load = harness_.cache->StartLoad(request, plan);
    if (load.ok()) waiting_.push_back({prompt, ns, std::move(load).value()});
  }
  void PollOne() {
    const size_t index = random_.Below(waiting_.size());
    Waiting& waiting = waiting_[index];
    if (random_.OneIn(2)) TierHarness::Finish(*waiting.load);
    const bool over = waiting.load->Poll();
    uint32_t end = 0;
    for (const LoadedRows& rows : waiting.load->loaded()) {
      ASSERT_EQ(end == 0 ? rows.position : end, rows.position);
      end = rows.position + rows.num_rows;
    }
    ASSERT_LE(end, committed_.LongestCommon(waiting.prompt, waiting.ns))
        << "rows that nobody committed";
    if (!over) return;
    if (end > 0) {
      ASSERT_GE(harness_.Lookup(waiting.prompt, waiting.ns).diverged_at,
                std::min<size_t>(end, waiting.prompt.size()))
          << "what was loaded went away";
    }
    Begin(waiting.prompt, waiting.ns);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
  }
  void Begin(const Tokens& prompt, const Namespace& ns) {
    LookupRequest request =
        harness_.RequestOf(prompt, ns, static_cast<uint32_t>(random_.Below(12)));
    request.store = !random_.OneIn(6);
    const Plan plan = harness_.cache->Lookup(request);
    const uint32_t found = plan.exact_tokens + plan.partial_tokens;
    ASSERT_LE(found, committed_.LongestCommon(prompt, ns)) << "rows that nobody committed";
    auto sequence = harness_.cache->Begin(request, plan);
    if (!sequence.ok()) {
      ASSERT_EQ(sequence.status().code(), StatusCode::kResourceExhausted);
      ASSERT_FALSE(live_.empty() && waiting_.empty()) << "a prompt alone must fit";
      return;
    }
    ASSERT_EQ((*sequence)->num_ready(), found);
    live_.push_back({Branch(std::move(sequence).value(), ns, prompt, harness_.options.shape),
                     request.store, static_cast<uint32_t>(prompt.size()) + request.max_new_tokens});
    ASSERT_EQ(live_.back().branch.WrongRows(), 0u);
  }
  void Compute(LiveBranch& live) {
    const Branch& branch = live.branch;
    const Status advanced = live.Advance(random_);
    if (!advanced.ok()) {
      ASSERT_EQ(advanced.code(), StatusCode::kResourceExhausted);
    }
    if (live.store && branch.ready() > 0) {
      committed_.Add(FirstOf(branch.tokens(), branch.ready()), branch.ns());
    }
    ASSERT_EQ(branch.WrongRows(), 0u);
  }
  void Fork(size_t index) {
    auto forked = live_[index].Fork(random_);
    if (!forked.ok()) {
      ASSERT_EQ(forked.status().code(), StatusCode::kResourceExhausted);
      return;
    }
    live_.push_back(std::move(forked).value());
    ASSERT_EQ(live_.back().branch.WrongRows(), 0u);
  }
  void Fault() {
    Faults& faults = *harness_.faults[random_.Below(harness_.faults.size())];
    switch (random_.Below(7)) {
      case 0:
        faults.bit_flips = 1 + static_cast<int>(random_.Below(3));
        break;
      case 1:
        faults.short_reads = 1;
        break;
      case 2:
        faults.get_errors = 1 + static_cast<int>(random_.Below(3));
        break;
      case 3:
        faults.losses = 1 + static_cast<int>(random_.Below(3));
        break;
      case 4:
        faults.put_errors = 1 + static_cast<int>(random_.Below(4));
        break;
      default:
        faults.hangs = random_.OneIn(3);
        break;
    }
  }
  void Restart() {
    live_.clear();
    waiting_.clear();
    for (const auto& faults : harness_.faults) faults->hangs = false;
    if (random_.OneIn(2)) harness_.cache->Drain(std::chrono::seconds(1));
    harness_.Create();
    harness_.clock.Advance(LowerTiers::kRetryAfter);
  }

  void Step() {
    const uint64_t dice = random_.Below(1000);
    const size_t index = live_.empty() ? 0 : random_.Below(live_.size());
    if (dice < 150 && waiting_.size() < 4) {
      StartWaiting();
    } else if (dice < 400 && !waiting_.empty()) {
      PollOne();
    } else if (dice < 420 && !waiting_.empty()) {
      waiting_.pop_back();  // cancelled
    } else if (live_.empty() || (dice < 500 && live_.size() < 8)) {
      const Namespace ns = RandomNamespace();
      Begin(RandomPrompt(ns), ns);
    } else if (dice < 800) {
      Compute(live_[index]);
    } else if (dice < 840 && live_.size() < 8) {
      Fork(index);
    } else if (dice < 930) {
      live_.erase(live_.begin() + static_cast<ptrdiff_t>(index));
    } else if (dice < 945 && setting_.faults) {
      Fault();
    } else if (dice < 960) {
      harness_.clock.Advance(std::chrono::seconds(3));
    } else if (dice < 975) {
      if (random_.OneIn(2)) harness_.cache->Drain(std::chrono::milliseconds(200));
      harness_.cache->Clear();
    } else if (dice < 985) {
      harness_.cache->RunIdle();
    } else if (dice < 988) {
      Restart();
    }
  }
  // Whatever happened, sound tiers serve after a restart. How much the random steps loaded depends
  // on the threads' timing, this does not.
  void ExpectTiersServe() {
    for (const auto& faults : harness_.faults) {
      faults->get_errors = faults->bit_flips = faults->short_reads = faults->losses = 0;
      faults->put_errors = 0;
    }
    Restart();
    const Namespace ns{.tenant = "last", .salt = ""};
    const Tokens prompt = RandomTokens(7, 3 * setting_.tokens_per_block + 1);
    harness_.Serve(prompt, {}, ns);
    uint32_t ready = 0;
    for (int tries = 0; tries < 100 && ready == 0; ++tries) {  // a slow probe is not waited for
      harness_.MoveAllDown();
      ready = harness_.ServeLoaded(prompt, ns);
    }
    EXPECT_EQ(ready, 3 * setting_.tokens_per_block);
    EXPECT_GT(harness_.cache->Stats().loaded_tokens, 0u);
    for (int tries = 0; tries < 100 && harness_.cache->Stats().failed_loads == 0; ++tries) {
      for (const auto& faults : harness_.faults) faults->get_errors = 1;
      harness_.MoveAllDown();
      harness_.ServeLoaded(prompt, ns);
    }
    EXPECT_GT(harness_.cache->Stats().failed_loads, 0u);
  }
  void CheckAccounts() {
    Referenced referenced;
    for (LiveBranch& live : live_) referenced.Add(*live.branch);
    ASSERT_GE(harness_.cache->Stats().in_use_pages, referenced.pages());
    harness_.ExpectConserved();
  }

  const Setting setting_;
  TierHarness harness_;
  base::Random random_;
  std::vector<LiveBranch> live_;
  std::vector<Waiting> waiting_;
  CommittedPrompts committed_;
};

TEST_P(TiersRandomTest, WhateverTiersDoReadyRowsAreRightAndPagesComeBack) {
  for (int step = 0; step < setting_.steps; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(CheckAccounts()) << "step " << step;
  }
  waiting_.clear();
  live_.clear();
  CheckAccounts();
  ExpectTiersServe();
  EXPECT_EQ(harness_.cache->Stats().in_use_pages, 0u);
  harness_.cache->Clear();
  EXPECT_EQ(harness_.cache->Stats().free_pages, setting_.pages);
}

// Lookups and statistics from other threads meanwhile; for ThreadSanitizer above all.
TEST_P(TiersRandomTest, MayRunWhileOtherThreadsLookUp) {
  const Onlookers onlookers(2, [this](base::Random& random) {
    const Tokens prompt = RandomTokens(random.Below(50), 1 + random.Below(60), 3);
    const Plan plan = harness_.Lookup(prompt, {.tenant = "a", .salt = ""});
    ASSERT_LE(plan.loadable_tokens, prompt.size());
    harness_.ExpectConserved();
    harness_.cache->Tiers();
  });
  for (int step = 0; step < setting_.steps / 10; ++step) {
    const uint64_t dice = random_.Below(100);
    if (dice < 20 && waiting_.size() < 4) {
      StartWaiting();
    } else if (dice < 45 && !waiting_.empty()) {
      PollOne();
    } else if (live_.empty() || (dice < 55 && live_.size() < 8)) {
      const Namespace ns = RandomNamespace();
      Begin(RandomPrompt(ns), ns);
    } else if (dice < 85) {
      Compute(live_[random_.Below(live_.size())]);
    } else {
      live_.pop_back();
    }
    if (HasFatalFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, TiersRandomTest,
                         ::testing::Combine(::testing::ValuesIn(kSettings),
                                            ::testing::Values(1, 2)),
                         kSettingAndSeed);

}  // namespace
}  // namespace kvlink::link
