#include "verify/error_bound.h"

#include <cmath>

#include "base/check.h"

namespace kvlink::verify {
namespace {

// P(X <= failures) of a binomial variable.
double AtMost(uint64_t failures, uint64_t trials, double p) {
  const auto n = static_cast<double>(trials);
  double log_term = n * std::log1p(-p), sum = std::exp(log_term);
  const double log_odds = std::log(p) - std::log1p(-p);
  for (uint64_t k = 1; k <= failures; ++k) {
    log_term += std::log((n - static_cast<double>(k) + 1) / static_cast<double>(k)) + log_odds;
    sum += std::exp(log_term);
  }
  return sum;
}

}  // namespace

// The largest rate at which so few failures would still come about with probability 1 - confidence.
double UpperErrorBound(uint64_t failures, uint64_t trials, double confidence) {
  KVLINK_CHECK(failures <= trials && confidence > 0 && confidence < 1)
      << failures << " of " << trials << ", confidence " << confidence;
  if (failures == trials) return 1;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (AtMost(failures, trials, middle) > 1 - confidence ? low : high) = middle;
  }
  return high;
}

}  // namespace kvlink::verify
