// Figures of connections, memory and tenants in Prometheus' form.
#pragma once

#include <prometheus/labels.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "engine/engine.h"
#include "server/metrics.h"

namespace kvlink::server {

// Every line carries `labels`.
void AppendServerMetrics(const engine::EngineStats& stats, const ServerFigures& server,
                         const prometheus::Labels& labels,
                         std::vector<prometheus::MetricFamily>* families);

}  // namespace kvlink::server
