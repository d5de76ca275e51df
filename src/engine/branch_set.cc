#include "engine/branch_set.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvlink::engine {

uint32_t SharedTrunk(std::span<const std::span<const TokenId>> branches) {
  size_t shared = std::numeric_limits<size_t>::max();
  for (const std::span<const TokenId> branch : branches) {
    const size_t limit = std::min(shared, branch.size() - 1);
    const auto first = branches.front().begin();
    // The first branch may be shorter than this one.
    const size_t compare = std::min(limit, branches.front().size());
    const auto end = first + static_cast<std::ptrdiff_t>(compare);
    shared = static_cast<size_t>(std::mismatch(first, end, branch.begin()).first - first);
  }
  return branches.empty() ? 0 : static_cast<uint32_t>(shared);
}

std::vector<uint32_t> BestBranches(std::span<const BranchScore> branches, uint32_t n) {
  const auto mean = [&](uint32_t i) {
    return branches[i].tokens > 0 ? branches[i].sum / branches[i].tokens
                                  : -std::numeric_limits<double>::infinity();
  };
  std::vector<uint32_t> order(branches.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return mean(a) > mean(b); });
  order.resize(std::min<size_t>(order.size(), n));
  return order;
}

}  // namespace kvlink::engine
