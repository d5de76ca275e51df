// EvictionOrder: one ordering key, smallest goes first.
//
//   {used twice or more, last use + worth, deeper first}
//
// - Scan-resistant: while reused blocks that nobody uses hold no more than kProtectedShare of the
//   pages, a block that one request used goes before one that several used, so a flood of one-off
//   prompts cannot flush what is hot. Above it the older of both goes (a reused block counts as
//   younger by kReusedWorth), as conversations are reused from their second turn on and most of
//   them are over; above kReusedShare the first of the reused goes. Otherwise what was popular
//   yesterday would fill the cache and every new prompt would be evicted before it is seen again.
//   (ADR 0019 has the figures.)
// - Cost-aware: `worth` is the time, in ticks, that a block outlives its last use because it is
//   dear to recompute: rows * (1 + position / kDearPosition), as a later row attends to more rows.
//   It is added to the age, not compared first (GreedyDual, Young 1991; Cao and Irani 1997), so
//   that a dear block that nobody wants ages out too.
// - Then least recently used; of equals the deeper first.
// Cost: O(log candidates).
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <set>

#include "kvlink/cache.h"

namespace kvlink::cache {

struct EvictionKey {
  bool reused = false;
  uint64_t expiry = 0;  // last use + worth
  uint32_t shallowness = 0;
  BlockId id = kNoBlock;
  auto operator<=>(const EvictionKey&) const = default;
};

class EvictionOrder {
 public:
  static constexpr double kProtectedShare = 0.35;
  static constexpr double kReusedWorth = 1;  // ticks a page of the pool: half of what turns it over
  static constexpr double kReusedShare = 0.8;
  static constexpr double kDearPosition = 4096;  // where attention about doubles a row's cost
  static constexpr double kMaxWorth = 4;         // in blocks at the start of a prompt

  EvictionOrder(uint32_t tokens_per_block, uint64_t total_pages)
      : tokens_per_block_(tokens_per_block), total_pages_(total_pages) {}

  // In ticks: a whole block at the start of a prompt is worth half a tick a page of the pool, which
  // is about a quarter of the time in which the cache turns over (a tick an allocation and a
  // release).
  uint64_t Worth(uint32_t rows, uint32_t depth) const {
    const double position = static_cast<double>(depth) * tokens_per_block_;
    const double cost = rows * (1 + position / kDearPosition) / tokens_per_block_;
    return static_cast<uint64_t>(std::min(cost, kMaxWorth) * static_cast<double>(total_pages_) / 2);
  }
  EvictionKey KeyOf(BlockId id, uint32_t rows, uint32_t depth, uint32_t times_used,
                    uint64_t last_use) const {
    return {times_used > 1, last_use + Worth(rows, depth), ~depth, id};
  }

  void Add(const EvictionKey& key) { candidates_[key.reused].insert(key); }
  void Remove(const EvictionKey& key) { candidates_[key.reused].erase(key); }
  size_t size() const { return candidates_[0].size() + candidates_[1].size(); }

  // `reused_cached_pages`: pages of reused blocks that nobody uses.
  std::optional<BlockId> First(uint64_t reused_cached_pages) const {
    const auto& [once, reused] = candidates_;
    if (once.empty() && reused.empty()) return std::nullopt;
    if (reused.empty()) return once.begin()->id;
    if (once.empty()) return reused.begin()->id;
    const auto held = static_cast<double>(reused_cached_pages);
    const auto total = static_cast<double>(total_pages_);
    const auto worth = static_cast<uint64_t>(kReusedWorth * total);
    const bool is_older = reused.begin()->expiry + worth < once.begin()->expiry;
    const bool reused_goes =
        held > kReusedShare * total || (held > kProtectedShare * total && is_older);
    return (reused_goes ? reused : once).begin()->id;
  }

 private:
  uint32_t tokens_per_block_;
  uint64_t total_pages_;
  std::array<std::set<EvictionKey>, 2> candidates_;  // used once; more often
};

}  // namespace kvlink::cache
