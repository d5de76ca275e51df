#include "cli/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/byte_size.h"

namespace kvlink::cli {
namespace {

using nlohmann::ordered_json;

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

template <typename Visit>
void ForEachTurn(const WorkloadRun& run, Visit visit) {
  for (const auto& conversation : run.outcomes) {
    for (const TurnOutcome& outcome : conversation) visit(outcome);
  }
}

ordered_json ModeJson(const ModeFigures& figures) {
  ordered_json json = {{"requests", figures.requests},
                       {"errors", figures.errors},
                       {"wall_s", figures.wall_s},
                       {"cpu_s", figures.cpu_s},
                       {"req_per_s", figures.req_per_s},
                       {"gen_tok_per_s", figures.gen_tok_per_s},
                       {"prompt_tokens", figures.prompt_tokens},
                       {"cached_tokens", figures.cached_tokens},
                       {"computed_tokens", figures.computed_tokens},
                       {"ttft_mean", figures.ttft_mean},
                       {"ttft_p50", figures.ttft_p50},
                       {"ttft_p95", figures.ttft_p95},
                       {"itl_p50", figures.itl_p50},
                       {"itl_p95", figures.itl_p95},
                       {"latency_mean", figures.latency_mean},
                       {"latency_p50", figures.latency_p50},
                       {"latency_p95", figures.latency_p95},
                       {"deadline_missed", figures.deadline_missed},
                       {"hit_rate", figures.hit_rate}};
  if (figures.client_cpu_share) json["client_cpu_share"] = *figures.client_cpu_share;
  if (figures.engine) {
    json["peak_kv_bytes"] = figures.engine->peak_kv_bytes;
    json["running_at_peak"] = figures.engine->running_at_peak;
    json["cached_bytes"] = figures.engine->cached_bytes;
    json["rss_bytes"] = figures.engine->rss_bytes;
    json["match_share"] = figures.engine->match_share;
    json["tracking_share"] = figures.engine->tracking_share;
  }
  if (figures.loads) {
    const LoadFigures& loads = *figures.loads;
    json["loads"] = loads.loads;
    json["failed_loads"] = loads.failed_loads;
    json["loaded_tokens"] = loads.loaded_tokens;
    json["unwritten_blocks"] = loads.unwritten_blocks;
    json["tiers"] = ordered_json::object();
    for (const TierFigures& tier : loads.tiers) {
      json["tiers"][tier.name] = {{"hits", tier.hits},
                                  {"stored", tier.stored},
                                  {"dropped", tier.dropped},
                                  {"bytes_read", tier.bytes_read},
                                  {"bytes_written", tier.bytes_written},
                                  {"load_latency_us", tier.latency_us},
                                  {"load_bytes_per_s", tier.bytes_per_s}};
    }
  }
  if (figures.similar) {
    const SimilarFigures& similar = *figures.similar;
    if (similar.foreign_calibration) json["foreign_calibration"] = true;
    json["similar_tokens"] = similar.similar_tokens;
    json["accepted"] = similar.accepted;
    json["enlarged"] = similar.enlarged;
    json["rejected"] = similar.rejected;
    json["fallbacks"] = similar.fallbacks;
    json["similar_match_share"] =
        Share(static_cast<double>(similar.match_ns) * 1e-9, figures.wall_s);
    json["shadow_tokens"] = similar.shadow_tokens;
    json["shadows"] = similar.shadows;
    json["shadow_failures"] = similar.shadow_failures;
    json["compared"] = similar.compared;
    const auto measured = [&](double value) {
      return similar.compared > 0 ? ordered_json(value) : ordered_json(nullptr);
    };
    json["mean_kl"] = measured(similar.mean_kl);
    json["p95_kl"] = measured(similar.p95_kl);
    json["top1_agreement"] = measured(similar.top1_agreement);
    json["first_agreement"] = measured(similar.first_agreement);
  }
  return json;
}

// A figure of a mode, where the mode has it.
using Figure = std::function<std::optional<double>(const ModeFigures&)>;

template <typename T>
Figure Of(T ModeFigures::*member) {
  return [member](const ModeFigures& f) {
    return std::optional<double>(static_cast<double>(f.*member));
  };
}
template <typename T>
Figure OfEngine(T EngineFigures::*member) {
  return [member](const ModeFigures& f) {
    return f.engine ? std::optional<double>(static_cast<double>((*f.engine).*member))
                    : std::nullopt;
  };
}
Figure OfLoads(uint64_t (*figure)(const LoadFigures&)) {
  return [figure](const ModeFigures& f) {
    return f.loads ? std::optional<double>(static_cast<double>(figure(*f.loads))) : std::nullopt;
  };
}
// `compared`: it means something only where answers were compared.
template <typename T>
Figure OfSimilar(T SimilarFigures::*member, bool compared = false) {
  return [member, compared](const ModeFigures& f) {
    return f.similar && (!compared || f.similar->compared > 0)
               ? std::optional<double>(static_cast<double>((*f.similar).*member))
               : std::nullopt;
  };
}
Figure SumOfSimilar(std::map<std::string, uint64_t> SimilarFigures::*member) {
  return [member](const ModeFigures& f) {
    if (!f.similar) return std::optional<double>();
    double sum = 0;
    for (const auto& [reason, number] : (*f.similar).*member) sum += static_cast<double>(number);
    return std::optional<double>(sum);
  };
}

struct TableRow {
  const char* name;
  Figure value;
  std::function<std::string(double)> format;
};

std::string Number(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::vector<TableRow> TableRows() {
  const auto count = [](double v) { return Number("%.0f", v); };
  const auto seconds = [](double v) { return Number("%.3f s", v); };
  const auto rate = [](double v) { return Number("%.2f", v); };
  const auto percent = [](double v) { return Number("%.4f %%", v * 100); };
  const auto bytes = [](double v) { return FormatByteSize(static_cast<uint64_t>(v)); };
  const auto small = [](double v) { return Number("%.2e", v); };
  using S = SimilarFigures;
  using F = ModeFigures;
  using E = EngineFigures;
  return {{"requests", Of(&F::requests), count},
          {"errors", Of(&F::errors), count},
          {"deadline missed", Of(&F::deadline_missed), count},
          {"wall", Of(&F::wall_s), seconds},
          {"CPU", Of(&F::cpu_s), seconds},
          {"requests/s", Of(&F::req_per_s), rate},
          {"generated tokens/s", Of(&F::gen_tok_per_s), rate},
          {"prompt tokens", Of(&F::prompt_tokens), count},
          {"cached tokens", Of(&F::cached_tokens), count},
          {"computed tokens", Of(&F::computed_tokens), count},
          {"loaded tokens", OfLoads([](const LoadFigures& l) { return l.loaded_tokens; }), count},
          {"cold hits", OfLoads([](const LoadFigures& l) { return l.hits("cold"); }), count},
          {"remote hits", OfLoads([](const LoadFigures& l) { return l.hits("remote"); }), count},
          {"failed loads", OfLoads([](const LoadFigures& l) { return l.failed_loads; }), count},
          {"similar tokens", OfSimilar(&S::similar_tokens), count},
          {"accepted", OfSimilar(&S::accepted), count},
          {"rejected", SumOfSimilar(&S::rejected), count},
          {"fallbacks", SumOfSimilar(&S::fallbacks), count},
          {"shadow tokens", OfSimilar(&S::shadow_tokens), count},
          {"compared", OfSimilar(&S::compared), count},
          {"mean KL", OfSimilar(&S::mean_kl, true), small},
          {"p95 KL", OfSimilar(&S::p95_kl, true), small},
          {"top-1 agreement", OfSimilar(&S::top1_agreement, true), percent},
          {"hit rate", Of(&F::hit_rate), percent},
          {"TTFT mean", Of(&F::ttft_mean), seconds},
          {"TTFT p50", Of(&F::ttft_p50), seconds},
          {"TTFT p95", Of(&F::ttft_p95), seconds},
          {"ITL p50", Of(&F::itl_p50), seconds},
          {"ITL p95", Of(&F::itl_p95), seconds},
          {"latency mean", Of(&F::latency_mean), seconds},
          {"latency p50", Of(&F::latency_p50), seconds},
          {"latency p95", Of(&F::latency_p95), seconds},
          {"client's CPU share", [](const F& f) { return f.client_cpu_share; }, percent},
          {"peak KV in use", OfEngine(&E::peak_kv_bytes), bytes},
          {"running at peak", OfEngine(&E::running_at_peak), count},
          {"cached KV", OfEngine(&E::cached_bytes), bytes},
          {"peak resident", OfEngine(&E::rss_bytes), bytes},
          {"matching / wall", OfEngine(&E::match_share), percent},
          {"tracking / KV", OfEngine(&E::tracking_share), percent}};
}

}  // namespace

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(std::floor(rank));
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (rank - static_cast<double>(low));
}

ModeFigures Summarise(const std::string& mode, const WorkloadRun& run) {
  ModeFigures figures;
  figures.mode = mode;
  figures.wall_s = run.wall_s;
  figures.cpu_s = run.cpu_s;
  std::vector<double> ttft, itl, latency;
  uint64_t generated = 0;
  ForEachTurn(run, [&](const TurnOutcome& outcome) {
    ++figures.requests;
    if (!outcome.error.empty()) {
      ++figures.errors;
      return;
    }
    figures.prompt_tokens += outcome.prompt_tokens;
    figures.cached_tokens += outcome.cached_tokens;
    figures.computed_tokens += outcome.computed_tokens;
    generated += outcome.generated_tokens;
    ttft.push_back(outcome.ttft_s);
    latency.push_back(outcome.latency_s);
    itl.insert(itl.end(), outcome.itl_s.begin(), outcome.itl_s.end());
  });
  figures.req_per_s = Share(static_cast<double>(figures.requests - figures.errors), run.wall_s);
  figures.gen_tok_per_s = Share(static_cast<double>(generated), run.wall_s);
  figures.hit_rate =
      Share(static_cast<double>(figures.cached_tokens), static_cast<double>(figures.prompt_tokens));
  figures.ttft_mean = Mean(ttft);
  figures.ttft_p50 = Percentile(ttft, 0.5);
  figures.ttft_p95 = Percentile(ttft, 0.95);
  figures.itl_p50 = Percentile(itl, 0.5);
  figures.itl_p95 = Percentile(itl, 0.95);
  figures.latency_mean = Mean(latency);
  figures.latency_p50 = Percentile(latency, 0.5);
  figures.latency_p95 = Percentile(latency, 0.95);
  return figures;
}

uint64_t LoadFigures::hits(const std::string& tier) const {
  for (const TierFigures& figures : tiers) {
    if (figures.name == tier) return figures.hits;
  }
  return 0;
}

uint64_t CountLate(const WorkloadRun& run, double deadline_s) {
  uint64_t late = 0;
  ForEachTurn(run, [&](const TurnOutcome& outcome) {
    if (!outcome.error.empty() || outcome.latency_s > deadline_s) ++late;
  });
  return late;
}

bool SameOutputs(const WorkloadRun& a, const WorkloadRun& b) {
  if (a.outcomes.size() != b.outcomes.size()) return false;
  for (size_t i = 0; i < a.outcomes.size(); ++i) {
    if (a.outcomes[i].size() != b.outcomes[i].size()) return false;
    for (size_t turn = 0; turn < a.outcomes[i].size(); ++turn) {
      const TurnOutcome& left = a.outcomes[i][turn];
      const TurnOutcome& right = b.outcomes[i][turn];
      if (!left.error.empty() || !right.error.empty() || left.tokens != right.tokens) return false;
    }
  }
  return true;
}

ordered_json ReportJson(const std::string& model, const ordered_json& machine,
                        const std::vector<ModeFigures>& modes, std::optional<bool> equal) {
  ordered_json by_mode = ordered_json::object();
  for (const ModeFigures& figures : modes) by_mode[figures.mode] = ModeJson(figures);
  return {{"model", model},
          {"machine", machine},
          {"modes", by_mode},
          {"outputs_equal", equal ? ordered_json(*equal) : ordered_json(nullptr)}};
}

std::string ReportTable(const std::vector<ModeFigures>& modes) {
  constexpr int kNameWidth = 20, kColumnWidth = 14;
  const auto cell = [](const std::string& text) {
    const size_t width = kColumnWidth;
    return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
  };
  std::string table(kNameWidth, ' ');
  for (const ModeFigures& figures : modes) table += cell(figures.mode);
  const bool ratio = modes.size() > 1;
  if (ratio) table += cell(modes.back().mode + "/" + modes.front().mode);
  table += '\n';
  for (const TableRow& row : TableRows()) {
    std::string line = row.name;
    line.resize(kNameWidth, ' ');
    bool any = false;
    for (const ModeFigures& figures : modes) {
      const auto value = row.value(figures);
      any = any || value.has_value();
      line += cell(value ? row.format(*value) : "-");
    }
    if (!any) continue;
    if (ratio) {
      const auto first = row.value(modes.front()), last = row.value(modes.back());
      const bool defined = first && last && *first != 0;
      line += cell(defined ? Number("%.3f", *last / *first) : "-");
    }
    table += line + '\n';
  }
  return table;
}

}  // namespace kvlink::cli
