#include "cli/calibrate_report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <map>

#include "cli/bench_report.h"
#include "cli/calibrate_decisive.h"
#include "verify/error_bound.h"

namespace kvlink::cli {
namespace {

constexpr size_t kClasses = static_cast<size_t>(EditClass::kCount);

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

// A share of rows or requests; a dash where there are none.
std::string Percent(double part, double whole) {
  return whole > 0 ? Format("%.1f %%", 100 * part / whole) : "-";
}

using Filter = std::function<bool(const PairOutcome&)>;

struct Sums {
  size_t pairs = 0, planned = 0, accepted = 0, enlarged = 0, failures = 0;
  double computed = 0;  // sum of shares of those planned; a refused one computes all, too
  std::vector<Distance> distances;
};

Sums SumOf(const std::vector<PairOutcome>& outcomes, const Filter& filter, double tie_gap = 0) {
  Sums sums;
  for (const PairOutcome& outcome : outcomes) {
    if (!filter(outcome)) continue;
    const SimilarTrial& trial = outcome.trial;
    ++sums.pairs;
    if (!trial.was_planned) continue;
    ++sums.planned;
    sums.enlarged += trial.was_enlarged ? 1 : 0;
    sums.failures += outcome.failed(tie_gap) ? 1 : 0;
    sums.computed += trial.computed_share() + (trial.is_accepted() ? 0 : 1);
    if (!trial.is_accepted()) continue;
    ++sums.accepted;
    sums.distances.push_back(trial.distance);
  }
  return sums;
}

std::string DistanceCells(const DistanceSummary& summary) {
  if (summary.count == 0) return "- | - | - | - | - | -";
  return Format("%.1e | %.1e | %.1e | %.1f %% | %zu | %.2f", summary.mean_first_kl,
                summary.p95_first_kl, summary.mean_kl, 100 * summary.top1, summary.flips,
                summary.largest_gap);
}

std::string ClassRow(const CalibrationFigures& figures, size_t setting, EditClass edit) {
  const auto is_of_class = [&](const PairOutcome& outcome) {
    return outcome.trial.was_planned && outcome.trial.edit == edit;
  };
  const Sums sums = SumOf(figures.outcomes[setting], is_of_class, figures.tie_gap);
  const Sums every_flip = SumOf(figures.outcomes[setting], is_of_class, 0);
  const SimilarOptions& options = figures.ladder[setting].options;
  const auto bound = [&](uint64_t failures) {
    return 100 * verify::UpperErrorBound(failures, sums.accepted, options.confidence);
  };
  return Format(
      "| %s | %s | %zu | %zu | %zu | %s | %s | %zu | %.1f %% | %.1f %% | %s |\n",
      figures.ladder[setting].name.c_str(), EditClassName(edit), sums.planned, sums.accepted,
      sums.enlarged, Percent(sums.computed, static_cast<double>(sums.planned)).c_str(),
      DistanceCells(Summarise(sums.distances)).c_str(), sums.failures, bound(sums.failures),
      bound(every_flip.failures), Passes({sums.accepted, sums.failures}, options) ? "yes" : "no");
}

constexpr const char* kClassHead =
    "| setting | class | tried | accepted | enlarged | rows computed | KL first, mean | p95 | KL "
    "of 16, mean | top-1 | first token flipped | largest gap | failures | bound | bound with every "
    "flip | passes |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

std::string KindTable(const CalibrationFigures& figures) {
  std::string text =
      "| edit | place | pairs | lent | accepted | rows computed | KL first, mean | p95 | KL of 16, "
      "mean | top-1 | first token flipped | largest gap "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  const auto& outcomes = figures.outcomes[figures.choice.setting];
  for (size_t kind = 0; kind < static_cast<size_t>(PairKind::kCount); ++kind) {
    for (size_t place = 0; place < static_cast<size_t>(EditPlace::kCount); ++place) {
      const Sums sums = SumOf(outcomes, [&](const PairOutcome& outcome) {
        return static_cast<size_t>(outcome.kind) == kind && !outcome.is_forced &&
               static_cast<size_t>(outcome.place) == place;
      });
      if (sums.pairs == 0) continue;
      text += Format(
          "| %s | %s | %zu | %zu | %zu | %s | %s |\n", PairKindName(static_cast<PairKind>(kind)),
          EditPlaceName(static_cast<EditPlace>(place)), sums.pairs, sums.planned, sums.accepted,
          Percent(sums.computed, static_cast<double>(sums.planned)).c_str(),
          DistanceCells(Summarise(sums.distances)).c_str());
    }
  }
  const Sums forced = SumOf(outcomes, [](const PairOutcome& outcome) { return outcome.is_forced; });
  if (forced.pairs > 0) {
    text += Format("| decides, start given | all | %zu | %zu | %zu | %s | %s |\n", forced.pairs,
                   forced.planned, forced.accepted,
                   Percent(forced.computed, static_cast<double>(forced.planned)).c_str(),
                   DistanceCells(Summarise(forced.distances)).c_str());
  }
  for (const bool shifted : {false, true}) {
    const Sums sums = SumOf(outcomes, [&](const PairOutcome& outcome) {
      return outcome.trial.was_planned && outcome.trial.is_shifted == shifted;
    });
    text += Format("| all | %s | %zu | %zu | %zu | %s | %s |\n", shifted ? "shifted" : "in place",
                   sums.pairs, sums.planned, sums.accepted,
                   Percent(sums.computed, static_cast<double>(sums.planned)).c_str(),
                   DistanceCells(Summarise(sums.distances)).c_str());
  }
  return text;
}

std::string ReasonTable(const CalibrationFigures& figures) {
  std::map<std::pair<std::string, SimilarReason>, size_t> counts;
  for (const PairOutcome& outcome : figures.outcomes[figures.choice.setting]) {
    const SimilarTrial& trial = outcome.trial;
    if (!trial.is_accepted()) {
      ++counts[{trial.was_planned ? "after running" : "before anything ran", trial.reason}];
    }
  }
  std::string text = "| refused | reason | pairs |\n|---|---|---|\n";
  for (const auto& [key, count] : counts) {
    text += Format("| %s | %s | %zu |\n", key.first.c_str(), SimilarReasonName(key.second), count);
  }
  return text;
}

std::string ClassList(const Choice& choice, bool passed) {
  std::string list;
  for (size_t i = 0; i < kClasses; ++i) {
    if (choice.passed[i] != passed) continue;
    list += (list.empty() ? "" : ", ") + std::string(EditClassName(static_cast<EditClass>(i)));
  }
  return list.empty() ? "none" : list;
}

std::string SettingList(const CalibrationFigures& figures) {
  std::string text;
  for (const CalibrationSetting& setting : figures.ladder) {
    const SimilarOptions& o = setting.options;
    text += Format(
        "- %s: seam_rows %u (shifted %u), tail_rows %u, blast radius accepted to %g and "
        "refused above %g\n",
        setting.name.c_str(), o.seam_rows, o.shifted_seam_rows, o.tail_rows, o.accept_blast_radius,
        o.refuse_blast_radius);
  }
  return text;
}

std::string ImageLines(const std::vector<ReportImage>& images) {
  std::string text;
  for (const ReportImage& image : images) {
    text += "![" + image.caption + "](" + image.file + ")\n\n";
  }
  return text;
}

}  // namespace

DistanceSummary Summarise(const std::vector<Distance>& distances) {
  DistanceSummary summary;
  summary.count = distances.size();
  if (distances.empty()) return summary;
  std::vector<double> first, mean;
  for (const Distance& distance : distances) {
    first.push_back(distance.first_kl);
    mean.push_back(distance.mean_kl);
    summary.top1 += distance.top1 / static_cast<double>(distances.size());
    summary.mean_first_kl += distance.first_kl / static_cast<double>(distances.size());
    summary.mean_kl += distance.mean_kl / static_cast<double>(distances.size());
    summary.flips += distance.same_first ? 0 : 1;
    summary.largest_gap = std::max(summary.largest_gap, distance.first_gap);
  }
  summary.p95_first_kl = Percentile(first, 0.95);
  summary.p95_mean_kl = Percentile(mean, 0.95);
  return summary;
}

std::string CalibrationTable(const CalibrationFigures& figures) {
  std::string text = Format(
      "setting %s; open: %s; closed: %s\n", figures.ladder[figures.choice.setting].name.c_str(),
      ClassList(figures.choice, true).c_str(), ClassList(figures.choice, false).c_str());
  text += Format("%-10s%10s%10s%10s%12s%12s%10s%8s\n", "class", "tried", "accepted", "failures",
                 "bound", "rows", "KL of 16", "top-1");
  for (size_t i = 0; i < kClasses; ++i) {
    const auto edit = static_cast<EditClass>(i);
    const Sums sums = SumOf(
        figures.outcomes[figures.choice.setting],
        [&](const PairOutcome& outcome) {
          return outcome.trial.was_planned && outcome.trial.edit == edit;
        },
        figures.tie_gap);
    const DistanceSummary summary = Summarise(sums.distances);
    const double bound = verify::UpperErrorBound(
        sums.failures, sums.accepted, figures.ladder[figures.choice.setting].options.confidence);
    text += Format("%-10s%10zu%10zu%10zu%10.1f %%%12s%10.1e%6.1f %%\n", EditClassName(edit),
                   sums.planned, sums.accepted, sums.failures, 100 * bound,
                   Percent(sums.computed, static_cast<double>(sums.planned)).c_str(),
                   summary.mean_kl, 100 * summary.top1);
  }
  return text + DecisiveLine(figures.outcomes[figures.choice.setting]);
}

std::string ExperimentReport(const model::ModelInfo& info, const CalibrationFigures& figures,
                             const std::vector<ReportImage>& images) {
  return "# Experiments with " + info.name + " (" + info.weight_type + ")\n\n" +
         Format(
             "Model digest %s, %u layers. Seed %llu, %.0f s of processor time. Made by `%s`.\n\n",
             info.digest.c_str(), info.num_layers, static_cast<unsigned long long>(figures.seed),
             figures.cpu_s, figures.command.c_str()) +
         ImageLines(images) + figures.experiments;
}

std::string CalibrationReport(const model::ModelInfo& info, const CalibrationFigures& figures,
                              const std::vector<ReportImage>& images) {
  const CalibrationSetting& chosen = figures.ladder[figures.choice.setting];
  std::string text = "# Calibration of " + info.name + " (" + info.weight_type + ")\n\n";
  text += Format(
      "Model digest %s, %u layers. %zu pairs, seed %llu, %.0f s of processor time, %.0f "
      "us a row of prefill. Made by `%s`.\n\n",
      info.digest.c_str(), info.num_layers, figures.outcomes.front().size(),
      static_cast<unsigned long long>(figures.seed), figures.cpu_s, figures.prefill_us_per_row,
      figures.command.c_str());
  text += Format(
      "**Setting %s. Open: %s. Closed: %s.** A class is open when its wrong accepts are "
      "at most %.1f %% at %.0f %% confidence (Clopper and Pearson, one-sided).\n\n",
      chosen.name.c_str(), ClassList(figures.choice, true).c_str(),
      ClassList(figures.choice, false).c_str(), 100 * chosen.options.max_false_accepts,
      100 * chosen.options.confidence);
  text += Format(
      "A wrong accept is an accepted answer whose first token the exact run likes less than its "
      "own "
      "by more than the tie gap, whose first distribution is more than %g nats (KL) from the exact "
      "one, or that holds the donor's fact where the exact answer does not. The tie gap of this "
      "model is %.3f nats: %s. Rows computed count what ran for the attempt, of the rows that "
      "exact "
      "reuse would run; a refused attempt counts its rows and all of them again. \"Largest gap\": "
      "by "
      "how much the exact run preferred its own first token where another one came.\n\n",
      kMostFirstKl, figures.tie_gap,
      figures.noise.empty()
          ? "no noise was measured, so every flip counts"
          : Format("in %.0f %% of the cases the model's own noise moves the difference between the "
                   "two most likely tokens by less",
                   100 * kTieShare)
                .c_str());
  if (!figures.noise.empty()) {
    text += Format(
        "Noise floor, exact runs of %s, %zu prompts:\n\n| KL first, mean "
        "| p95 | KL of 16, mean | top-1 | first token flipped | largest gap "
        "|\n|---|---|---|---|---|---|\n"
        "| %s |\n\nAnother chunking gives the same bits, so its noise is 0.\n\n",
        figures.noise_name.c_str(), figures.noise.size(),
        DistanceCells(Summarise(figures.noise)).c_str());
  }
  text += ImageLines(images);
  text += "## Settings and classes\n\nStrictest first; a class leaves at its first failure.\n\n" +
          SettingList(figures) + "\n" + kClassHead;
  for (size_t setting = 0; setting < figures.ladder.size(); ++setting) {
    for (size_t edit = 0; edit < kClasses; ++edit) {
      text += ClassRow(figures, setting, static_cast<EditClass>(edit));
    }
  }
  text += "\n## Kinds of edits at the chosen setting\n\n" + KindTable(figures);
  text +=
      "\n## Edits that decide\n\nThe second prompt asks for the fact that was edited. Where the "
      "answer's start is given, the model goes on behind words that stand before the fact in the "
      "prompt, so that even a small one shows which fact it sees; some of the donors were asked "
      "the same question. All these pairs count as trials of their classes, too.\n\n" +
      DecisiveSection(figures.outcomes[figures.choice.setting]);
  text += "\n## Refused\n\n" + ReasonTable(figures);
  text += figures.experiments;
  text +=
      "\n## What a closed class means\n\nRequests of a closed class are answered exactly "
      "(reason cluster_closed); they cost what exact reuse costs. More pairs tighten the bound "
      "of a class that has few failures; a class that fails often stays closed, whatever the "
      "number of pairs.\n";
  return text;
}

}  // namespace kvlink::cli
