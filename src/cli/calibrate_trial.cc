#include "cli/calibrate_trial.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "cli/divergence.h"
#include "cli/machine.h"
#include "engine/band_run.h"
#include "engine/tail_observer.h"

namespace kvlink::cli {
namespace {

LookupRequest RequestOf(std::span<const TokenId> prompt, SimilarPolicy similar) {
  LookupRequest request;
  request.tokens = prompt;
  request.similar = similar;
  request.max_new_tokens = kForced;
  // Donors alone are stored where rows are lent, so that each pair meets the donor it was made for.
  request.store = similar == SimilarPolicy::kOff;
  return request;
}

// The rows to run, ascending: those selected, or all that are not ready. The last one always runs,
// for its logits.
std::vector<uint32_t> PositionsToRun(const Sequence& sequence, size_t prompt_size) {
  std::vector<uint32_t> positions;
  if (sequence.computed_rows().empty()) {
    const auto first =
        std::min<uint32_t>(sequence.num_ready(), static_cast<uint32_t>(prompt_size) - 1);
    positions.resize(prompt_size - first);
    std::iota(positions.begin(), positions.end(), first);
  }
  for (const Selection::Range& range : sequence.computed_rows()) {
    for (uint32_t i = 0; i < range.num_rows; ++i) positions.push_back(range.position + i);
  }
  return positions;
}

// How many of the positions, at their end, follow each other.
uint32_t RunAtEnd(std::span<const uint32_t> positions) {
  size_t run = 1;
  while (run < positions.size() &&
         positions[positions.size() - run - 1] + run == positions.back()) {
    ++run;
  }
  return static_cast<uint32_t>(run);
}

// Bytes of the pages that are not free.
uint64_t HeldBytes(const Cache& cache) {
  const CacheStats stats = cache.Stats();
  return (stats.total_pages - stats.free_pages) * stats.page_bytes;
}

// Goes on greedily where the answer leaves the exact one's tokens; up to there they are its own.
Result<std::string> Answer(PromptRunner& runner, Sequence& sequence, const ExactRun& exact,
                           std::span<const float> forced) {
  const uint32_t vocab = runner.vocab_size();
  std::vector<TokenId> tokens;
  while (tokens.size() < kForced) {
    const TokenId own = Likeliest(forced.subspan(tokens.size() * vocab, vocab));
    tokens.push_back(own);
    if (own != exact.tokens[tokens.size() - 1]) break;
  }
  std::span<const TokenId> rows = tokens;  // not run yet
  while (tokens.size() < kForced) {
    auto logits = runner.Force(sequence, rows);
    if (!logits.ok()) return logits.status();
    sequence.Commit(rows);
    tokens.push_back(Likeliest(std::span(*logits).last(vocab)));
    rows = std::span(tokens).last(1);
  }
  return GreedyAnswer(runner.model().tokenizer(), tokens);
}

}  // namespace

Result<PromptRunner> PromptRunner::Create(const model::Model& model, int threads, uint32_t chunk) {
  PromptRunner prompts;
  auto runner = model.NewRunner(threads, chunk);
  if (!runner.ok()) return runner.status();
  prompts.model_ = &model;
  prompts.runner_ = *std::move(runner);
  prompts.chunk_ = chunk;
  return prompts;
}

Result<std::vector<float>> PromptRunner::RunPrompt(Sequence& sequence,
                                                   std::span<const TokenId> prompt) {
  KVLINK_CHECK(!prompt.empty());
  if (sequence.runs_in_bands()) return RunBands(sequence, prompt);
  const std::vector<uint32_t> positions = PositionsToRun(sequence, prompt.size());
  std::vector<float> last;
  engine::TailObserver tail;
  tail.Begin(sequence, static_cast<uint32_t>(prompt.size()));
  for (size_t first = 0; first < positions.size(); first += chunk_) {
    const size_t count = std::min<size_t>(chunk_, positions.size() - first);
    const uint32_t ready = sequence.num_ready();
    std::vector<kernel::BatchRow> rows;
    std::vector<TokenId> tokens;
    for (const uint32_t position : std::span(positions).subspan(first, count)) {
      rows.push_back({0, position, position >= ready});
      tokens.push_back(prompt[position]);
    }
    const SpanTable* table = &sequence.table();
    const uint32_t end = positions[first + count - 1] + 1;
    const uint32_t run = RunAtEnd(std::span(positions).subspan(first, count));
    const auto batch_row = static_cast<uint32_t>(count) - run;
    std::vector<uint32_t> outputs(tail.NumOutputs(end - run, run));
    std::iota(outputs.begin(), outputs.end(), static_cast<uint32_t>(count - outputs.size()));
    const auto observed = tail.Observe(end - run, run, batch_row);
    const auto logits =
        runner_->Run({tokens,
                      rows,
                      {&table, 1},
                      outputs,
                      observed ? std::span(&*observed, 1) : std::span<const kernel::ObservedRows>(),
                      sequence.checkpoint_layers()});
    if (!logits.ok()) return logits.status();
    const auto num_outputs = static_cast<uint32_t>(outputs.size());
    tail.AddLogits(prompt, end, num_outputs, *logits, vocab_size());
    if (end == prompt.size()) {
      const float* row = *logits + size_t{num_outputs - 1} * vocab_size();
      last.assign(row, row + vocab_size());
    }
    if (end > ready) sequence.Commit(prompt.subspan(ready, end - ready));
    rows_run_ += count;
  }
  if (tail.has_tail()) sequence.RecordTail(tail.tail(), last);
  return last;
}

Result<std::vector<float>> PromptRunner::RunBands(Sequence& sequence,
                                                  std::span<const TokenId> prompt) {
  engine::TailObserver tail;
  tail.Begin(sequence, static_cast<uint32_t>(prompt.size()));
  engine::BandRun bands(sequence, prompt, model_->info());
  for (;;) {
    const auto progress = bands.Run(*runner_, chunk_, &tail);
    if (!progress.ok()) return progress.status();
    rows_run_ += progress->rows;
    if (progress->logits == nullptr) continue;
    std::vector<float> last(progress->logits, progress->logits + vocab_size());
    sequence.Commit(prompt.subspan(sequence.num_ready()));
    if (tail.has_tail()) sequence.RecordTail(tail.tail(), last);
    return last;
  }
}

Result<std::vector<float>> PromptRunner::Force(Sequence& sequence,
                                               std::span<const TokenId> tokens) {
  const uint32_t ready = sequence.num_ready();
  const auto count = static_cast<uint32_t>(tokens.size());
  if (Status status = sequence.Reserve(ready + count); !status.ok()) return status;
  std::vector<kernel::BatchRow> rows(count);
  std::vector<uint32_t> outputs(count);
  for (uint32_t i = 0; i < count; ++i) {
    rows[i] = {0, ready + i, true};
    outputs[i] = i;
  }
  const SpanTable* table = &sequence.table();
  const auto logits =
      runner_->Run({tokens, rows, {&table, 1}, outputs, {}, sequence.checkpoint_layers()});
  if (!logits.ok()) return logits.status();
  rows_run_ += count;
  return std::vector<float>(*logits, *logits + size_t{count} * vocab_size());
}

std::string GreedyAnswer(const model::Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  const auto end = std::ranges::find_if(
      tokens, [&](TokenId token) { return tokenizer.IsEndOfGeneration(token); });
  return tokenizer.Decode({tokens.begin(), end}, false);
}

Result<double> PrefillUsPerRow(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt,
                               int threads) {
  double us = 0;
  for (int round = 0; round < 2; ++round) {
    cache.Clear();
    const double start_s = ProcessCpuSeconds();
    if (Status status = Lend(runner, cache, prompt); !status.ok()) return status;
    us = (ProcessCpuSeconds() - start_s) * 1e6;
  }
  return us / (static_cast<double>(prompt.size()) * threads);
}

Status Lend(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt) {
  const LookupRequest request = RequestOf(prompt, SimilarPolicy::kOff);
  auto sequence = cache.Begin(request, cache.Lookup(request));
  if (!sequence.ok()) return sequence.status();
  return runner.RunPrompt(**sequence, prompt).status();
}

Result<ExactRun> RunExactly(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt) {
  const LookupRequest request = RequestOf(prompt, SimilarPolicy::kOff);
  auto sequence = cache.Begin(request, cache.Lookup(request));
  if (!sequence.ok()) return sequence.status();
  const double start_s = ProcessCpuSeconds();
  const uint64_t rows_before = runner.rows_run();
  auto logits = runner.RunPrompt(**sequence, prompt);
  if (!logits.ok()) return logits.status();
  ExactRun run;
  run.row_cpu_s =
      (ProcessCpuSeconds() - start_s) / static_cast<double>(runner.rows_run() - rows_before);
  run.logits = *std::move(logits);
  run.tokens.push_back(Likeliest(run.logits));
  while (run.tokens.size() < kForced) {
    const TokenId token = run.tokens.back();
    const auto next = runner.Force(**sequence, {&token, 1});
    if (!next.ok()) return next.status();
    (*sequence)->Commit({&token, 1});
    run.logits.insert(run.logits.end(), next->begin(), next->end());
    run.tokens.push_back(Likeliest(*next));
  }
  return run;
}

Distance DistanceOf(const ExactRun& exact, std::span<const float> logits, uint32_t vocab) {
  Distance distance;
  for (uint32_t i = 0; i < kForced; ++i) {
    const std::span<const float> other = logits.subspan(size_t{i} * vocab, vocab);
    const double kl = Divergence(exact.row(i, vocab), other);
    const TokenId likeliest = Likeliest(other);
    const bool same = likeliest == exact.tokens[i];
    if (i == 0) {
      distance.first_kl = kl;
      distance.same_first = same;
      const std::span<const float> own = exact.row(i, vocab);
      distance.first_gap =
          double{own[static_cast<size_t>(exact.tokens[i])]} - own[static_cast<size_t>(likeliest)];
    }
    distance.mean_kl += kl / kForced;
    distance.top1 += (same ? 1.0 : 0.0) / kForced;
  }
  return distance;
}

SimilarTrial Foresee(const Cache& cache, std::span<const TokenId> prompt) {
  const Plan plan = cache.Lookup(RequestOf(prompt, SimilarPolicy::kOn));
  SimilarTrial trial;
  trial.reason = plan.similar_reason;
  trial.prompt_rows = plan.num_tokens;
  trial.exact_rows = plan.compute_from;
  if (!plan.similar) return trial;
  trial.was_planned = true;
  trial.edit = plan.similar->edit;
  trial.compute_share = plan.similar->selection.compute_share;
  trial.modified_share = plan.similar->selection.modified_share;
  trial.mask_similarity = plan.similar->mask_similarity;
  for (const ReuseSpan& span : plan.similar->spans) trial.is_shifted |= span.shift() != 0;
  return trial;
}

Result<SimilarTrial> TrySimilar(PromptRunner& runner, Cache& cache, std::span<const TokenId> prompt,
                                const ExactRun& exact, bool wants_answer) {
  SimilarTrial trial = Foresee(cache, prompt);
  if (!trial.was_planned) return trial;
  const LookupRequest request = RequestOf(prompt, SimilarPolicy::kOn);
  const uint64_t bytes_before = HeldBytes(cache);
  const double start_s = ProcessCpuSeconds();
  auto begun = cache.Begin(request, cache.Lookup(request));
  if (!begun.ok()) return begun.status();
  Sequence& sequence = **begun;
  std::vector<float> first;
  if (sequence.computed_rows().empty()) {  // failed attempts have used up their share of compute
    trial.was_planned = false;
    trial.reason = SimilarReason::kBudget;
    return trial;
  }
  Verdict verdict{Verdict::Action::kEnlarge, SimilarReason::kNone, 0, 0};
  while (verdict.action == Verdict::Action::kEnlarge) {
    for (const Selection::Range& range : sequence.computed_rows()) {
      trial.computed_rows += range.num_rows;
    }
    auto logits = runner.RunPrompt(sequence, prompt);
    if (!logits.ok()) return logits.status();
    first = *std::move(logits);
    verdict = sequence.CheckFirstToken(first);
    trial.was_enlarged |= verdict.action == Verdict::Action::kEnlarge;
  }
  trial.reason = verdict.reason;
  trial.cpu_s = ProcessCpuSeconds() - start_s;
  trial.added_bytes = HeldBytes(cache) - std::min(bytes_before, HeldBytes(cache));
  const bool is_refused = verdict.action == Verdict::Action::kFallBack;
  if (is_refused && !wants_answer) return trial;

  auto rest = runner.Force(sequence, std::span(exact.tokens).first(kForced - 1));
  if (!rest.ok()) return rest.status();
  first.insert(first.end(), rest->begin(), rest->end());
  if (!is_refused) trial.distance = DistanceOf(exact, first, runner.vocab_size());
  if (wants_answer) {
    auto answer = Answer(runner, sequence, exact, first);
    if (!answer.ok()) return answer.status();
    trial.answer = *std::move(answer);
  }
  return trial;
}

}  // namespace kvlink::cli
