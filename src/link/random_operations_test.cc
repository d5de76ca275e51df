// Thousands of random operations against a naive reference cache, which remembers every prefix that
// was ever committed and finds the longest common one by comparing with all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "link/cache_harness.h"

namespace kvlink::link {
namespace {

struct Setting {
  const char* name;
  uint32_t tokens_per_block = 8;
  uint64_t pages = 24;  // few: constant eviction; many: nothing is ever evicted
  int hash_bits = 128;
  double cow_copy_threshold = 0.15;
  Sharing sharing = Sharing::kExact;
  int steps = 3000;
};

const Setting kSettings[] = {
    {.name = "Pressure"},
    {.name = "PressureWithCollidingKeys", .hash_bits = 8},
    {.name = "ManyDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0.5},
    {.name = "OnlyDifferences", .tokens_per_block = 8, .cow_copy_threshold = 1},
    {.name = "NoDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0},
    {.name = "LargeBlocks", .tokens_per_block = 32, .pages = 12},
    {.name = "Roomy", .pages = 20000, .steps = 1500},
    {.name = "RoomyWithCollidingKeys", .pages = 20000, .hash_bits = 8, .steps = 1500},
    {.name = "RoomyWithDifferences",
     .tokens_per_block = 16,
     .pages = 20000,
     .cow_copy_threshold = 0.4,
     .steps = 1500},
    {.name = "SharingOff", .sharing = Sharing::kOff},
};

struct Live {
  Branch branch;
  bool store = true;
  uint32_t max_length = 0;  // it generates up to here
};

class RandomOperations : public ::testing::TestWithParam<std::tuple<Setting, uint64_t>> {
 protected:
  RandomOperations()
      : setting_(std::get<0>(GetParam())),
        harness_(setting_.tokens_per_block, setting_.pages,
                 kKvTypes[std::get<1>(GetParam()) % std::size(kKvTypes)]),
        random_(std::get<1>(GetParam())) {
    harness_.options.hash_bits = setting_.hash_bits;
    harness_.options.cow_copy_threshold = setting_.cow_copy_threshold;
    harness_.options.sharing = setting_.sharing;
    harness_.Create();
  }

  Namespace RandomNamespace() {
    return {.tenant = random_.OneIn(4) ? "b" : "a", .salt = random_.OneIn(6) ? "s" : ""};
  }
  // Three different tokens, and mostly something that was there before: prefixes collide all the
  // time.
  Tokens RandomPrompt(const Namespace& ns) {
    Tokens prompt;
    const auto& known = committed_[Key(ns)];
    if (!known.empty() && !random_.OneIn(5)) {
      prompt = *std::next(known.begin(), static_cast<ptrdiff_t>(random_.Below(known.size())));
      if (!random_.OneIn(3)) prompt.resize(1 + random_.Below(prompt.size()));
    }
    const uint64_t more = random_.Below(3 * setting_.tokens_per_block);
    for (uint64_t i = 0; i < more || prompt.empty(); ++i) {
      prompt.push_back(static_cast<TokenId>(random_.Below(3)));
    }
    const uint64_t most = setting_.tokens_per_block * std::min<uint64_t>(setting_.pages / 2, 8);
    if (prompt.size() > most) prompt.resize(most);
    return prompt;
  }
  static std::string Key(const Namespace& ns) { return ns.tenant + "/" + ns.salt; }

  uint32_t LongestCommitted(const Tokens& tokens, const Namespace& ns) {
    size_t longest = 0;
    for (const Tokens& other : committed_[Key(ns)]) {
      const auto end =
          std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
      longest = std::max(longest, static_cast<size_t>(end - tokens.begin()));
    }
    return static_cast<uint32_t>(longest);
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
    const uint32_t longest = may_find ? LongestCommitted(prompt, ns) : 0;
    ASSERT_LE(found, longest) << "rows that nobody committed";
    if (before.evicted_blocks == 0) {
      ASSERT_EQ(found, longest) << "resident rows were missed";
    }
    ASSERT_EQ(plan.compute_from, std::min<size_t>(found, prompt.size() - request.min_compute));
    ASSERT_EQ(plan.diverged_at, found);
    ASSERT_EQ(harness_.cache->Stats().in_use_bytes, before.in_use_bytes);

    auto sequence = harness_.cache->Begin(request, plan);
    if (!sequence.ok()) {
      ASSERT_EQ(sequence.status().code(), StatusCode::kResourceExhausted);
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
  void Compute(Live& live) {
    Branch& branch = live.branch;
    const auto known = static_cast<uint32_t>(branch.tokens().size());
    if (branch.ready() < known) {
      branch.Compute(1 + static_cast<uint32_t>(random_.Below(known - branch.ready())));
    } else if (known < live.max_length) {
      const Status generated = branch.Generate(static_cast<TokenId>(random_.Below(3)));
      if (!generated.ok()) {
        ASSERT_EQ(generated.code(), StatusCode::kResourceExhausted);
      }
    }
    if (live.store && setting_.sharing == Sharing::kExact && branch.ready() > 0) {
      committed_[Key(branch.ns())].insert(FirstOf(branch.tokens(), branch.ready()));
    }
    Check(live);
  }
  void Fork(size_t index) {
    const uint32_t ready = live_[index].branch.ready();
    const auto at = static_cast<uint32_t>(random_.OneIn(2) ? ready : random_.Below(ready + 1));
    const auto max_new = static_cast<uint32_t>(random_.Below(12));
    const uint64_t in_use = harness_.cache->Stats().in_use_bytes;
    auto forked = live_[index].branch.Fork(at, max_new);
    if (!forked.ok()) {
      ASSERT_EQ(forked.status().code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(harness_.cache->Stats().in_use_bytes, in_use);
      return;
    }
    ASSERT_EQ(forked->ready(), at);
    live_.push_back({std::move(forked).value(), live_[index].store, at + max_new});
    Check(live_.back());
  }
  void Pin() {
    const Namespace ns = RandomNamespace();
    const Tokens prompt = RandomPrompt(ns);
    const auto pinned = harness_.cache->Pin(harness_.RequestOf(prompt, ns),
                                            std::chrono::seconds(1 + random_.Below(20)));
    if (!pinned.ok()) {
      ASSERT_EQ(pinned.status().code(), StatusCode::kResourceExhausted);
    }
    const CacheStats stats = harness_.cache->Stats();
    ASSERT_LE(stats.pinned_bytes, stats.budget_bytes / 2);
    if (pinned.ok()) {
      ASSERT_LE(*pinned, harness_.Lookup(prompt, ns).diverged_at);
    }
  }

  void Step() {
    const uint64_t dice = random_.Below(100);
    const size_t index = live_.empty() ? 0 : random_.Below(live_.size());
    if (live_.empty() || (dice < 16 && live_.size() < 10)) {
      Begin();
    } else if (dice < 70) {
      Compute(live_[index]);
    } else if (dice < 80 && live_.size() < 10) {
      Fork(index);
    } else if (dice < 94) {
      live_.erase(live_.begin() + static_cast<ptrdiff_t>(index));
    } else if (dice < 96) {
      Pin();
    } else if (dice < 99) {
      harness_.clock.Advance(std::chrono::seconds(3));
    } else if (setting_.pages < 1000 && random_.OneIn(5)) {
      harness_.cache->Clear();
    }
  }

  static void Check(const Live& live) { ASSERT_EQ(live.branch.WrongRows(), 0u); }
  // What live sequences refer to, counted by looking at their tables.
  void CheckAccounts() {
    std::set<const void*> pages, cells;
    for (const Live& live : live_) {
      for (const BlockView& block : live.branch->table().blocks) {
        pages.insert(block.page);
        if (block.difference) cells.insert(block.difference->cells);
      }
    }
    const KvShape& shape = harness_.options.shape;
    const auto rows =
        static_cast<uint32_t>(setting_.cow_copy_threshold * shape.tokens_per_block + 1e-9);
    const uint64_t in_use =
        pages.size() * shape.page_bytes() + cells.size() * DifferenceView::CellsBytes(shape, rows);
    peak_ = std::max(peak_, in_use);
    const CacheStats stats = harness_.cache->Stats();
    ASSERT_EQ(stats.in_use_bytes, in_use);
    ASSERT_GE(stats.peak_in_use_bytes, peak_);
    ASSERT_EQ(stats.free_pages + stats.cached_pages + stats.in_use_pages, stats.total_pages);
    ASSERT_LE(stats.total_pages * stats.page_bytes, stats.budget_bytes);
  }
  void CheckAll() {
    for (const Live& live : live_) ASSERT_NO_FATAL_FAILURE(Check(live));
  }

  const Setting setting_;
  CacheHarness harness_;
  base::Random random_;
  std::vector<Live> live_;
  std::map<std::string, std::set<Tokens>> committed_;
  uint64_t peak_ = 0;
};

TEST_P(RandomOperations, EveryReadyRowHoldsWhatAColdRunWouldWriteAndPagesAreConserved) {
  for (int step = 0; step < setting_.steps; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(CheckAccounts()) << "step " << step;
    if (step % 16 == 0) {
      ASSERT_NO_FATAL_FAILURE(CheckAll()) << "step " << step;
    }
  }
  ASSERT_NO_FATAL_FAILURE(CheckAll());
  live_.clear();
  CheckAccounts();
  const CacheStats idle = harness_.cache->Stats();
  EXPECT_EQ(idle.in_use_pages, 0u);
  const bool shares = setting_.sharing == Sharing::kExact;
  EXPECT_EQ(idle.exact_tokens > 0 && idle.partial_tokens > 0, shares);
  EXPECT_EQ(idle.cached_pages > 0, shares);
  if (setting_.hash_bits == 8) {
    EXPECT_GT(idle.collisions, 0u);
  }
  const bool pressed = setting_.pages < 1000 && shares;
  EXPECT_EQ(idle.evicted_blocks > 0, pressed);
  if (shares) {
    EXPECT_EQ(idle.cow_difference_blocks > 0, setting_.cow_copy_threshold > 0);
  }
  if (setting_.cow_copy_threshold < 1) {
    EXPECT_EQ(idle.cow_full_copies > 0, shares);
  }
  harness_.cache->Clear();
  EXPECT_EQ(harness_.cache->Stats().free_pages, idle.total_pages);
  EXPECT_EQ(harness_.cache->Stats().pinned_bytes, 0u);
}

// The same, while other threads look up, pin and read statistics.
TEST_P(RandomOperations, MayRunWhileOtherThreadsLookUp) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    readers.emplace_back([this, seed, &stop] {
      base::Random random(seed);
      while (!stop) {
        const Tokens prompt = RandomTokens(random.Below(50), 1 + random.Below(60), 3);
        const Namespace ns{.tenant = random.OneIn(2) ? "a" : "b", .salt = ""};
        const Plan plan = harness_.Lookup(prompt, ns);
        ASSERT_LE(plan.exact_tokens + plan.partial_tokens, prompt.size());
        if (plan.in_flight) harness_.cache->StillComputing(*plan.in_flight);
        harness_.ExpectConserved();
        std::this_thread::yield();  // or readers could keep the writer out for long
        harness_.cache->Remember(ns, "text", prompt);
        ASSERT_TRUE(harness_.cache->Recall(ns, "text").has_value() ||
                    setting_.sharing == Sharing::kOff);
      }
    });
  }
  for (int step = 0; step < setting_.steps / 10; ++step) {
    const uint64_t dice = random_.Below(100);
    const size_t index = live_.empty() ? 0 : random_.Below(live_.size());
    if (live_.empty() || (dice < 20 && live_.size() < 10)) {
      Begin();
    } else if (dice < 75) {
      Compute(live_[index]);
    } else if (dice < 85 && live_.size() < 10) {
      Fork(index);
    } else {
      live_.erase(live_.begin() + static_cast<ptrdiff_t>(index));
    }
    if (HasFatalFailure()) break;
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CheckAll();
}

INSTANTIATE_TEST_SUITE_P(Settings, RandomOperations,
                         ::testing::Combine(::testing::ValuesIn(kSettings),
                                            ::testing::Values(1, 2)),
                         [](const auto& setting) {
                           return std::string(std::get<0>(setting.param).name) +
                                  std::to_string(std::get<1>(setting.param));
                         });

}  // namespace
}  // namespace kvlink::link
