// The figures of one benchmark mode, as JSON and as a table. docs/bench.md defines each of them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_run.h"
#include "kvlink/tier.h"

namespace kvlink::cli {

// What only an engine in this process can tell; a server behind a URL cannot.
struct EngineFigures {
  uint64_t peak_kv_bytes = 0;  // pages referenced by live requests
  uint64_t running_at_peak = 0;
  uint64_t cached_bytes = 0;
  uint64_t rss_bytes = 0;
  double match_share = 0, tracking_share = 0;
};

// What similar reuse did; mode similar only.
struct SimilarFigures {
  bool foreign_calibration = false;  // its parameters and open classes are another model's
  uint64_t similar_tokens = 0, accepted = 0, enlarged = 0, match_ns = 0;
  std::map<std::string, uint64_t> rejected;   // by reason: exact from the start
  std::map<std::string, uint64_t> fallbacks;  // by reason: exact after an attempt
  // After the timed part.
  uint64_t shadow_tokens = 0, shadows = 0, shadow_failures = 0;
  uint64_t compared = 0;  // answers beside their exact run; the figures below are over them
  double mean_kl = 0, p95_kl = 0, top1_agreement = 0, first_agreement = 0;
};

// What came from colder tiers; mode tiered only.
struct LoadFigures {
  uint64_t loads = 0, failed_loads = 0, loaded_tokens = 0, unwritten_blocks = 0;
  std::vector<TierFigures> tiers;
  uint64_t hits(const std::string& tier) const;
};

struct ModeFigures {
  std::string mode;
  uint64_t requests = 0, errors = 0, deadline_missed = 0;
  double wall_s = 0, cpu_s = 0, req_per_s = 0, gen_tok_per_s = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, computed_tokens = 0;
  double ttft_mean = 0, ttft_p50 = 0, ttft_p95 = 0;
  double itl_p50 = 0, itl_p95 = 0;
  double latency_mean = 0, latency_p50 = 0, latency_p95 = 0;
  double hit_rate = 0;
  std::optional<double> client_cpu_share;  // with a server: CPU time of this process / wall time
  std::optional<EngineFigures> engine;
  std::optional<SimilarFigures> similar;
  std::optional<LoadFigures> loads;
};

// Linear interpolation between the two nearest ranks; 0 without values.
double Percentile(std::vector<double> values, double fraction);

ModeFigures Summarise(const std::string& mode, const WorkloadRun& run);

// Requests that took longer than `deadline_s`.
uint64_t CountLate(const WorkloadRun& run, double deadline_s);

// Every turn was answered in both runs, with the same token ids in every branch.
bool SameOutputs(const WorkloadRun& a, const WorkloadRun& b);

// `equal` null: there were not two modes to compare.
nlohmann::ordered_json ReportJson(const std::string& model, const nlohmann::ordered_json& machine,
                                  const std::vector<ModeFigures>& modes, std::optional<bool> equal);

// One row a figure, one column a mode, and the ratio of the last mode to the first.
std::string ReportTable(const std::vector<ModeFigures>& modes);

}  // namespace kvlink::cli
