#include "cli/calibrate_experiments.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/calibrate_window.h"
#include "cli/similar_setup.h"
#include "verify/reuse_mode.h"

namespace kvlink::cli {
namespace {

constexpr uint32_t kMostPairs = 24;
constexpr uint64_t kOtherSeed = 1000;  // other pairs than those of the calibration
constexpr double kMiB = 1024.0 * 1024.0;

// A mode and how many layers in a row may keep the donor's K and V.
struct Variant {
  ReuseMode mode = ReuseMode::kSeam;
  uint32_t distance = 0;
  std::string refused;  // by the cache, in its words
  uint32_t planned = 0, accepted = 0, took_donor_fact = 0;
  double compute_share = 0, modified_share = 0, cpu_s = 0, exact_cpu_s = 0;
  double added_bytes = 0, donor_bytes = 0;
  std::vector<Distance> distances;
};

std::vector<Variant> VariantsOf(uint32_t num_layers) {
  std::vector<Variant> variants = {{ReuseMode::kSeam, num_layers}, {ReuseMode::kBlend, num_layers}};
  for (const ReuseMode mode : {ReuseMode::kLayered, ReuseMode::kAnchored}) {
    for (const uint32_t distance : {3u, 7u, 15u, 22u}) {
      if (distance < num_layers) variants.push_back({mode, distance});
    }
  }
  return variants;
}

uint64_t HeldBytes(const Cache& cache) {
  const CacheStats stats = cache.Stats();
  return (stats.total_pages - stats.free_pages) * stats.page_bytes;
}

class Modes {
 public:
  Modes(const model::Model& model, const CalibrationOptions& options,
        const CalibrationFigures& figures)
      : model_(model),
        options_(options),
        figures_(figures),
        variants_(VariantsOf(model.info().num_layers)) {}

  Status Run(const std::function<void(const std::string&)>& note) {
    auto runner = PromptRunner::Create(model_, options_.threads, options_.chunk);
    if (!runner.ok()) return runner.status();
    runner_.emplace(*std::move(runner));
    auto corpus = Corpus::Parse(CalibrationTemplates(), options_.seed + kOtherSeed);
    if (!corpus.ok()) return corpus.status();
    const uint32_t most = std::min(kMostPairs, 2 * options_.accepts);
    for (uint32_t i = 0; pairs_ < most && i < most; ++i) {
      // Half of them decide: there a mode that keeps too much shows it.
      const CalibrationGroup group = i % 2 == 0 ? corpus->Next() : corpus->NextDecisive();
      if (Status status = TryGroup(group, most); !status.ok()) return status;
      note("modes: " + std::to_string(pairs_) + " of " + std::to_string(most) + " pairs");
    }
    return Status::Ok();
  }

  std::string Table() const {
    std::string text =
        "| mode | distance | lent | accepted | cells computed | cells modified | KL first, mean | "
        "KL of 16, mean | p95 | top-1 | donor's fact | time, of exact | KV added, MiB | KV of a "
        "donor, MiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (const Variant& variant : variants_) text += Row(variant);
    return text;
  }
  uint32_t pairs() const { return pairs_; }

 private:
  Result<std::unique_ptr<Cache>> NewCache(const Variant* variant) const {
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
    options.similar_model.prefill_us_per_row = figures_.prefill_us_per_row;
    for (SimilarTrials& trials : options.similar_model.calibrated) trials.trials = 100'000;
    return CreateCache(std::move(options));
  }

  Result<std::vector<TokenId>> TokensOf(const std::vector<model::ChatMessage>& messages,
                                        const std::string& start) const {
    const auto text = model_.tokenizer().ApplyChatTemplate(messages, "", true);
    if (!text.ok()) return text.status();
    return model_.tokenizer().Encode(*text + start, true, true);
  }

  // A pair of the group with its exact run.
  struct Case {
    const CalibrationPair* pair = nullptr;
    std::vector<TokenId> tokens;
    ExactRun exact;
    bool exact_has_donor_fact = false;
  };

  Status TryGroup(const CalibrationGroup& group, uint32_t most) {
    auto donor = TokensOf(group.donor, group.start);
    if (!donor.ok()) return donor.status();
    if (donor->size() + kForced > options_.context) return Status::Ok();
    auto exact_cache = NewCache(nullptr);
    if (!exact_cache.ok()) return exact_cache.status();
    std::vector<Case> cases;
    for (const CalibrationPair& pair : group.pairs) {
      constexpr size_t kOfOneGroup = 4;
      if (cases.size() == kOfOneGroup || pairs_ + cases.size() == most) break;
      // Kinds that the forward check nearly always lets through.
      if (pair.kind == PairKind::kPassage) continue;
      auto tokens = TokensOf(pair.messages, pair.start);
      if (!tokens.ok()) return tokens.status();
      if (tokens->size() + kForced > options_.context) continue;
      auto exact = RunExactly(*runner_, **exact_cache, *tokens);
      if (!exact.ok()) return exact.status();
      const std::string answer = model_.tokenizer().Decode(exact->tokens, false);
      cases.push_back({&pair, *std::move(tokens), *std::move(exact),
                       Holds(pair.Said(answer), pair.donor_fact)});
    }
    for (Variant& variant : variants_) {
      if (!variant.refused.empty()) continue;
      if (Status status = TryVariant(*donor, cases, &variant); !status.ok()) return status;
    }
    pairs_ += static_cast<uint32_t>(cases.size());
    return Status::Ok();
  }

  Status TryVariant(std::span<const TokenId> donor, std::span<const Case> cases, Variant* variant) {
    auto cache = NewCache(variant);
    if (!cache.ok()) {
      variant->refused = cache.status().message();
      return Status::Ok();
    }
    if (Status status = Lend(*runner_, **cache, donor); !status.ok()) return status;
    const auto donor_bytes = static_cast<double>(HeldBytes(**cache));
    for (const Case& one : cases) {
      auto trial = TrySimilar(*runner_, **cache, one.tokens, one.exact, Decides(one.pair->kind));
      if (!trial.ok()) return trial.status();
      if (!trial->was_planned) continue;
      ++variant->planned;
      variant->donor_bytes += donor_bytes;
      variant->compute_share += trial->compute_share;
      variant->modified_share += trial->modified_share;
      variant->cpu_s += trial->cpu_s;
      variant->exact_cpu_s += one.exact.row_cpu_s * (trial->prompt_rows - trial->exact_rows);
      variant->added_bytes += static_cast<double>(trial->added_bytes);
      if (!trial->is_accepted()) continue;
      ++variant->accepted;
      variant->distances.push_back(trial->distance);
      if (Decides(one.pair->kind)) {
        variant->took_donor_fact +=
            !one.exact_has_donor_fact && Holds(one.pair->Said(trial->answer), one.pair->donor_fact);
      }
    }
    return Status::Ok();
  }

  static std::string Row(const Variant& variant) {
    const std::string start = std::string("| ") + verify::ReuseModeName(variant.mode) + " | " +
                              std::to_string(variant.distance) + " | ";
    if (!variant.refused.empty()) {
      return start + "refused: " + variant.refused + " | | | | | | | | | | | |\n";
    }
    if (variant.planned == 0) return start + "0 | | | | | | | | | | | |\n";
    const DistanceSummary summary = Summarise(variant.distances);
    const double n = variant.planned;
    char text[300];
    std::snprintf(
        text, sizeof text,
        "%u | %u | %.1f %% | %.1f %% | %.1e | %.1e | %.1e | %.1f %% | %u | %.0f %% | %.1f "
        "| %.1f |\n",
        variant.planned, variant.accepted, 100 * variant.compute_share / n,
        100 * variant.modified_share / n, summary.mean_first_kl, summary.mean_kl,
        summary.p95_mean_kl, 100 * summary.top1, variant.took_donor_fact,
        100 * variant.cpu_s / variant.exact_cpu_s, variant.added_bytes / n / kMiB,
        variant.donor_bytes / n / kMiB);
    return start + text;
  }

  const model::Model& model_;
  const CalibrationOptions& options_;
  const CalibrationFigures& figures_;
  std::optional<PromptRunner> runner_;
  std::vector<Variant> variants_;
  uint32_t pairs_ = 0;
};

// The sentences of the corpus as token ids.
Result<std::vector<std::vector<TokenId>>> SentencesOf(const model::Tokenizer& tokenizer) {
  auto corpus = Corpus::Parse(CalibrationTemplates(), 1);
  if (!corpus.ok()) return corpus.status();
  std::vector<std::vector<TokenId>> sentences;
  for (const std::string& text : corpus->Texts()) {
    for (size_t from = 0; from < text.size();) {
      const size_t stop = text.find(". ", from);
      const size_t end = stop == std::string::npos ? text.size() : stop + 1;
      sentences.push_back(tokenizer.Encode(" " + text.substr(from, end - from), false, false));
      from = std::min(end + 1, text.size());
    }
  }
  return sentences;
}

}  // namespace

Result<std::string> RunExperiments(const model::Model& model, const CalibrationOptions& options,
                                   const CalibrationFigures& figures,
                                   const std::function<void(const std::string&)>& note) {
  const auto sentences = SentencesOf(model.tokenizer());
  if (!sentences.ok()) return sentences.status();
  const SimilarModel described = DescribeForSimilar(model);
  const match::NormalTokens classes(described.token_texts);
  const WindowOptions window_options;
  note("windows");
  const auto windows = MeasureWindows(*sentences, classes, window_options);
  Modes modes(model, options, figures);
  if (Status status = modes.Run(note); !status.ok()) return status;
  return "\n## Experiment: window against length\n\nRetrieval alone: no model runs. Each prompt's "
         "donor lies among twice as many strangers made of the same sentences.\n\n" +
         WindowTables(windows, window_options) +
         "What this shows: how narrow a window must be for edits so dense, and that the length of "
         "a "
         "prompt matters only below some hundred tokens, where few windows lie between the edits. "
         "A "
         "run of window + 2 equal tokens is certain to share an anchor, but how long it is shows "
         "only "
         "between its first and last one: the wider the window, the shorter it seems, and what "
         "seems "
         "shorter than min_run = 16 tokens counts for nothing. So in short prompts narrower "
         "windows "
         "than 14 find more. What this cannot show: anything about the model. Retrieval sees token "
         "ids, so two models of different widths with one vocabulary give the same tables, number "
         "for number; with other vocabularies the same text has other lengths, and nothing else "
         "changes. That a wider model wants a wider window is therefore no rule of retrieval: the "
         "window does not touch quality, which the checks decide on raw ids.\n"
         "\n## Experiment: reuse distance\n\n" +
         std::to_string(modes.pairs()) +
         " pairs, the same for every row, with the rows, checks and bounds of the chosen setting. "
         "Distance: the most layers in a row that keep the donor's K and V. Time: processor time "
         "to the first token, of what exact reuse takes; refused attempts count without the exact "
         "run that follows. KV added: pages beside the donor's.\n\n" +
         modes.Table();
}

}  // namespace kvlink::cli
