// Figures of the engine and its cache in Prometheus' form; those of tiers are in tier_metrics.h.
#pragma once

#include <prometheus/labels.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "engine/engine.h"

namespace kvlink::server {

// Every line carries `labels`.
void AppendEngineMetrics(const engine::EngineStats& stats, const prometheus::Labels& labels,
                         std::vector<prometheus::MetricFamily>* families);

}  // namespace kvlink::server
