#include "link/tier_notices.h"

#include <algorithm>
#include <utility>

namespace kvlink::link {

void TierNotices::Watch(const tier::BlockKey& address, const StoredBlock& stored) {
  if (!addresses_.insert(address).second) return;
  untold_.push_back({.address = address,
                     .hash = stored.hash,
                     .parent = stored.parent,
                     .name_space = stored.name_space,
                     .tokens = {stored.tokens.begin(), stored.tokens.end()},
                     .since = clock_()});
}

void TierNotices::Look() {
  const base::TimePoint now = clock_();
  if (now < next_look_) return;
  next_look_ = now + kEvery;
  LookAtSome(told_, now);
  LookAtSome(untold_, now);
}

void TierNotices::LookAtSome(Queue& queue, base::TimePoint now) {
  for (size_t left = std::min(kBlocksALook, queue.size()); left > 0; --left) {
    Watched block = std::move(queue.front());
    queue.pop_front();
    const bool was_there = block.told != 0;
    Tell(block);
    if (block.told != 0) {
      told_.push_back(std::move(block));
    } else if (!was_there && now < block.since + kGiveUpAfter) {
      untold_.push_back(std::move(block));
    } else {
      addresses_.erase(block.address);
    }
  }
}

void TierNotices::Tell(Watched& block) {
  const uint32_t present = store_.Find(block.address).present;
  for (uint32_t t = 0; t < names_.size(); ++t) {
    const uint32_t bit = 1u << t;
    if ((present & bit) == (block.told & bit)) continue;
    if ((present & bit) == 0) {
      observer_.RemovedFromTier(block.hash, names_[t]);
    } else {
      observer_.StoredInTier({.hash = block.hash,
                              .parent = block.parent,
                              .tokens = block.tokens,
                              .name_space = block.name_space},
                             names_[t]);
    }
  }
  block.told = present;
}

void TierNotices::TellAgain() {
  const base::TimePoint now = clock_();
  for (Watched& block : told_) {
    block.told = 0;
    block.since = now;
    untold_.push_back(std::move(block));
  }
  told_.clear();
}

size_t TierNotices::tracking_bytes() const {
  const Queue& some = told_.empty() ? untold_ : told_;
  if (some.empty()) return 0;
  const size_t tokens = some.front().tokens.capacity() * sizeof(TokenId);
  return addresses_.size() * (sizeof(Watched) + tokens + 2 * sizeof(tier::BlockKey) + 16);
}

}  // namespace kvlink::link
