// TierNotices: tells a BlockObserver which blocks the tiers have, as far as this process handed
// them over, loaded them or found them there.
//
// Tiers write, evict and fail in threads of their own. So nothing is told at once: the watched
// blocks are looked at in turn, a few every kEvery, and what changed since the last look is told. A
// block that no tier has within kGiveUpAfter is not watched any longer.
// Threads: none of its own; the cache's lock guards it. Cost: about 250 bytes a watched block, and
// 0.1 ms every kEvery.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "kvlink/block_observer.h"
#include "tier/tier_store.h"

namespace kvlink::link {

class TierNotices {
 public:
  static constexpr size_t kBlocksALook = 256;
  static constexpr std::chrono::milliseconds kEvery{100};
  static constexpr std::chrono::seconds kGiveUpAfter{10};

  TierNotices(BlockObserver& observer, const tier::TierStore& store, std::vector<std::string> names,
              base::Clock clock)
      : observer_(observer), store_(store), names_(std::move(names)), clock_(std::move(clock)) {}

  // Block `stored` is or will be in a tier under `address`.
  void Watch(const tier::BlockKey& address, const StoredBlock& stored);
  // Looks at the next ones, unless it did just now.
  void Look();
  // Whoever listens was told that nothing is left (BlockObserver::Cleared): what tiers have is told
  // again.
  void TellAgain();
  // A block waits to be told of: look again soon.
  bool has_news() const { return !untold_.empty(); }
  size_t tracking_bytes() const;

 private:
  struct Watched {
    tier::BlockKey address;
    BlockHash hash;
    std::optional<BlockHash> parent, name_space;
    std::vector<TokenId> tokens;
    base::TimePoint since;
    uint32_t told = 0;  // bit t: the observer knows that tier t has it
  };
  using Queue = std::deque<Watched>;  // looked at longest ago first
  void LookAtSome(Queue& queue, base::TimePoint now);
  void Tell(Watched& block);

  BlockObserver& observer_;
  const tier::TierStore& store_;
  const std::vector<std::string> names_;  // by tier
  const base::Clock clock_;
  Queue told_, untold_;  // by whether some tier is told of; parents before children
  std::unordered_set<tier::BlockKey> addresses_;  // of both
  base::TimePoint next_look_{};
};

}  // namespace kvlink::link
