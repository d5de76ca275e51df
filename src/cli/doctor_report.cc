#include "cli/doctor_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/byte_size.h"
#include "cli/kv_budget.h"

namespace kvlink::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWidth = 98;

// Words of `text` in lines of kWidth, each behind `indent`; the first line's indent is there
// already.
std::string Wrapped(std::string_view text, size_t indent) {
  std::string lines;
  size_t column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column > indent && column + 1 + end > kWidth) {
      lines += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      lines += ' ';
      ++column;
    }
    lines += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines + "\n";
}

std::string Line(const char* label, const std::string& text) {
  char start[16];
  std::snprintf(start, sizeof start, "  %-10s", label);
  return start + Wrapped(text, 12);
}

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string FiguresText(const DoctorFacts& facts, const Diagnosis& diagnosis) {
  std::string text = Line(
      "prompts", std::to_string(diagnosis.requests) + " of " + Grouped(diagnosis.shortest_prompt) +
                     " to " + Grouped(diagnosis.longest_prompt) + " tokens, median " +
                     Grouped(diagnosis.median_prompt) + "; " + Percent(diagnosis.alike_share) +
                     " are much like an earlier one");
  text += Line("hits", Percent(diagnosis.hit_rate) + " of the prompt tokens; rows of similar " +
                           "prompts (" + facts.similar + ") " + Percent(diagnosis.similar_rate));
  if (facts.budget_bytes > 0) {
    text += Line("memory", FormatByteSize(facts.budget_bytes) + " for KV; " +
                               Grouped(facts.stored_blocks) + " full blocks were stored, " +
                               Grouped(facts.evicted_blocks) + " blocks evicted, partial ones too");
  }
  text += Line("matching", Percent(diagnosis.match_share) + " of the time to the first token");
  return text;
}

}  // namespace

std::string DiagnosisText(const DoctorFacts& facts, const Diagnosis& diagnosis) {
  std::string text = "kvlink doctor: " + facts.source + "\n" + FiguresText(facts, diagnosis) + "\n";
  size_t number = 0;
  for (const Finding& finding : diagnosis.findings) {
    text += std::to_string(++number) + ". " + finding.id + " (" + finding.about + ")\n";
    text += Line("what", finding.what);
    if (!finding.why.empty()) text += Line("why", finding.why);
    text += Line("change", finding.setting) + "\n";
  }
  for (const std::string& note : diagnosis.notes) text += Line("note", note);
  if (diagnosis.findings.empty()) text += "Nothing to change.\n";
  return text;
}

ordered_json DiagnosisJson(const DoctorFacts& facts, const Diagnosis& diagnosis) {
  ordered_json findings = ordered_json::array();
  for (const Finding& finding : diagnosis.findings) {
    ordered_json evidence = ordered_json::object();
    for (const auto& [name, text] : finding.texts) {
      if (evidence.contains(name)) {  // several of one name: a list
        if (!evidence[name].is_array()) evidence[name] = ordered_json::array({evidence[name]});
        evidence[name].push_back(text);
      } else {
        evidence[name] = text;
      }
    }
    for (const auto& [name, number] : finding.numbers) evidence[name] = number;
    findings.push_back({{"id", finding.id},
                        {"about", finding.about},
                        {"what", finding.what},
                        {"why", finding.why},
                        {"setting", finding.setting},
                        {"evidence", evidence}});
  }
  return {{"source", facts.source},
          {"healthy", diagnosis.findings.empty()},
          {"figures",
           {{"requests", diagnosis.requests},
            {"prompt_tokens", diagnosis.prompt_tokens},
            {"median_prompt", diagnosis.median_prompt},
            {"shortest_prompt", diagnosis.shortest_prompt},
            {"longest_prompt", diagnosis.longest_prompt},
            {"alike_share", diagnosis.alike_share},
            {"hit_rate", diagnosis.hit_rate},
            {"similar_rate", diagnosis.similar_rate},
            {"match_share", diagnosis.match_share},
            {"evicted_blocks", facts.evicted_blocks},
            {"preemptions", facts.preemptions}}},
          {"findings", findings},
          {"notes", diagnosis.notes}};
}

}  // namespace kvlink::cli
