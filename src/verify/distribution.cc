#include "verify/distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <vector>

#include "base/exp_sums.h"

namespace kvlink::verify {
namespace {

// Most blocks of a vocabulary have none of the likeliest, which their maximum tells at once.
constexpr size_t kBlock = 256;

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

Distribution DistributionOf(std::span<const float> logits, uint32_t count) {
  const base::ExpSums sums = base::SumExponentials(logits);
  Distribution distribution;
  distribution.finite = sums.finite;
  if (logits.empty() || !sums.finite) return distribution;
  distribution.entropy = sums.entropy;
  TopLogits& top = distribution.top;
  top.log_sum = sums.log_sum;
  if (count == 0) return distribution;
  // A heap whose front is the worst. Tokens come in order, so of equal ones the first stay.
  const auto is_better = [](const TopLogits::Entry& a, const TopLogits::Entry& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  std::vector<TopLogits::Entry>& heap = top.entries;
  heap.reserve(std::min<size_t>(count, logits.size()) + 1);
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const auto block = logits.subspan(first, std::min(kBlock, logits.size() - first));
    if (heap.size() == count && base::LargestOf(block) <= heap.front().logit) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      const bool is_full = heap.size() == count;
      if (is_full && block[i] <= heap.front().logit) continue;
      heap.push_back({static_cast<TokenId>(first + i), block[i]});
      std::ranges::push_heap(heap, is_better);
      if (!is_full) continue;
      std::ranges::pop_heap(heap, is_better);
      heap.pop_back();
    }
  }
  std::ranges::sort_heap(heap, is_better);
  return distribution;
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
