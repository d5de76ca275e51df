// What the tests of the modes of similar reuse share: a small network with random weights, a bench
// that lends and borrows as an engine does, without its schedule, and prompts that differ in their
// clock.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/band_run.h"
#include "engine/logprobs.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "model/testing/model_files.h"
#include "model/testing/prompts.h"

namespace kvlink::engine {

using Tokens = std::vector<TokenId>;
using Logits = std::vector<float>;

inline constexpr uint32_t kLayers = 10;
inline constexpr uint32_t kPrompt = 420, kHead = 40, kClock = 6;

inline const model::Model& TinyModel() {
  static const std::unique_ptr<model::Model> model = [] {
    model::TinyModel tiny;
    tiny.num_layers = kLayers;
    tiny.embedding = 128;
    tiny.head_dim = 32;
    tiny.feed_forward = 256;
    const std::string path = model::TestFolder() + "/similar-modes.gguf";
    EXPECT_TRUE(model::WriteTinyModel(tiny, path));
    model::LoadOptions options;
    options.path = path;
    auto loaded = model::Model::Load(options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return *std::move(loaded);
  }();
  return *model;
}

// A model, a cache that lends, and what an engine does with them, without its schedule.
class Bench {
 public:
  explicit Bench(const SimilarOptions& similar, uint32_t chunk = 64,
                 const model::Model& model = TinyModel())
      : model_(&model), chunk_(chunk) {
    CacheOptions options;
    options.shape = model.kv_shape();
    options.budget_bytes = 400 * options.shape.page_bytes();
    options.model_fingerprint = model.fingerprint();
    options.poison = true;
    options.similar = similar;
    options.similar_model.embedding = model.info().embedding;
    for (SimilarTrials& trials : options.similar_model.calibrated) trials = {.trials = 1000};
    auto cache = CreateCache(options);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    cache_ = *std::move(cache);
    auto runner = model.NewRunner(1, 512);
    EXPECT_TRUE(runner.ok()) << runner.status().ToString();
    runner_ = *std::move(runner);
  }

  struct Run {
    std::unique_ptr<Sequence> sequence;
    SimilarReason reason = SimilarReason::kPolicy;
    Logits logits;  // of the prompt's last row
    bool is_borrowed() const { return !sequence->computed_rows().empty(); }
  };
  Run Start(const Tokens& prompt, SimilarPolicy policy) {
    LookupRequest request;
    request.tokens = prompt;
    request.similar = policy;
    request.max_new_tokens = 40;
    const Plan plan = cache_->Lookup(request);
    auto sequence = cache_->Begin(request, plan);
    EXPECT_TRUE(sequence.ok()) << sequence.status().ToString();
    Run run{.sequence = *std::move(sequence), .reason = plan.similar_reason, .logits = {}};
    Compute(run, prompt);
    return run;
  }
  Run Exact(const Tokens& prompt) { return Start(prompt, SimilarPolicy::kOff); }
  Run Borrow(const Tokens& prompt) { return Start(prompt, SimilarPolicy::kOn); }

  // All rows that are to run; once more after an enlargement.
  void Compute(Run& run, const Tokens& prompt) {
    TailObserver tail;
    tail.Begin(*run.sequence, static_cast<uint32_t>(prompt.size()));
    if (run.sequence->runs_in_bands()) {
      BandRun bands(*run.sequence, prompt, model_->info());
      for (const float* logits = nullptr; logits == nullptr;) {
        const auto progress = bands.Run(*runner_, chunk_, &tail);
        ASSERT_TRUE(progress.ok()) << progress.status().ToString();
        layer_rows_ += progress->layer_rows;
        logits = progress->logits;
        if (logits != nullptr) run.logits.assign(logits, logits + Vocabulary());
      }
      run.sequence->Commit(std::span(prompt).subspan(run.sequence->num_ready()));
    } else {
      RunRows(run, prompt, tail);
    }
    if (tail.has_tail()) run.sequence->RecordTail(tail.tail(), run.logits);
  }
  // One more token; the logits behind it.
  Logits Generate(Run& run, TokenId token) {
    const uint32_t position = run.sequence->num_ready();
    EXPECT_TRUE(run.sequence->Reserve(position + 1).ok());
    const kernel::BatchRow row = {0, position, true};
    const SpanTable* table = &run.sequence->table();
    const uint32_t output = 0;
    const auto logits = runner_->Run(
        {{&token, 1}, {&row, 1}, {&table, 1}, {&output, 1}, {}, run.sequence->checkpoint_layers()});
    EXPECT_TRUE(logits.ok()) << logits.status().ToString();
    run.sequence->Commit({&token, 1});
    return {*logits, *logits + Vocabulary()};
  }

  // The bytes of V of all layers and heads of the row at `position`.
  std::string ValuesAt(const Run& run, uint32_t position) const {
    const KvShape& shape = model_->kv_shape();
    const SpanTable& table = run.sequence->table();
    for (const Span& span : table.spans) {
      if (position >= span.position + span.num_rows) continue;
      const uint32_t row = span.first_row + position - span.position;
      const BlockView& block = table.blocks[span.first_block + row / shape.tokens_per_block];
      std::string bytes;
      for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
        for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
          const auto at = KvRowOf(shape, block, layer, head, row % shape.tokens_per_block);
          bytes.append(reinterpret_cast<const char*>(at.v), shape.vector_bytes());
        }
      }
      return bytes;
    }
    return "";
  }

  uint32_t Vocabulary() const { return model_->info().vocab_size; }
  Cache& cache() { return *cache_; }
  uint64_t layer_rows() const { return layer_rows_; }

 private:
  void RunRows(Run& run, const Tokens& prompt, TailObserver& tail) {
    std::vector<Selection::Range> ranges(run.sequence->computed_rows().begin(),
                                         run.sequence->computed_rows().end());
    const auto size = static_cast<uint32_t>(prompt.size());
    if (ranges.empty()) {
      const uint32_t first = std::min(run.sequence->num_ready(), size - 1);
      ranges.push_back({first, size - first});
    }
    for (const Selection::Range& range : ranges) {
      for (uint32_t done = 0; done < range.num_rows; done += chunk_) {
        RunChunk(run, prompt, range.position + done, std::min(chunk_, range.num_rows - done), tail);
      }
    }
  }
  void RunChunk(Run& run, const Tokens& prompt, uint32_t first, uint32_t count,
                TailObserver& tail) {
    const uint32_t ready = run.sequence->num_ready(), end = first + count;
    std::vector<kernel::BatchRow> rows;
    for (uint32_t p = first; p < end; ++p) rows.push_back({0, p, p >= ready});
    std::vector<uint32_t> outputs;
    for (uint32_t i = count - tail.NumOutputs(first, count); i < count; ++i) outputs.push_back(i);
    const auto observed = tail.Observe(first, count, 0);
    const SpanTable* table = &run.sequence->table();
    const auto logits =
        runner_->Run({std::span(prompt).subspan(first, count),
                      rows,
                      {&table, 1},
                      outputs,
                      observed ? std::span(&*observed, 1) : std::span<const kernel::ObservedRows>(),
                      run.sequence->checkpoint_layers()});
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    layer_rows_ += uint64_t{count} * model_->info().num_layers;
    const auto num_outputs = static_cast<uint32_t>(outputs.size());
    tail.AddLogits(prompt, end, num_outputs, *logits, Vocabulary());
    if (end == prompt.size()) {
      const float* last = *logits + size_t{num_outputs - 1} * Vocabulary();
      run.logits.assign(last, last + Vocabulary());
    }
    if (end > ready) run.sequence->Commit(std::span(prompt).subspan(ready, end - ready));
  }

  const model::Model* model_;
  const uint32_t chunk_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<model::Runner> runner_;
  uint64_t layer_rows_ = 0;
};

inline Tokens RandomTokens(uint64_t seed, size_t count) {
  base::Random random(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.Below(280));
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A head, a clock, a policy and a question.
inline Tokens Prompt(uint64_t clock, size_t clock_tokens = kClock, uint64_t question = 1) {
  const size_t rest = kPrompt - kHead - kClock - 12;
  return RandomTokens(1, kHead) + RandomTokens(100 + clock, clock_tokens) + RandomTokens(2, rest) +
         RandomTokens(1000 + question, 12);
}

inline SimilarOptions With(ReuseMode mode, uint32_t num_layers = kLayers, uint32_t distance = 3) {
  SimilarOptions options;
  options.policy = SimilarPolicy::kOn;
  options.mode = mode;
  const bool has_checkpoints = mode == ReuseMode::kLayered || mode == ReuseMode::kAnchored;
  options.max_reuse_distance = has_checkpoints ? distance : num_layers;
  options.seam_rows = 4;
  options.shifted_seam_rows = 8;
  options.tail_rows = 16;
  options.always_shadowed = 0;
  options.shadow_share = 0;
  options.accept_blast_radius = options.refuse_blast_radius = 1e9;  // the test asks, no check
  options.max_nll_increase = options.max_entropy_increase = 1e9;
  options.stale_js = 0;
  options.garbled_js = 1;
  return options;
}

// As many rows as there are.
inline SimilarOptions WithAllRows(ReuseMode mode, uint32_t num_layers = kLayers,
                                  uint32_t distance = 3) {
  SimilarOptions options = With(mode, num_layers, distance);
  options.compute_share = 4;
  options.seam_compute_share = 1;
  options.note_share = 1;
  options.max_compute_share = 1;
  options.tail_rows = 10'000;
  return options;
}

inline double Divergence(const Logits& exact, const Logits& other) {
  const double log_sum = LogSumExp(exact), other_log_sum = LogSumExp(other);
  double divergence = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = double{exact[i]} - log_sum;
    divergence += std::exp(log_p) * (log_p - (double{other[i]} - other_log_sum));
  }
  return divergence;
}

inline bool BitEqual(const Logits& a, const Logits& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace kvlink::engine
