// Figures of the colder tiers in Prometheus' form: kvlink_tier_*, one line a tier, and what loads
// came to.
#pragma once

#include <prometheus/labels.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "engine/engine.h"

namespace kvlink::server {

// Every line carries `labels`. Without tiers there are only the totals, at 0.
void AppendTierMetrics(const engine::EngineStats& stats, const prometheus::Labels& labels,
                       std::vector<prometheus::MetricFamily>* families);

}  // namespace kvlink::server
