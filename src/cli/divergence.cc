#include "cli/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace kvlink::cli {
namespace {

double LogSum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum);
}

}  // namespace

double Divergence(std::span<const float> exact, std::span<const float> other) {
  const double log_sum = LogSum(exact), other_log_sum = LogSum(other);
  double divergence = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = double{exact[i]} - log_sum;
    divergence += std::exp(log_p) * (log_p - (double{other[i]} - other_log_sum));
  }
  if (!std::isfinite(divergence)) return std::numeric_limits<double>::infinity();
  return std::max(divergence, 0.0);
}

TokenId Likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double GapShift(std::span<const float> exact, std::span<const float> other) {
  const auto first = static_cast<size_t>(Likeliest(exact));
  size_t second = first == 0 ? 1 : 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (i != first && exact[i] > exact[second]) second = i;
  }
  return std::abs((double{exact[first]} - exact[second]) - (double{other[first]} - other[second]));
}

double ListedDivergence(std::span<const ListedToken> exact, std::span<const ListedToken> other) {
  std::unordered_map<TokenId, double> others;
  for (const ListedToken& listed : other) others[listed.token] = listed.logprob;
  double divergence = 0, p_rest = 1, q_rest = 1;
  for (const ListedToken& listed : exact) {
    const auto found = others.find(listed.token);
    if (found == others.end()) continue;
    const double p = std::exp(double{listed.logprob});
    divergence += p * (double{listed.logprob} - found->second);
    p_rest -= p;
    q_rest -= std::exp(found->second);
  }
  // Rounding of the listed ones can leave less than nothing.
  constexpr double kLeast = 1e-9;
  p_rest = std::max(p_rest, kLeast);
  q_rest = std::max(q_rest, kLeast);
  return std::max(divergence + p_rest * std::log(p_rest / q_rest), 0.0);
}

}  // namespace kvlink::cli
