#include "verify/distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <vector>

namespace kvlink::verify {
namespace {

double LogSumExp(std::span<const float> logits) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  return largest + std::log(sum);
}

double Probability(const TopLogits& logits, const TopLogits::Entry& entry) {
  return std::exp(entry.logit - logits.log_sum);
}

// What one outcome adds to the divergence.
double Term(double p, double q) {
  const double mean = (p + q) / 2;
  const auto half = [&](double x) { return x > 0 ? x / 2 * std::log(x / mean) : 0; };
  return half(p) + half(q);
}

}  // namespace

TopLogits TopOf(std::span<const float> logits, uint32_t count, bool* finite) {
  *finite = std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
  TopLogits top;
  if (logits.empty() || !*finite) return top;
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = static_cast<std::ptrdiff_t>(std::min<size_t>(count, logits.size()));
  std::partial_sort(order.begin(), order.begin() + size, order.end(), [&](TokenId a, TokenId b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  for (auto it = order.begin(); it != order.begin() + size; ++it) {
    top.entries.push_back({*it, logits[static_cast<size_t>(*it)]});
  }
  top.log_sum = LogSumExp(logits);
  return top;
}

double Entropy(std::span<const float> logits) {
  if (logits.empty()) return 0;
  const double log_sum = LogSumExp(logits);
  double entropy = 0;
  for (const float logit : logits) {
    const double log_p = logit - log_sum;
    entropy -= std::exp(log_p) * log_p;
  }
  return entropy;
}

double JensenShannon(const TopLogits& a, const TopLogits& b) {
  std::unordered_map<TokenId, double> in_b;
  double rest_a = 1, rest_b = 1, divergence = 0;
  for (const TopLogits::Entry& entry : b.entries) {
    const double q = Probability(b, entry);
    in_b[entry.token] = q;
    rest_b -= q;
  }
  for (const TopLogits::Entry& entry : a.entries) {
    const double p = Probability(a, entry);
    rest_a -= p;
    const auto other = in_b.find(entry.token);
    divergence += Term(p, other == in_b.end() ? 0 : other->second);
    if (other != in_b.end()) in_b.erase(other);
  }
  for (const auto& [token, q] : in_b) divergence += Term(0, q);
  divergence += Term(std::max(rest_a, 0.0), std::max(rest_b, 0.0));
  return std::max(divergence, 0.0);
}

bool SameFirst(const TopLogits& a, const TopLogits& b) {
  return !a.entries.empty() && !b.entries.empty() &&
         a.entries.front().token == b.entries.front().token;
}

double Margin(const TopLogits& logits) {
  if (logits.entries.size() < 2) return std::numeric_limits<double>::infinity();
  return double{logits.entries[0].logit} - logits.entries[1].logit;
}

}  // namespace kvlink::verify
