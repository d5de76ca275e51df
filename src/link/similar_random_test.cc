// Thousands of random operations, exact and similar ones mixed. The naive model remembers every
// exact row that was stored, and every prompt: whatever a sequence reads must be one of these at
// the right shift, or what itself wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "link/cache_state.h"
#include "link/committed_prompts.h"
#include "link/conductor.h"
#include "link/random_harness.h"
#include "link/similar_harness.h"

namespace kvlink::link {
namespace {

struct Setting {
  const char* name;
  uint32_t tokens_per_block = 8;
  uint64_t pages = 60;  // few: constant eviction
  int hash_bits = 128;
  double cow_copy_threshold = 0.15;
  float context = 0;  // of V: how often the check wants more rows
  int steps = 2500;
};

const Setting kSettings[] = {
    {.name = "Pressure"},
    {.name = "PressureWithChangedRows", .context = 0.3f},
    {.name = "CollidingKeys", .hash_bits = 8, .context = 0.1f},
    {.name = "Differences", .tokens_per_block = 16, .pages = 40, .cow_copy_threshold = 0.5},
    {.name = "LargeBlocks", .tokens_per_block = 32, .pages = 24, .context = 0.1f},
    {.name = "Roomy", .pages = 20000, .context = 0.1f},
};

class SimilarOperations : public ::testing::TestWithParam<std::tuple<Setting, uint64_t>> {
 protected:
  SimilarOperations()
      : setting_(std::get<0>(GetParam())),
        harness_(setting_.tokens_per_block, setting_.pages),
        random_(std::get<1>(GetParam())) {
    CacheOptions& options = harness_.options;
    options.hash_bits = setting_.hash_bits;
    options.cow_copy_threshold = setting_.cow_copy_threshold;
    // Short prompts: everything happens often.
    options.similar.min_reused_rows = 24;
    options.similar.min_run = 8;
    options.similar.tail_rows = 5;
    options.similar.seam_rows = 3;
    options.similar.shifted_seam_rows = 5;
    options.similar.mask_similarity = 0.4;
    options.similar.span_similarity = 0.2;
    options.similar.max_edit_share = 0.6;
    options.similar.max_compute_share = 0.9;
    options.similar.wasted_compute_share = 0.5;
    options.similar.close_gap = 1;
    harness_.context = setting_.context;
    auto state = CreateState(options);
    EXPECT_TRUE(state.ok()) << state.status().ToString();
    state_ = std::move(state).value();
    harness_.cache = std::make_unique<Conductor>(state_);
    for (uint64_t i = 0; i < 3; ++i) texts_.push_back(RandomTokens(100 + i, 150, 5000));
  }

  Namespace RandomNamespace() {
    return {.tenant = random_.OneIn(4) ? "b" : "a", .salt = random_.OneIn(8) ? "s" : ""};
  }
  // A text with some edits, mostly near its start, and now and then something of its own.
  Tokens RandomPrompt() {
    Tokens prompt = texts_[random_.Below(texts_.size())];
    prompt.resize(50 + random_.Below(100));
    for (uint64_t edits = 1 + random_.Below(2); edits > 0; --edits) {
      const auto at = static_cast<ptrdiff_t>(
          random_.Below(random_.OneIn(3) ? prompt.size() : std::min<size_t>(20, prompt.size())));
      const auto place = prompt.begin() + at;
      switch (random_.Below(3)) {
        case 0:
          *place = static_cast<TokenId>(random_.Below(5000));
          break;
        case 1:
          prompt.erase(place,
                       std::min(place + static_cast<ptrdiff_t>(random_.Below(5)), prompt.end()));
          break;
        default: {
          const Tokens some = RandomTokens(random_.Below(50), 1 + random_.Below(5), 5000);
          prompt.insert(place, some.begin(), some.end());
        }
      }
    }
    if (random_.OneIn(12)) prompt = RandomTokens(random_.Below(1000), 20 + random_.Below(60), 5000);
    return prompt;
  }

  void Begin() {
    const Namespace ns = RandomNamespace();
    const Tokens prompt = RandomPrompt();
    LookupRequest request = harness_.Similar(prompt, ns);
    if (random_.OneIn(4)) request.similar = SimilarPolicy::kOff;
    if (random_.OneIn(6)) request.similar = SimilarPolicy::kStrict;
    request.store = !random_.OneIn(6);
    request.max_new_tokens = static_cast<uint32_t>(random_.Below(12));
    const Plan plan = harness_.cache->Lookup(request);
    ASSERT_LE(plan.diverged_at, stored_.LongestCommon(prompt, ns)) << "rows that nobody stored";
    if (plan.similar) {
      ASSERT_NE(request.similar, SimilarPolicy::kOff);
      ASSERT_GT(plan.similar->reused_rows, 0u);
      ASSERT_GE(plan.similar->spans.front().position, plan.diverged_at);
    }
    waits_ += plan.in_flight && plan.in_flight->num_tokens == 0;
    if (random_.OneIn(5)) MakeRandomRoom();  // between lookup and begin
    auto run = harness_.TryStart(request, plan);
    if (!run.ok()) {
      ASSERT_EQ(run.status().code(), StatusCode::kResourceExhausted);
      return;
    }
    ASSERT_GE((*run)->capacity(), prompt.size() + 1);
    borrowed_ += run->tainted;
    runs_.push_back(std::move(run).value());
  }
  void MakeRandomRoom() {
    if (random_.OneIn(3)) return harness_.cache->Clear();
    const Tokens prompt =
        RandomTokens(random_.Below(1u << 20), 8 * setting_.tokens_per_block, 5000);
    auto run = harness_.TryStart(harness_.RequestOf(prompt), {});
    if (!run.ok()) return;
    run->stored = true;
    harness_.Compute(*run);
    NoteStored(*run);
  }
  void NoteStored(const Running& run) {
    if (run.tainted || !run.stored || run.ready() == 0) return;
    stored_.Add(FirstOf(run.tokens, run.ready()), run.ns);
  }
  bool NeedsVerdict(const Running& run) const {
    return run.tainted && !run.sequence->computed_rows().empty() &&
           !checked_.contains(run.sequence.get());
  }
  void Compute(size_t index) {
    Running& run = runs_[index];
    if (run.left() > 0) {
      harness_.Compute(run, 1 + static_cast<uint32_t>(random_.Below(40)));
      NoteStored(run);
      if (run.ready() == run.prompt && !random_.OneIn(3)) RecordTail(run);
    } else if (NeedsVerdict(run)) {
      Judge(index);
    } else if (run.tokens.size() < 220) {
      const Status generated = harness_.Generate(run, static_cast<TokenId>(random_.Below(5000)));
      if (!generated.ok()) {
        ASSERT_EQ(generated.code(), StatusCode::kResourceExhausted);
      }
      NoteStored(run);
    }
  }
  void RecordTail(Running& run) {
    PromptTail tail;
    if (!random_.OneIn(4)) {
      tail.received.resize(run.prompt);
      for (float& received : tail.received) received = static_cast<float>(random_.Unit());
    }
    tail.nll.resize(random_.Below(8), 1.0f);
    run->RecordTail(tail, harness_.Certain(1));
    most_notes_ = std::max(most_notes_, harness_.cache->Stats().donor_notes);
  }
  void Judge(size_t index) {
    Running& run = runs_[index];
    std::vector<float> logits = harness_.Certain(random_.OneIn(5) ? 2 : 1);
    if (random_.OneIn(8)) logits[0] = NAN;
    const Verdict verdict = run->CheckFirstToken(logits);
    ++verdicts_[static_cast<size_t>(verdict.action)];
    if (verdict.action == Verdict::Action::kEnlarge) {
      run.own.clear();
    } else if (verdict.action == Verdict::Action::kFallBack) {
      runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(index));
    } else {
      checked_.insert(run.sequence.get());
    }
  }
  void Fork(size_t index) {
    Running& run = runs_[index];
    if (NeedsVerdict(run)) return;
    const auto at =
        static_cast<uint32_t>(random_.OneIn(2) ? run.ready() : random_.Below(run.ready() + 1));
    auto forked = harness_.Fork(run, at);
    if (!forked.ok()) {
      ASSERT_EQ(forked.status().code(), StatusCode::kResourceExhausted);
      return;
    }
    runs_.push_back(std::move(forked).value());
  }
  void Release(size_t index) {
    checked_.erase(runs_[index].sequence.get());
    runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(index));
  }
  void Step() {
    const uint64_t dice = random_.Below(100);
    const size_t index = runs_.empty() ? 0 : random_.Below(runs_.size());
    if (runs_.empty() || (dice < 20 && runs_.size() < 8)) {
      Begin();
    } else if (dice < 74) {
      Compute(index);
    } else if (dice < 80 && runs_.size() < 8) {
      Fork(index);
    } else if (dice < 90) {
      Release(index);
    } else if (dice < 91 && setting_.pages < 1000) {
      MakeRandomRoom();
    } else if (dice < 93) {
      const Tokens prompt = RandomPrompt();
      static_cast<void>(harness_.cache->Pin(harness_.RequestOf(prompt, RandomNamespace()),
                                            std::chrono::seconds(1 + random_.Below(5))));
    } else {
      harness_.clock.Advance(std::chrono::seconds(2));
    }
  }

  // Each donor's rows are resident, up to the block that names it, and are a stored prompt's.
  void CheckDonors() {
    const base::WriterLock lock(state_->mutex);
    const Donors& donors = *state_->donors;
    const match::PrefixIndex& index = state_->store->index();
    size_t found = 0;
    for (BlockId id = 0; id < setting_.pages * 4; ++id) {
      const uint32_t rows = donors.resident().RowsOf(id);
      if (rows == 0) continue;
      ++found;
      ASSERT_TRUE(index.Contains(id)) << "donor " << id;
      const DonorChain chain = ReadDonor(index, id, rows);
      ASSERT_EQ(chain.blocks.size(),
                (rows + setting_.tokens_per_block - 1) / setting_.tokens_per_block);
      ASSERT_TRUE(stored_.Has(chain.tokens)) << "donor " << id;
    }
    ASSERT_EQ(found, donors.resident().num_donors());
    ASSERT_LE(state_->store->num_notes(), found) << "a note without its donor";
    max_donors_ = std::max(max_donors_, found);
    state_->store->graph().Validate();
  }
  void CheckAccounts() {
    Referenced referenced;
    for (const Running& run : runs_) referenced.Add(*run.sequence);
    ASSERT_EQ(harness_.cache->Stats().in_use_bytes, referenced.BytesBy(harness_.options));
    harness_.ExpectConserved();
  }
  void CheckRows() {
    for (const Running& run : runs_) ASSERT_EQ(harness_.WrongRows(run), "");
  }

  const Setting setting_;
  SimilarHarness harness_;
  std::shared_ptr<CacheState> state_;
  base::Random random_;
  std::vector<Tokens> texts_;
  std::vector<Running> runs_;
  std::set<const Sequence*> checked_;
  CommittedPrompts stored_;
  std::array<uint64_t, 3> verdicts_{};
  uint64_t borrowed_ = 0, waits_ = 0, most_notes_ = 0;
  size_t max_donors_ = 0;
};

TEST_P(SimilarOperations, RowsAreExactOrADonorsOrItsOwnAndDonorsAreWhole) {
  for (int step = 0; step < setting_.steps; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(CheckAccounts()) << "step " << step;
    if (step % 8 == 0) {
      ASSERT_NO_FATAL_FAILURE(CheckDonors()) << "step " << step;
    }
    if (step % 16 == 0) {
      ASSERT_NO_FATAL_FAILURE(CheckRows()) << "step " << step;
    }
  }
  ASSERT_NO_FATAL_FAILURE(CheckRows());
  EXPECT_GT(borrowed_, 10u);
  EXPECT_GT(max_donors_, 2u);
  EXPECT_GT(waits_, 0u);
  EXPECT_GT(most_notes_, 1u);
  EXPECT_GT(verdicts_[0], 0u);                 // accepted
  EXPECT_GT(verdicts_[1] + verdicts_[2], 0u);  // enlarged, fallen back
  runs_.clear();
  CheckAccounts();
  CheckDonors();
  EXPECT_EQ(state_->gate->reserved_rows(), 0u);
  EXPECT_EQ(harness_.cache->Stats().in_use_pages, 0u);
  harness_.cache->Clear();
  const CacheStats idle = harness_.cache->Stats();
  EXPECT_EQ(idle.free_pages, idle.total_pages);
  EXPECT_EQ(idle.donors, 0u);
  EXPECT_EQ(idle.donor_notes, 0u);
}

// The same, while other threads look up.
TEST_P(SimilarOperations, MayRunWhileOtherThreadsLookUp) {
  const Onlookers onlookers(2, [this](base::Random& random) {
    Tokens prompt = texts_[random.Below(texts_.size())];
    prompt[random.Below(10)] = static_cast<TokenId>(random.Below(5000));
    const Plan plan = harness_.cache->Lookup(harness_.Similar(prompt, {"a", ""}));
    if (plan.in_flight) harness_.cache->StillComputing(*plan.in_flight);
    harness_.cache->RecordShadow(random.Below(10), true);
    harness_.ExpectConserved();
  });
  for (int step = 0; step < setting_.steps / 10; ++step) {
    const uint64_t dice = random_.Below(100);
    const size_t index = runs_.empty() ? 0 : random_.Below(runs_.size());
    if (runs_.empty() || (dice < 20 && runs_.size() < 8)) {
      Begin();
    } else if (dice < 80) {
      Compute(index);
    } else if (dice < 86 && runs_.size() < 8) {
      Fork(index);
    } else {
      Release(index);
    }
    if (HasFatalFailure()) break;
  }
  CheckRows();
}

INSTANTIATE_TEST_SUITE_P(Settings, SimilarOperations,
                         ::testing::Combine(::testing::ValuesIn(kSettings),
                                            ::testing::Values(1, 2)),
                         kSettingAndSeed);

}  // namespace
}  // namespace kvlink::link
