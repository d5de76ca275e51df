#include "server/tier_metrics.h"

#include <algorithm>
#include <string>

#include "server/metric_families.h"

namespace kvlink::server {
namespace {

using prometheus::Labels;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Reasons that are shown at 0 before they occur, so that an alert can be set on them.
void AddErrors(const TierFigures& tier, MetricFamilies& families) {
  std::vector<TierFigures::Error> errors = tier.errors;
  for (const char* op : {"get", "put"}) {
    for (const char* reason : {"timeout", "unavailable", "corrupt", "io"}) {
      const bool known = std::any_of(errors.begin(), errors.end(), [&](const auto& error) {
        return error.op == op && error.reason == reason;
      });
      if (!known) errors.push_back({op, reason, 0});
    }
  }
  for (const TierFigures::Error& error : errors) {
    families.Add(error.count, {{"tier", tier.name}, {"op", error.op}, {"reason", error.reason}});
  }
}

}  // namespace

void AppendTierMetrics(const engine::EngineStats& stats, const Labels& labels,
                       std::vector<MetricFamily>* families) {
  MetricFamilies out(labels, families);
  out.Begin("kvlink_tier_bytes", "Bytes of a tier by kind.", MetricType::Gauge);
  for (const TierFigures& tier : stats.tiers) {
    out.Add(tier.bytes, {{"tier", tier.name}, {"kind", "blocks"}});
    out.Add(tier.device_bytes, {{"tier", tier.name}, {"kind", "device"}});
    out.Add(tier.budget_bytes, {{"tier", tier.name}, {"kind", "budget"}});
    out.Add(tier.queued_bytes, {{"tier", tier.name}, {"kind", "queued"}});
  }
  out.Begin("kvlink_tier_blocks", "Blocks in a tier, by whether a lookup can reach them.",
            MetricType::Gauge);
  for (const TierFigures& tier : stats.tiers) {
    out.Add(tier.blocks - std::min(tier.unreachable, tier.blocks),
            {{"tier", tier.name}, {"state", "reachable"}});
    out.Add(tier.unreachable, {{"tier", tier.name}, {"state", "unreachable"}});
  }
  out.Begin("kvlink_tier_blocks_total", "Blocks of a tier by what became of them.",
            MetricType::Counter);
  for (const TierFigures& tier : stats.tiers) {
    const std::pair<const char*, uint64_t> outcomes[] = {
        {"hit", tier.hits},          {"miss", tier.misses},     {"stored", tier.stored},
        {"promoted", tier.promoted}, {"dropped", tier.dropped}, {"evicted", tier.evictions}};
    for (const auto& [outcome, n] : outcomes) {
      out.Add(n, {{"tier", tier.name}, {"outcome", outcome}});
    }
  }
  out.Begin("kvlink_tier_errors_total", "Failed operations on blocks of a tier.",
            MetricType::Counter);
  for (const TierFigures& tier : stats.tiers) AddErrors(tier, out);
  out.Begin("kvlink_tier_breaker_open", "1 while a tier is cut off because it failed.",
            MetricType::Gauge);
  for (const TierFigures& tier : stats.tiers) {
    out.Add(tier.breaker == "closed" ? 0 : 1, {{"tier", tier.name}});
  }
  out.Begin("kvlink_tier_breaker_openings_total", "Times a tier was cut off.", MetricType::Counter);
  for (const TierFigures& tier : stats.tiers) {
    out.Add(tier.breaker_openings, {{"tier", tier.name}});
  }
  out.Begin("kvlink_tier_queue_blocks", "Blocks that wait to be written.", MetricType::Gauge);
  for (const TierFigures& tier : stats.tiers) {
    out.Add(tier.queued_blocks, {{"tier", tier.name}});
  }
  out.Counter("kvlink_loads_total", "Loads from colder tiers that were started.",
              stats.cache.loads);
  out.Counter("kvlink_load_failures_total", "Loads that brought less than was promised.",
              stats.cache.failed_loads);
  out.Counter("kvlink_unwritten_blocks_total",
              "Blocks that were evicted from RAM and are in no tier.",
              stats.cache.unwritten_blocks);
}

}  // namespace kvlink::server
