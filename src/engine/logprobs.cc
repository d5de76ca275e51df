#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlink::engine {

double LogSumExp(std::span<const float> logits) {
  float max = -std::numeric_limits<float>::infinity();
  for (const float x : logits) max = std::max(max, x);
  if (!std::isfinite(max)) return max;
  double sum = 0;
  for (const float x : logits) {
    const double below = double{x} - double{max};
    if (below > -40.0) sum += std::exp(below);
  }
  return double{max} + std::log(sum);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, double log_sum_exp, int k) {
  const size_t count = std::min(logits.size(), static_cast<size_t>(std::max(k, 0)));
  std::vector<TokenLogprob> top;  // a heap whose front is the worst; logprob holds the logit
  if (count == 0) return top;
  top.reserve(count + 1);
  const auto better = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (top.size() == count && !(logits[i] > top.front().logprob)) continue;
    top.push_back({static_cast<TokenId>(i), logits[i]});
    std::push_heap(top.begin(), top.end(), better);
    if (top.size() > count) {
      std::pop_heap(top.begin(), top.end(), better);
      top.pop_back();
    }
  }
  std::sort_heap(top.begin(), top.end(), better);
  for (TokenLogprob& entry : top) {
    entry.logprob = static_cast<float>(double{entry.logprob} - log_sum_exp);
  }
  return top;
}

}  // namespace kvlink::engine
