#include "server/server_metrics.h"

#include "server/metric_families.h"

namespace kvlink::server {
namespace {

using prometheus::MetricType;

void AddConnections(const HttpServer::Figures& http, MetricFamilies& out) {
  out.Gauge("kvlink_http_connections", "Open connections.", http.open);
  out.Gauge("kvlink_http_idle_connections", "Of them, those without a request.", http.idle);
  out.Counter("kvlink_http_connections_refused_total", "Connections that found all places taken.",
              http.refused);
  out.Counter("kvlink_http_connections_made_room_total",
              "Idle connections that were closed for new ones.", http.made_room);
  out.Counter("kvlink_http_slow_senders_total", "Requests that were not complete in time.",
              http.slow_senders);
  out.Counter("kvlink_tls_failed_handshakes_total", "TLS handshakes that failed, or took too long.",
              http.failed_handshakes);
}

void AddMemory(const ServerFigures& server, uint64_t withheld_bytes, MetricFamilies& out) {
  out.Gauge("kvlink_memory_available_bytes",
            "Memory that the machine or the control group has left; 0: not watched.",
            server.memory.available_bytes);
  out.Gauge("kvlink_memory_reserve_bytes", "Memory that is to be left.",
            server.memory.reserve_bytes);
  out.Gauge("kvlink_kv_withheld_bytes",
            "Of the KV budget, what is done without for want of memory.", withheld_bytes);
  out.Counter("kvlink_memory_shortages_total", "Looks that found less memory than the reserve.",
              server.memory.shortages);
  out.Counter("kvlink_memory_refusals_total", "Requests that were refused for want of memory.",
              server.memory_refusals);
}

void AddTenants(const std::vector<TenantUse>& tenants, MetricFamilies& out) {
  out.Begin("kvlink_tenant_kv_bytes", "Bytes of KV that a tenant's blocks hold, in use and cached.",
            MetricType::Gauge);
  for (const TenantUse& use : tenants) out.Add(use.bytes, {{"tenant", use.tenant}});
  out.Begin("kvlink_tenant_kv_quota_bytes", "Bytes that they may hold; 0: any.", MetricType::Gauge);
  for (const TenantUse& use : tenants) out.Add(use.quota_bytes, {{"tenant", use.tenant}});
  out.Begin("kvlink_tenant_quota_evictions_total", "Blocks evicted to keep to the quota.",
            MetricType::Counter);
  for (const TenantUse& use : tenants) out.Add(use.evicted_blocks, {{"tenant", use.tenant}});
}

}  // namespace

void AppendServerMetrics(const engine::EngineStats& stats, const ServerFigures& server,
                         const prometheus::Labels& labels,
                         std::vector<prometheus::MetricFamily>* families) {
  MetricFamilies out(labels, families);
  AddConnections(server.http, out);
  AddMemory(server, stats.withheld_bytes, out);
  AddTenants(stats.tenants, out);
}

}  // namespace kvlink::server
