#include "cli/calibrate_run.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "cli/bench_report.h"
#include "cli/divergence.h"
#include "cli/machine.h"
#include "cli/similar_setup.h"

namespace kvlink::cli {
namespace {

constexpr size_t kClasses = static_cast<size_t>(EditClass::kCount);
// When a class stays rare: so many groups, and tries of the class, an accept at most.
constexpr uint64_t kMostGroups = 2, kMostTries = 4;
// Decisive pairs are tried at most so many times as often as they are wanted.
constexpr uint64_t kMostDecisive = 4;

class Calibration {
 public:
  Calibration(const model::Model& model, const CalibrationOptions& options,
              const std::function<void(double, const std::string&)>& progress,
              CalibrationFigures* figures)
      : model_(model), options_(options), progress_(progress), figures_(*figures) {}

  Status Run() {
    auto runner = PromptRunner::Create(model_, options_.threads, options_.chunk);
    if (!runner.ok()) return runner.status();
    runner_.emplace(*std::move(runner));
    auto corpus = Corpus::Parse(CalibrationTemplates(), options_.seed);
    if (!corpus.ok()) return corpus.status();
    figures_.seed = options_.seed;
    figures_.ladder = CalibrationLadder(model_.info().num_layers, options_.mode);
    figures_.outcomes.resize(figures_.ladder.size());
    if (Status status = CreateCaches(corpus->Next()); !status.ok()) return status;

    for (const CalibrationGroup& group : GroupsOf(options_.own, options_.seed)) {
      if (Status status = TryGroup(group, /*is_decisive=*/false); !status.ok()) return status;
    }
    const uint64_t most_groups = kMostGroups * options_.accepts;
    for (uint64_t i = 0; i < most_groups && ShareDone() < 1; ++i) {
      if (Status status = TryGroup(corpus->Next(), false); !status.ok()) return status;
    }
    for (uint64_t i = 0;
         usable_ < options_.decisive && decisive_tried_ < kMostDecisive * options_.decisive &&
         i < kMostDecisive * options_.decisive;
         ++i) {
      if (Status status = TryGroup(corpus->NextDecisive(), true); !status.ok()) return status;
    }
    if (!gap_shifts_.empty()) figures_.tie_gap = Percentile(gap_shifts_, kTieShare);
    for (CalibrationSetting& setting : figures_.ladder) setting.options.tie_gap = figures_.tie_gap;
    std::vector<ClassTrials> trials;
    for (const auto& outcomes : figures_.outcomes) {
      trials.push_back(TrialsOf(outcomes, figures_.tie_gap));
    }
    figures_.choice = Choose(trials, figures_.ladder.front().options);
    return Status::Ok();
  }

 private:
  // `start` of the answer: the model goes on behind it.
  Result<std::vector<TokenId>> TokensOf(const std::vector<model::ChatMessage>& messages,
                                        const std::string& start) const {
    const auto text = model_.tokenizer().ApplyChatTemplate(messages, "", true);
    if (!text.ok()) return text.status();
    return model_.tokenizer().Encode(*text + start, true, true);
  }

  Result<std::unique_ptr<Cache>> NewCache(const model::Model& model,
                                          const SimilarOptions& similar) const {
    CacheOptions options;
    options.shape = model.kv_shape();
    options.model_fingerprint = model.fingerprint();
    options.similar = similar;
    if (similar.policy != SimilarPolicy::kOff) {
      options.similar_model = DescribeForSimilar(model);
      options.similar_model.prefill_us_per_row = figures_.prefill_us_per_row;
      // Every class is open, and refused attempts may cost what they do: that is measured here.
      for (SimilarTrials& trials : options.similar_model.calibrated) trials.trials = 100'000;
      options.similar.wasted_compute_share = 1;
      options.similar.always_shadowed = 0;
      options.similar.shadow_share = 0;
    }
    // A donor, its exact twin, and what is added; cleared between groups.
    options.budget_bytes = 4 * uint64_t{options_.context} / options.shape.tokens_per_block *
                           options.shape.page_bytes();
    return CreateCache(options);
  }

  // `group` only tells what a row costs, which the lookups' budgets depend on.
  Status CreateCaches(const CalibrationGroup& group) {
    auto exact = NewCache(model_, SimilarOptions{});
    if (!exact.ok()) return exact.status();
    exact_ = *std::move(exact);
    auto tokens = TokensOf(group.donor, group.start);
    if (!tokens.ok()) return tokens.status();
    const auto us = PrefillUsPerRow(*runner_, *exact_, *tokens, options_.threads);
    if (!us.ok()) return us.status();
    figures_.prefill_us_per_row = *us;
    for (const CalibrationSetting& setting : figures_.ladder) {
      auto cache = NewCache(model_, setting.options);
      if (!cache.ok()) return cache.status();
      similar_.push_back(*std::move(cache));
    }
    if (options_.other_kv == nullptr || options_.noise_pairs == 0) return Status::Ok();
    auto other = PromptRunner::Create(*options_.other_kv, options_.threads, options_.chunk);
    if (!other.ok()) return other.status();
    other_runner_.emplace(*std::move(other));
    auto cache = NewCache(*options_.other_kv, SimilarOptions{});
    if (!cache.ok()) return cache.status();
    other_cache_ = *std::move(cache);
    return Status::Ok();
  }

  bool IsDone(size_t edit) const {
    return !options_.classes[edit] || accepted_[edit] >= options_.accepts ||
           tried_[edit] >= kMostTries * options_.accepts;
  }

  double ShareDone() const {
    double done = 0;
    for (size_t edit = 0; edit < kClasses; ++edit) {
      const double share = static_cast<double>(accepted_[edit]) / options_.accepts;
      done += (IsDone(edit) ? 1 : share) / kClasses;
    }
    return std::min(done, 1.0);
  }

  Status TryGroup(const CalibrationGroup& group, bool is_decisive) {
    auto donor = TokensOf(group.donor, group.start);
    if (!donor.ok()) return donor.status();
    if (donor->size() + kForced > options_.context) return Status::Ok();
    exact_->Clear();
    for (auto& cache : similar_) cache->Clear();
    // The loosest one lends to most; when it has nothing new to tell, no other is asked.
    if (Status status = Lend(*runner_, *similar_.back(), *donor); !status.ok()) return status;
    bool is_lent = false;
    for (const CalibrationPair& pair : group.pairs) {
      if (is_decisive && usable_ >= options_.decisive) break;
      auto tokens = TokensOf(pair.messages, pair.start);
      if (!tokens.ok()) return tokens.status();
      if (tokens->size() + kForced > options_.context) continue;
      const SimilarTrial foreseen = Foresee(*similar_.back(), *tokens);
      if (!foreseen.was_planned) {
        for (auto& outcomes : figures_.outcomes) {
          outcomes.push_back({pair.kind, pair.place, foreseen});
          outcomes.back().is_forced = is_decisive;
        }
        continue;
      }
      const auto edit = static_cast<size_t>(foreseen.edit);
      if (is_decisive ? !options_.classes[edit] : IsDone(edit)) continue;
      if (!is_decisive) ++tried_[edit];
      for (size_t i = 0; !is_lent && i + 1 < similar_.size(); ++i) {
        if (Status status = Lend(*runner_, *similar_[i], *donor); !status.ok()) return status;
      }
      is_lent = true;
      if (Status status = TryPair(pair, *tokens); !status.ok()) return status;
      const PairOutcome& strictest = figures_.outcomes.front().back();
      if (is_decisive) {
        ++decisive_tried_;
        usable_ += strictest.trial.was_planned && strictest.is_usable() ? 1 : 0;
      } else {
        accepted_[edit] += strictest.trial.is_accepted() ? 1 : 0;
      }
      Report();
    }
    return Status::Ok();
  }

  void Report() const {
    const double decisive =
        options_.decisive == 0 ? 0 : static_cast<double>(usable_) / options_.decisive;
    const double share = options_.decisive == 0 ? ShareDone() : 0.8 * ShareDone() + 0.2 * decisive;
    std::string note = std::to_string(figures_.outcomes.front().size()) + " pairs";
    if (usable_ > 0) note += ", " + std::to_string(usable_) + " that decide";
    progress_(std::min(share, 1.0), note);
  }

  Status TryPair(const CalibrationPair& pair, std::span<const TokenId> tokens) {
    auto exact = RunExactly(*runner_, *exact_, tokens);
    if (!exact.ok()) return exact.status();
    if (Status status = MeasureNoise(tokens, *exact); !status.ok()) return status;
    const std::string answer = GreedyAnswer(model_.tokenizer(), exact->tokens);
    for (size_t i = 0; i < similar_.size(); ++i) {
      auto trial = TrySimilar(*runner_, *similar_[i], tokens, *exact, Decides(pair.kind));
      if (!trial.ok()) return trial.status();
      PairOutcome outcome{pair.kind, pair.place, *std::move(trial)};
      outcome.is_forced = !pair.start.empty();
      outcome.exact_cpu_s =
          exact->row_cpu_s * (outcome.trial.prompt_rows - outcome.trial.exact_rows);
      if (Decides(pair.kind)) {
        const std::string own = pair.Said(outcome.trial.answer);
        outcome.exact_has_fact = Holds(pair.Said(answer), pair.fact);
        outcome.exact_has_donor_fact = Holds(pair.Said(answer), pair.donor_fact);
        outcome.has_fact = Holds(own, pair.fact);
        outcome.has_donor_fact = Holds(own, pair.donor_fact);
      }
      figures_.outcomes[i].push_back(std::move(outcome));
    }
    return Status::Ok();
  }

  Status MeasureNoise(std::span<const TokenId> tokens, const ExactRun& exact) {
    if (!other_runner_ || figures_.noise.size() >= options_.noise_pairs) return Status::Ok();
    other_cache_->Clear();
    LookupRequest request;
    request.tokens = tokens;
    request.max_new_tokens = kForced;
    auto sequence = other_cache_->Begin(request, other_cache_->Lookup(request));
    if (!sequence.ok()) return sequence.status();
    auto logits = other_runner_->RunPrompt(**sequence, tokens);
    if (!logits.ok()) return logits.status();
    auto rest = other_runner_->Force(**sequence, std::span(exact.tokens).first(kForced - 1));
    if (!rest.ok()) return rest.status();
    logits->insert(logits->end(), rest->begin(), rest->end());
    const uint32_t vocab = runner_->vocab_size();
    figures_.noise.push_back(DistanceOf(exact, *logits, vocab));
    for (uint32_t i = 0; i < kForced; ++i) {
      const auto other = std::span(*logits).subspan(size_t{i} * vocab, vocab);
      gap_shifts_.push_back(GapShift(exact.row(i, vocab), other));
    }
    return Status::Ok();
  }

  const model::Model& model_;
  const CalibrationOptions& options_;
  const std::function<void(double, const std::string&)>& progress_;
  CalibrationFigures& figures_;
  std::optional<PromptRunner> runner_, other_runner_;
  std::unique_ptr<Cache> exact_, other_cache_;
  std::vector<std::unique_ptr<Cache>> similar_;  // by setting
  std::vector<double> gap_shifts_;               // of the noise floor
  std::array<uint32_t, kClasses> tried_{}, accepted_{};
  uint32_t usable_ = 0;  // of the pairs that decide, with their starts given
  uint64_t decisive_tried_ = 0;
};

}  // namespace

Status MeasureCalibration(const model::Model& model, const CalibrationOptions& options,
                          const std::function<void(double, const std::string&)>& progress,
                          CalibrationFigures* figures) {
  return Calibration(model, options, progress, figures).Run();
}

}  // namespace kvlink::cli
