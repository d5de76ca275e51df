// MetricFamilies: figures of this moment in Prometheus' form, family by family.
#pragma once

#include <prometheus/labels.h>
#include <prometheus/metric_family.h>

#include <utility>
#include <vector>

namespace kvlink::server {

class MetricFamilies {
 public:
  // Every line carries `labels`. Appends to `families`.
  MetricFamilies(const prometheus::Labels& labels, std::vector<prometheus::MetricFamily>* families)
      : labels_(labels), families_(*families) {}
  void Begin(const char* name, const char* help, prometheus::MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  template <typename Number>
  void Add(Number number, const prometheus::Labels& more = {}) {
    const auto value = static_cast<double>(number);
    prometheus::ClientMetric metric;
    for (const prometheus::Labels& labels : {labels_, more}) {
      for (const auto& [name, of] : labels) metric.label.push_back({name, of});
    }
    metric.counter.value = value;
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  // Families of one line.
  template <typename Number>
  void Gauge(const char* name, const char* help, Number number) {
    Begin(name, help, prometheus::MetricType::Gauge);
    Add(number);
  }
  template <typename Number>
  void Counter(const char* name, const char* help, Number number) {
    Begin(name, help, prometheus::MetricType::Counter);
    Add(number);
  }

 private:
  const prometheus::Labels labels_;
  std::vector<prometheus::MetricFamily>& families_;
};

}  // namespace kvlink::server
