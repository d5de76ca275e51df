#include "server/server_metrics.h"

#include "server/metric_families.h"

namespace kvlink::server {
namespace {

using prometheus::MetricType;

double Count(uint64_t n) { return static_cast<double>(n); }

void AddConnections(const HttpServer::Figures& http, MetricFamilies& out) {
  out.Begin("kvlink_http_connections", "Open connections.", MetricType::Gauge);
  out.Add(Count(http.open));
  out.Begin("kvlink_http_idle_connections", "Of them, those without a request.", MetricType::Gauge);
  out.Add(Count(http.idle));
  out.Begin("kvlink_http_connections_refused_total", "Connections that found all places taken.",
            MetricType::Counter);
  out.Add(Count(http.refused));
  out.Begin("kvlink_http_connections_made_room_total",
            "Idle connections that were closed for new ones.", MetricType::Counter);
  out.Add(Count(http.made_room));
  out.Begin("kvlink_http_slow_senders_total", "Requests that were not complete in time.",
            MetricType::Counter);
  out.Add(Count(http.slow_senders));
  out.Begin("kvlink_tls_failed_handshakes_total", "TLS handshakes that failed, or took too long.",
            MetricType::Counter);
  out.Add(Count(http.failed_handshakes));
}

void AddMemory(const ServerFigures& server, uint64_t withheld_bytes, MetricFamilies& out) {
  out.Begin("kvlink_memory_available_bytes",
            "Memory that the machine or the control group has left; 0: not watched.",
            MetricType::Gauge);
  out.Add(Count(server.memory.available_bytes));
  out.Begin("kvlink_memory_reserve_bytes", "Memory that is to be left.", MetricType::Gauge);
  out.Add(Count(server.memory.reserve_bytes));
  out.Begin("kvlink_kv_withheld_bytes",
            "Of the KV budget, what is done without for want of memory.", MetricType::Gauge);
  out.Add(Count(withheld_bytes));
  out.Begin("kvlink_memory_shortages_total", "Looks that found less memory than the reserve.",
            MetricType::Counter);
  out.Add(Count(server.memory.shortages));
  out.Begin("kvlink_memory_refusals_total", "Requests that were refused for want of memory.",
            MetricType::Counter);
  out.Add(Count(server.memory_refusals));
}

// By the names that the other figures of similar reuse have; kvlink_similar_outcomes_total in one.
void AddSimilar(const CacheStats& cache, MetricFamilies& out) {
  out.Begin("kvlink_similar_total", "Requests that asked for similar reuse, by outcome and reason.",
            MetricType::Counter);
  for (size_t i = 0; i < cache.similar_outcomes.size(); ++i) {
    const auto reason = static_cast<SimilarReason>(i);
    out.Add(Count(cache.similar_outcomes[i]),
            {{"outcome", reason == SimilarReason::kNone ? "accepted" : "refused"},
             {"reason", reason == SimilarReason::kNone ? "none" : SimilarReasonName(reason)}});
  }
}

void AddTenants(const std::vector<TenantUse>& tenants, MetricFamilies& out) {
  out.Begin("kvlink_tenant_kv_bytes", "Bytes of KV that a tenant's blocks hold, in use and cached.",
            MetricType::Gauge);
  for (const TenantUse& use : tenants) out.Add(Count(use.bytes), {{"tenant", use.tenant}});
  out.Begin("kvlink_tenant_kv_quota_bytes", "Bytes that they may hold; 0: any.", MetricType::Gauge);
  for (const TenantUse& use : tenants) out.Add(Count(use.quota_bytes), {{"tenant", use.tenant}});
  out.Begin("kvlink_tenant_quota_evictions_total", "Blocks evicted to keep to the quota.",
            MetricType::Counter);
  for (const TenantUse& use : tenants) out.Add(Count(use.evicted_blocks), {{"tenant", use.tenant}});
}

}  // namespace

void AppendServerMetrics(const engine::EngineStats& stats, const ServerFigures& server,
                         const prometheus::Labels& labels,
                         std::vector<prometheus::MetricFamily>* families) {
  MetricFamilies out(labels, families);
  AddConnections(server.http, out);
  AddMemory(server, stats.withheld_bytes, out);
  AddSimilar(stats.cache, out);
  AddTenants(stats.tenants, out);
}

}  // namespace kvlink::server
