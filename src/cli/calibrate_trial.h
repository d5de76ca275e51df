// Trials of similar reuse: a prompt that runs on a donor's rows beside its exact run, through Cache
// and Runner alone.
//
//   donor   run exactly in every cache under test
//   prompt  exactly, in a cache without similar reuse: kForced greedy tokens and their logits
//           on a donor's rows: lookup, selected rows, backward check, then the same tokens forced
//
// What is compared is exactly what a server would answer with: the same rows, the same verdicts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/calibrate_corpus.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "model/model.h"

namespace kvlink::cli {

constexpr uint32_t kForced = 16;  // tokens compared

// Runs prompts on one model; its caches share a runner.
class PromptRunner {
 public:
  static Result<PromptRunner> Create(const model::Model& model, int threads, uint32_t chunk);

  // Runs what `sequence` does not have of the prompt, or its selected rows; the last row's logits.
  Result<std::vector<float>> RunPrompt(Sequence& sequence, std::span<const TokenId> prompt);
  // Logits [tokens, vocabulary] of `tokens` behind the ready rows, which stay as they are.
  Result<std::vector<float>> Force(Sequence& sequence, std::span<const TokenId> tokens);

  const model::Model& model() const { return *model_; }
  uint32_t vocab_size() const { return model_->tokenizer().vocab_size(); }
  uint64_t rows_run() const { return rows_run_; }

 private:
  Result<std::vector<float>> RunBands(Sequence& sequence, std::span<const TokenId> prompt);

  const model::Model* model_ = nullptr;
  std::unique_ptr<model::Runner> runner_;
  uint32_t chunk_ = 0;
  uint64_t rows_run_ = 0;
};

// A greedy answer and where it came from.
struct ExactRun {
  std::vector<TokenId> tokens;  // [kForced]; what an end of generation would be followed by, too
  std::vector<float> logits;    // [kForced, vocabulary]; row i is what token i was taken from
  double row_cpu_s = 0;         // processor time of the prompt, a row that ran
  std::span<const float> row(uint32_t i, uint32_t vocab) const {
    return std::span(logits).subspan(size_t{i} * vocab, vocab);
  }
};

// The tokens' text, up to the end of generation if it is among them.
std::string GreedyAnswer(const model::Tokenizer& tokenizer, std::span<const TokenId> tokens);

// Processor time of an exact prefill in us a row and thread, of the second of two runs: the first
// one faults the weights in. Clears `cache`.
Result<double> PrefillUsPerRow(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt,
                               int threads);

// Runs a donor exactly: `cache` lends its rows from then on.
Status Lend(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt);

// The prompt in `cache`, without similar reuse.
Result<ExactRun> RunExactly(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt);

// How far a run is from the exact one.
struct Distance {
  double first_kl = 0, mean_kl = 0, top1 = 0;  // over kForced tokens
  bool same_first = false;
  // By how much the exact run prefers its first token to the other's, in nats; 0: the same one.
  double first_gap = 0;
};
// Logits [kForced, vocabulary] of the same tokens.
Distance DistanceOf(const ExactRun& exact, std::span<const float> logits, uint32_t vocab);

struct SimilarTrial {
  // kNone: accepted. Otherwise why no rows were lent, or why the result was refused.
  SimilarReason reason = SimilarReason::kNone;
  bool was_planned = false, was_enlarged = false, is_shifted = false;
  EditClass edit = EditClass::kWords;
  double mask_similarity = 0;
  uint32_t prompt_rows = 0, exact_rows = 0;
  uint32_t computed_rows = 0;  // on donor's rows: those of an enlarged selection again
  double cpu_s = 0;            // processor time up to the verdict
  // Of the plan, of (layer, row) behind the exact rows: what runs, what is written over the
  // donor's.
  double compute_share = 0, modified_share = 0;
  uint64_t added_bytes = 0;  // of KV: pages beside the donor's, up to the verdict
  Distance distance;         // when accepted
  // kForced greedy tokens of its own, when asked for; of a refused one what was kept back.
  std::string answer;
  bool is_accepted() const { return was_planned && reason == SimilarReason::kNone; }
  // Of the rows that exact reuse would compute.
  double computed_share() const {
    return static_cast<double>(computed_rows) / std::max(prompt_rows - exact_rows, 1u);
  }
};

// The prompt in `cache`, which lends rows of what ran there before. `wants_answer`: go on greedily.
Result<SimilarTrial> TrySimilar(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt,
                                const ExactRun& exact, bool wants_answer);

// What the plan would be, before anything runs.
SimilarTrial Foresee(const Cache& cache, std::span<const TokenId> prompt);

}  // namespace kvlink::cli
