// What similar reuse refuses, gives up or gets wrong, and what looking up costs.
#include <algorithm>
#include <map>
#include <set>

#include "cli/doctor_checks.h"
#include "verify/error_bound.h"

namespace kvlink::cli {
namespace {

const std::set<std::string> kForward = {"mask_mismatch", "reordered", "few_rows", "too_much_work"};
const std::set<std::string> kBackward = {"garbled", "blast_radius", "diverged",
                                         "stale",   "score",        "timeout"};
const std::set<std::string> kAccepted = {"accepted", "enlarged"};

using Counts = std::map<std::string, size_t>;

Counts VerdictsOf(const DoctorCase& c, const std::set<std::string>& among) {
  Counts counts;
  for (const RequestFacts& request : c.facts.requests) {
    if (among.contains(request.verdict)) ++counts[request.verdict];
  }
  return counts;
}

size_t Total(const Counts& counts) {
  size_t total = 0;
  for (const auto& [name, count] : counts) total += count;
  return total;
}

const std::string& Commonest(const Counts& counts) {
  return std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })
      ->first;
}

std::string ListOf(const Counts& counts) {
  std::string list;
  for (const auto& [name, count] : counts) {
    list += (list.empty() ? "" : ", ") + name + " " + std::to_string(count);
  }
  return list;
}

Finding WithCounts(const char* id, const char* about, const Counts& counts) {
  Finding finding{id, about, "", "", "", {}, {}};
  for (const auto& [name, count] : counts) {
    finding.numbers.emplace_back(name, static_cast<double>(count));
  }
  return finding;
}

std::string ForwardSetting(const DoctorCase& c, const std::string& reason) {
  if (reason == "reordered") {
    return "Keep passages in one order (sort what retrieval returns); reordered passages change "
           "what every token saw.";
  }
  if (reason == "few_rows") return "Lower min_reused_rows in the calibration file.";
  if (reason == "too_much_work") {
    return "Put fewer edits into the prompt, or raise max_compute_share in the calibration file.";
  }
  char text[160];
  std::snprintf(text, sizeof text,
                "Move edits towards the end, or lower mask_similarity (now %.2f) in the "
                "calibration file in small steps and run kvlink calibrate again.",
                c.facts.setting("mask_similarity", SimilarOptions{}.mask_similarity));
  return text;
}

std::string BackwardSetting(const std::string& check) {
  if (check == "garbled") {
    return "Run kvlink calibrate for this very model file: rows that were lent do not fit "
           "(max_nll_increase, max_entropy_increase).";
  }
  if (check == "blast_radius") {
    return "Compute more rows behind edits (seam_rows, tail_rows), or leave such requests exact: "
           "\"kvlink\": {\"similar\": \"off\"}.";
  }
  if (check == "stale") {
    return "These edits decide the answer: send \"kvlink\": {\"similar\": \"off\"} with such "
           "requests.";
  }
  if (check == "score") return "Raise max_score in the calibration file, after a calibration.";
  if (check == "timeout") return "Give the server more threads, or lower --max-seqs.";
  return "Choose a stricter setting: more seam_rows and tail_rows, a smaller accept_blast_radius "
         "(kvlink calibrate does).";
}

void CheckWindow(const DoctorCase& c, std::vector<Finding>* findings) {
  if (c.facts.similar == "off" && !c.facts.lendable_rows) return;
  const auto window = static_cast<uint32_t>(
      c.facts.setting("fingerprint_window", SimilarOptions{}.fingerprint_window));
  const auto least =
      static_cast<uint32_t>(c.facts.setting("min_reused_rows", SimilarOptions{}.min_reused_rows));
  size_t unfound = 0, small = 0;
  std::vector<uint32_t> lengths;
  for (size_t i = 0; i < c.size(); ++i) {
    const RequestFacts& request = c.facts.requests[i];
    if (!c.LosesAlike(i, /*with_similar=*/true)) continue;
    lengths.push_back(request.prompt_tokens);
    unfound += request.verdict == "no_donor" ? 1 : 0;
    small += request.verdict == "nothing_to_gain" ? 1 : 0;
  }
  std::ranges::sort(lengths);
  const std::string median =
      lengths.empty() ? ""
                      : " (" + std::to_string(lengths[lengths.size() / 2]) + " tokens, median)";
  const size_t missed = std::max<size_t>(unfound, c.facts.found_only_narrow);
  const bool is_proved = c.facts.narrow_window == 0 || c.facts.found_only_narrow > 0;
  if (c.IsMany(missed, c.limits.request_share) && is_proved) {
    Finding finding{"window", "hits", "", "", "", {}, {}};
    finding.what = CountText(missed, c.size(), "prompts") + median +
                   " found no donor with windows of " + std::to_string(window);
    finding.what += c.facts.narrow_window > 0
                        ? ", and find one with windows of " + std::to_string(c.facts.narrow_window)
                        : ", although an earlier prompt is much the same";
    finding.what += ".";
    finding.why = "A run of equal tokens is certain to be found from window + 2 = " +
                  std::to_string(window + 2) +
                  " tokens on; short prompts, and prompts with edits everywhere, have few of them.";
    finding.setting = "Set fingerprint_window to 4 in the calibration file (\"options\").";
    finding.numbers = {{"requests", static_cast<double>(missed)},
                       {"window", window},
                       {"median_tokens", lengths.empty() ? 0 : lengths[lengths.size() / 2]}};
    findings->push_back(std::move(finding));
  }
  if (!c.IsMany(small, c.limits.request_share)) return;
  Finding finding{"short_prompts", "hits", "", "", "", {}, {}};
  finding.what = CountText(small, c.size(), "prompts") + median + " leave fewer than " +
                 std::to_string(least) + " rows to gain, so no donor is looked for.";
  finding.setting =
      "Lower min_reused_rows in the calibration file (\"options\"), if such short "
      "prompts are worth it.";
  finding.numbers = {{"requests", static_cast<double>(small)}, {"min_reused_rows", least}};
  findings->push_back(std::move(finding));
}

void CheckShadows(const DoctorCase& c, std::vector<Finding>* findings) {
  for (const auto& [edit, trials] : c.facts.shadows) {
    if (trials.trials == 0 || trials.failures == 0) continue;
    const double allowed = c.facts.setting("max_false_accepts", c.limits.wrong_accepts);
    const double bound =
        verify::UpperErrorBound(trials.failures, trials.trials, c.limits.confidence);
    if (bound <= allowed) continue;
    Finding finding{"wrong_accepts", "quality", "", "", "", {{"class", edit}}, {}};
    char text[200];
    std::snprintf(text, sizeof text,
                  "Of %llu answers from similar rows with edits of class %s that were tried again "
                  "exactly, %llu disagreed: at most %.1f %% are wrong, %.1f %% are allowed.",
                  static_cast<unsigned long long>(trials.trials), edit.c_str(),
                  static_cast<unsigned long long>(trials.failures), 100 * bound, 100 * allowed);
    finding.what = text;
    finding.why = "The server closes such a class by itself when the bound is proved broken.";
    finding.setting =
        "Start with --similar strict, or run kvlink calibrate on prompts of your own (--prompts) "
        "and leave the class out (--classes); for sensitive requests send \"kvlink\": "
        "{\"similar\": \"off\"}.";
    finding.numbers = {{"shadows", static_cast<double>(trials.trials)},
                       {"failures", static_cast<double>(trials.failures)},
                       {"bound", bound}};
    findings->push_back(std::move(finding));
  }
}

}  // namespace

std::vector<Finding> FindRefusals(const DoctorCase& c) {
  std::vector<Finding> findings;
  CheckWindow(c, &findings);
  const Counts forward = VerdictsOf(c, kForward);
  const size_t refused = Total(forward);
  const size_t donors = refused + Total(VerdictsOf(c, kBackward)) + Total(VerdictsOf(c, kAccepted));
  if (refused >= c.limits.min_requests &&
      static_cast<double>(refused) >= c.limits.refused_share * static_cast<double>(donors)) {
    Finding finding = WithCounts("forward_check", "hits", forward);
    finding.what = "Of " + std::to_string(donors) +
                   " prompts with a donor the forward check "
                   "refused " +
                   std::to_string(refused) + ": " + ListOf(forward) + ".";
    finding.why = "The donor's rows were computed in too different a context.";
    finding.setting = ForwardSetting(c, Commonest(forward));
    findings.push_back(std::move(finding));
  }
  const Counts closed = VerdictsOf(c, {"cluster_closed", "uncalibrated", "attention"});
  if (c.IsMany(Total(closed), c.limits.request_share)) {
    Finding finding = WithCounts("similar_closed", "hits", closed);
    finding.what = CountText(Total(closed), c.size(), "prompts") +
                   " are of a kind that similar reuse is closed for: " + ListOf(closed) + ".";
    finding.why = "Calibration did not open the class, or answers of this kind failed too often.";
    finding.setting = Commonest(closed) == "attention"
                          ? "Nothing: this model's attention does not permit it; --similar off."
                          : "Run kvlink calibrate with more pairs (--pairs), and with prompts of "
                            "your own (--prompts).";
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> FindQuality(const DoctorCase& c) {
  std::vector<Finding> findings;
  const Counts backward = VerdictsOf(c, kBackward);
  const size_t given_up = Total(backward);
  const size_t attempts = given_up + Total(VerdictsOf(c, kAccepted));
  if (given_up >= c.limits.min_requests &&
      static_cast<double>(given_up) >= c.limits.fallback_share * static_cast<double>(attempts)) {
    Counts classes;
    for (const RequestFacts& request : c.facts.requests) {
      if (kBackward.contains(request.verdict)) {
        ++classes[request.edit.empty() ? "unknown" : request.edit];
      }
    }
    Finding finding = WithCounts("fallbacks", "quality", backward);
    finding.what = "Of " + std::to_string(attempts) + " answers from similar rows " +
                   std::to_string(given_up) +
                   " were given up by the backward check: " + ListOf(backward) +
                   "; by class of edits: " + ListOf(classes) + ".";
    finding.why = "They were computed again exactly: right, but at the cost of the attempt.";
    finding.setting = BackwardSetting(Commonest(backward));
    finding.texts = {{"check", Commonest(backward)}, {"class", Commonest(classes)}};
    findings.push_back(std::move(finding));
  }
  CheckShadows(c, &findings);
  const Counts budget = VerdictsOf(c, {"budget"});
  if (c.IsMany(Total(budget), c.limits.request_share)) {
    Finding finding = WithCounts("attempt_budget", "quality", budget);
    finding.what = CountText(Total(budget), c.size(), "prompts") +
                   " were not tried because failed attempts have used up their share of compute.";
    finding.setting =
        "Mend what makes attempts fail first; else raise wasted_compute_share in the "
        "calibration file.";
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> FindMatchingTime(const DoctorCase& c, double match_share) {
  if (c.size() < c.limits.min_requests || match_share <= c.limits.match_share) return {};
  // The median: one lookup that the system interrupted is no finding.
  std::vector<double> times_ms;
  for (const RequestFacts& request : c.facts.requests) times_ms.push_back(request.match_ms);
  const auto middle = times_ms.begin() + static_cast<std::ptrdiff_t>(times_ms.size() / 2);
  std::ranges::nth_element(times_ms, middle);
  const double median_ms = *middle;
  if (median_ms < c.limits.match_ms) return {};
  Finding finding{"matching_time", "time", "", "", "", {}, {}};
  char text[160];
  std::snprintf(
      text, sizeof text,
      "Looking prompts up takes %.2f ms a request (median), %.1f %% of the time to the first "
      "token (%.0f %% is normal at most).",
      median_ms, 100 * match_share, 100 * c.limits.match_share);
  finding.what = text;
  finding.setting =
      c.facts.similar == "off"
          ? "Requests that wait are looked up again every step: allow more at once (--max-seqs)."
          : "Widen fingerprint_window in the calibration file (16 halves the anchors), lower "
            "max_edit_share, or start with --similar off where donors are rare.";
  finding.numbers = {{"match_ms", median_ms}, {"share", match_share}};
  return {std::move(finding)};
}

}  // namespace kvlink::cli
