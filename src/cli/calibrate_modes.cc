#include "cli/calibrate_modes.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "cli/similar_setup.h"

namespace kvlink::cli {
namespace {

constexpr uint64_t kOtherSeed = 1000;  // other pairs than those of the calibration
constexpr size_t kOfOneGroup = 4;      // pairs of the first run
constexpr uint32_t kMostGroups = 4;    // that decide, a pair that is wanted

std::vector<ReuseVariant> VariantsOf(uint32_t num_layers) {
  std::vector<ReuseVariant> variants;
  const auto add = [&](ReuseMode mode, uint32_t distance, bool is_usual) {
    ReuseVariant variant;
    variant.mode = mode;
    variant.distance = distance;
    variant.is_usual = is_usual;
    variants.push_back(std::move(variant));
  };
  add(ReuseMode::kSeam, num_layers, true);
  add(ReuseMode::kBlend, num_layers, true);
  for (const ReuseMode mode : {ReuseMode::kLayered, ReuseMode::kAnchored}) {
    for (const uint32_t distance : {3u, 7u, 15u, 22u}) {
      const bool is_usual = distance == SimilarOptions{}.max_reuse_distance;
      if (distance < num_layers) add(mode, distance, is_usual);
    }
  }
  return variants;
}

class Comparison {
 public:
  Comparison(const model::Model& model, const CalibrationOptions& options,
             const CalibrationFigures& figures)
      : model_(model), options_(options), figures_(figures) {
    found_.variants = VariantsOf(model.info().num_layers);
  }

  Result<ModeExperiments> Run(const std::function<void(const std::string&)>& note) {
    auto runner = PromptRunner::Create(model_, options_.threads, options_.chunk);
    if (!runner.ok()) return runner.status();
    runner_.emplace(*std::move(runner));
    auto corpus = Corpus::Parse(CalibrationTemplates(), options_.seed + kOtherSeed);
    if (!corpus.ok()) return corpus.status();
    if (Status status = MeasureRow(corpus->Next()); !status.ok()) return status;
    const uint32_t most = options_.experiment_pairs;
    for (uint32_t i = 0; found_.pairs < most && i < most; ++i) {
      // Half of them decide: there a mode that keeps too much shows it.
      const CalibrationGroup group = i % 2 == 0 ? corpus->Next() : corpus->NextDecisive();
      if (Status status = TryAnyPairs(group); !status.ok()) return status;
      note("modes: " + std::to_string(found_.pairs) + " of " + std::to_string(most) + " pairs");
    }
    for (uint32_t i = 0; usable_ < options_.decisive && i < kMostGroups * options_.decisive; ++i) {
      if (Status status = TryDecisive(corpus->NextDecisive()); !status.ok()) return status;
      note("edits that decide: " + std::to_string(usable_) + " of " +
           std::to_string(options_.decisive) + " pairs");
    }
    return std::move(found_);
  }

 private:
  // A pair of a group with its exact run.
  struct Case {
    const CalibrationPair* pair = nullptr;
    std::vector<TokenId> tokens;
    ExactRun exact;
    PairOutcome outcome;  // what the exact run says
  };

  // The calibration has measured it, unless the experiments stand alone.
  Status MeasureRow(const CalibrationGroup& group) {
    row_us_ = figures_.prefill_us_per_row;
    if (row_us_ > 0) return Status::Ok();
    auto cache = NewCache(nullptr);
    if (!cache.ok()) return cache.status();
    const auto tokens = TokensOf(group.donor, group.start);
    if (!tokens.ok()) return tokens.status();
    const auto us = PrefillUsPerRow(*runner_, **cache, *tokens, options_.threads);
    if (!us.ok()) return us.status();
    row_us_ = *us;
    return Status::Ok();
  }

  Result<std::unique_ptr<Cache>> NewCache(const ReuseVariant* variant) const {
    CacheOptions options;
    options.shape = model_.kv_shape();
    options.model_fingerprint = model_.fingerprint();
    options.budget_bytes = 4 * uint64_t{options_.context} / options.shape.tokens_per_block *
                           options.shape.page_bytes();
    if (variant == nullptr) return CreateCache(std::move(options));
    options.similar = figures_.ladder[figures_.choice.setting].options;
    options.similar.mode = variant->mode;
    options.similar.max_reuse_distance = variant->distance;
    options.similar.wasted_compute_share = 1;
    options.similar.always_shadowed = 0;
    options.similar.shadow_share = 0;
    options.similar_model = DescribeForSimilar(model_);
    options.similar_model.prefill_us_per_row = row_us_;
    for (SimilarTrials& trials : options.similar_model.calibrated) trials.trials = 100'000;
    return CreateCache(std::move(options));
  }

  Result<std::vector<TokenId>> TokensOf(const std::vector<model::ChatMessage>& messages,
                                        const std::string& start) const {
    const auto text = model_.tokenizer().ApplyChatTemplate(messages, "", true);
    if (!text.ok()) return text.status();
    return model_.tokenizer().Encode(*text + start, true, true);
  }

  // Runs pairs of the group exactly, up to `most`; those that `wants` knows by their kind.
  template <typename Wants>
  Result<std::vector<Case>> RunExact(const CalibrationGroup& group, size_t most, Wants wants) {
    auto exact_cache = NewCache(nullptr);
    if (!exact_cache.ok()) return exact_cache.status();
    std::vector<Case> cases;
    for (const CalibrationPair& pair : group.pairs) {
      if (cases.size() == most) break;
      if (!wants(pair.kind)) continue;
      auto tokens = TokensOf(pair.messages, pair.start);
      if (!tokens.ok()) return tokens.status();
      if (tokens->size() + kForced > options_.context) continue;
      auto exact = RunExactly(*runner_, **exact_cache, *tokens);
      if (!exact.ok()) return exact.status();
      const std::string said = pair.Said(GreedyAnswer(model_.tokenizer(), exact->tokens));
      Case one{&pair, *std::move(tokens), *std::move(exact), {}};
      one.outcome.kind = pair.kind;
      one.outcome.place = pair.place;
      one.outcome.is_forced = !pair.start.empty();
      one.outcome.exact_has_fact = Decides(pair.kind) && Holds(said, pair.fact);
      one.outcome.exact_has_donor_fact = Decides(pair.kind) && Holds(said, pair.donor_fact);
      cases.push_back(std::move(one));
    }
    return cases;
  }

  // Calls `use(case, outcome)` of each case on the donor's rows, in the variant's mode.
  template <typename Use>
  Status TryVariant(std::span<const TokenId> donor, std::span<const Case> cases,
                    ReuseVariant* variant, Use use) {
    if (!variant->refused.empty()) return Status::Ok();
    auto cache = NewCache(variant);
    if (!cache.ok()) {
      variant->refused = cache.status().message();
      return Status::Ok();
    }
    if (Status status = Lend(*runner_, **cache, donor); !status.ok()) return status;
    for (const Case& one : cases) {
      const CalibrationPair& pair = *one.pair;
      auto trial = TrySimilar(*runner_, **cache, one.tokens, one.exact, Decides(pair.kind));
      if (!trial.ok()) return trial.status();
      PairOutcome outcome = one.outcome;
      outcome.trial = *std::move(trial);
      if (Decides(pair.kind)) {
        outcome.has_fact = Holds(pair.Said(outcome.trial.answer), pair.fact);
        outcome.has_donor_fact = Holds(pair.Said(outcome.trial.answer), pair.donor_fact);
      }
      use(one, std::move(outcome));
    }
    return Status::Ok();
  }

  Status TryAnyPairs(const CalibrationGroup& group) {
    const auto donor = TokensOf(group.donor, group.start);
    if (!donor.ok()) return donor.status();
    if (donor->size() + kForced > options_.context) return Status::Ok();
    const size_t most = std::min<size_t>(kOfOneGroup, options_.experiment_pairs - found_.pairs);
    // Kinds that the forward check nearly always lets through.
    const auto cases =
        RunExact(group, most, [](PairKind kind) { return kind != PairKind::kPassage; });
    if (!cases.ok()) return cases.status();
    if (cases->empty()) return Status::Ok();
    for (ReuseVariant& variant : found_.variants) {
      const Status status = TryVariant(
          *donor, *cases, &variant,
          [&](const Case& one, const PairOutcome& outcome) { Add(one, outcome, &variant); });
      if (!status.ok()) return status;
    }
    found_.pairs += static_cast<uint32_t>(cases->size());
    return Status::Ok();
  }

  void Add(const Case& one, const PairOutcome& outcome, ReuseVariant* variant) const {
    const SimilarTrial& trial = outcome.trial;
    if (!trial.was_planned) return;
    const auto exact_bytes = static_cast<double>(ExactBytes(model_.kv_shape(), trial));
    const auto added_bytes = static_cast<double>(trial.added_bytes);
    ++variant->planned;
    variant->compute_share += trial.compute_share;
    variant->modified_share += trial.modified_share;
    variant->cpu_s += trial.cpu_s;
    variant->exact_cpu_s += one.exact.row_cpu_s * (trial.prompt_rows - trial.exact_rows);
    variant->added_bytes += added_bytes;
    variant->exact_bytes += exact_bytes;
    variant->memory.emplace_back(100 * trial.modified_share, 100 * (1 - added_bytes / exact_bytes));
    if (!trial.is_accepted()) return;
    ++variant->accepted;
    variant->distances.push_back(trial.distance);
    variant->took_donor_fact += outcome.took_donor_fact() ? 1 : 0;
  }

  Status TryDecisive(const CalibrationGroup& group) {
    const auto donor = TokensOf(group.donor, group.start);
    if (!donor.ok()) return donor.status();
    if (donor->size() + kForced > options_.context) return Status::Ok();
    auto cases = RunExact(group, options_.decisive - usable_, Decides);
    if (!cases.ok()) return cases.status();
    std::erase_if(*cases, [](const Case& one) { return !one.outcome.is_usable(); });
    if (cases->empty()) return Status::Ok();
    for (ReuseVariant& variant : found_.variants) {
      if (!variant.is_usual) continue;
      const Status status =
          TryVariant(*donor, *cases, &variant, [&](const Case&, PairOutcome outcome) {
            variant.decisive.push_back(std::move(outcome));
          });
      if (!status.ok()) return status;
    }
    usable_ += static_cast<uint32_t>(cases->size());
    return Status::Ok();
  }

  const model::Model& model_;
  const CalibrationOptions& options_;
  const CalibrationFigures& figures_;
  std::optional<PromptRunner> runner_;
  double row_us_ = 0;
  uint32_t usable_ = 0;
  ModeExperiments found_;
};

}  // namespace

uint64_t ExactBytes(const KvShape& shape, const SimilarTrial& trial) {
  const uint64_t block = shape.tokens_per_block;
  // One row more has room, as for a borrower's first token.
  const uint64_t pages = (trial.prompt_rows + block) / block - trial.exact_rows / block;
  return pages * shape.page_bytes();
}

Result<ModeExperiments> CompareModes(const model::Model& model, const CalibrationOptions& options,
                                     const CalibrationFigures& figures,
                                     const std::function<void(const std::string&)>& note) {
  return Comparison(model, options, figures).Run(note);
}

}  // namespace kvlink::cli
