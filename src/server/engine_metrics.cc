#include "server/engine_metrics.h"

#include "server/metric_families.h"

namespace kvlink::server {
namespace {

using prometheus::MetricType;

void AddRequests(const engine::EngineStats& stats, MetricFamilies& out) {
  out.Gauge("vllm:num_requests_running", "Requests that are running.", stats.running);
  out.Gauge("vllm:num_requests_waiting", "Requests in the queue.", stats.waiting);
  out.Counter("kvlink_engine_steps_total", "Steps of the engine.", stats.steps);
  out.Counter("kvlink_requests_refused_total", "Requests that the engine's full queue refused.",
              stats.refused);
}

void AddPages(const CacheStats& cache, MetricFamilies& out) {
  const double in_use = static_cast<double>(cache.in_use_pages);
  out.Gauge("vllm:kv_cache_usage_perc", "Share of the pages that live requests use; 1 is all.",
            cache.total_pages == 0 ? 0.0 : in_use / static_cast<double>(cache.total_pages));
  out.Begin("kvlink_blocks", "Pages by state.", MetricType::Gauge);
  out.Add(cache.free_pages, {{"state", "free"}});
  out.Add(cache.cached_pages, {{"state", "cached"}});
  out.Add(cache.in_use_pages, {{"state", "in_use"}});
  out.Begin("kvlink_kv_bytes", "Bytes of KV by state.", MetricType::Gauge);
  out.Add(cache.in_use_bytes, {{"state", "in_use"}});
  out.Add(cache.peak_in_use_bytes, {{"state", "peak_in_use"}});
  out.Add(cache.cached_bytes, {{"state", "cached"}});
  out.Add(cache.pinned_bytes, {{"state", "pinned"}});
  out.Add(cache.shared_bytes, {{"state", "shared"}});
  out.Add(cache.without_sharing_bytes, {{"state", "without_sharing"}});
  out.Add(cache.budget_bytes, {{"state", "budget"}});
  out.Gauge(
      "kvlink_kv_saved_bytes",
      "What running requests would take if each had its own copy, less what they take.",
      static_cast<double>(cache.without_sharing_bytes) - static_cast<double>(cache.in_use_bytes));
  out.Gauge("kvlink_tracking_bytes", "Bytes of the structures that track blocks.",
            cache.tracking_bytes);
}

void AddBlocks(const CacheStats& cache, MetricFamilies& out) {
  out.Begin("kvlink_cow_copies_total", "Copies of shared pages by kind.", MetricType::Counter);
  out.Add(cache.cow_full_copies, {{"kind", "full"}});
  out.Add(cache.cow_difference_blocks, {{"kind", "difference"}});
  out.Counter("kvlink_single_flight_waits_total",
              "Requests that waited for another to compute the same blocks.",
              cache.single_flight_waits);
  out.Counter("kvlink_single_flight_takeovers_total",
              "Waiting requests that took over from a leader that went away.",
              cache.single_flight_takeovers);
  out.Counter("kvlink_stored_blocks_total", "Blocks that became findable.", cache.stored_blocks);
  out.Counter("kvlink_evicted_blocks_total", "Blocks that were evicted.", cache.evicted_blocks);
  out.Counter("kvlink_fallbacks_total", "Plans that could not be honoured and became computing.",
              cache.fallbacks);
  out.Counter("kvlink_hash_collisions_total",
              "Block keys that were equal while the tokens were not.", cache.collisions);
  out.Counter("kvlink_output_splices_total", "Own outputs recognised in later prompts.",
              cache.output_splices);
  out.Counter("kvlink_match_seconds_total", "Time spent looking prompts up.",
              static_cast<double>(cache.match_ns) * 1e-9);
}

void AddSimilar(const CacheStats& cache, MetricFamilies& out) {
  const auto each_reason = [&](const auto& add) {
    for (size_t i = 0; i < cache.similar_outcomes.size(); ++i) {
      const auto reason = static_cast<SimilarReason>(i);
      add(cache.similar_outcomes[i], reason == SimilarReason::kNone, SimilarReasonName(reason));
    }
  };
  out.Begin("kvlink_similar_total", "Requests that asked for similar reuse, by outcome and reason.",
            MetricType::Counter);
  each_reason([&](uint64_t number, bool accepted, const char* reason) {
    out.Add(number, {{"outcome", accepted ? "accepted" : "refused"}, {"reason", reason}});
  });
  // The same in one label, as it was named first.
  out.Begin("kvlink_similar_outcomes_total",
            "Requests that asked for similar reuse, by what became of it.", MetricType::Counter);
  each_reason([&](uint64_t number, bool accepted, const char* reason) {
    out.Add(number, {{"outcome", accepted ? "accepted" : reason}});
  });
  out.Counter("kvlink_similar_enlarged_total",
              "Similar answers for which more rows were computed before they left.",
              cache.similar_enlarged);
  out.Counter("kvlink_shadows_total", "Exact runs beside similar answers, in idle time.",
              cache.shadows);
  out.Counter("kvlink_shadow_failures_total", "Shadows that disagreed with the answer.",
              cache.shadow_failures);
  const auto by_class = [&](auto figure) {
    for (size_t i = 0; i < cache.shadows_by_class.size(); ++i) {
      out.Add(cache.shadows_by_class[i].*figure,
              {{"class", EditClassName(static_cast<EditClass>(i))}});
    }
  };
  out.Begin("kvlink_class_shadows_total", "Shadows by the class of edits.", MetricType::Counter);
  by_class(&SimilarTrials::trials);
  out.Begin("kvlink_class_shadow_failures_total", "Shadows that disagreed, by the class of edits.",
            MetricType::Counter);
  by_class(&SimilarTrials::failures);
  out.Gauge("kvlink_donors", "Prompts that can lend rows.", cache.donors);
  out.Counter("kvlink_similar_match_seconds_total",
              "Of kvlink_match_seconds_total, looking for similar prompts.",
              static_cast<double>(cache.similar_match_ns) * 1e-9);
}

}  // namespace

void AppendEngineMetrics(const engine::EngineStats& stats, const prometheus::Labels& labels,
                         std::vector<prometheus::MetricFamily>* families) {
  MetricFamilies out(labels, families);
  AddRequests(stats, out);
  AddPages(stats.cache, out);
  AddBlocks(stats.cache, out);
  AddSimilar(stats.cache, out);
}

}  // namespace kvlink::server
