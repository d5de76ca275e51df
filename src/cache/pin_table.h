// PinTable: which prompts are pinned, until when, and at which block each pin ends. What it holds
// follows from there: that block, its base and all before it (BlockGraph counts the pins of each).
//
// A pin is a prompt's and not a block's: of two prompts of which one begins with the other each has
// its own, and one ends without the other.
// Threads: const members may run at the same time; everything else needs the table alone.
// Cost: O(log pins), but for EndingAt and ForLastFirst, which see all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "kvlink/lookup.h"

namespace kvlink::cache {

using PinKey = base::BlockKey;  // names a prompt in its namespace; nobody can make two collide

struct PinnedPrompt {
  BlockId end = kNoBlock;  // the last block that the pin holds
  uint32_t tokens = 0;     // of the prompt that it holds
  base::TimePoint until;
};

class PinTable {
 public:
  // Requires: `key` has no pin.
  void Add(const PinKey& key, const PinnedPrompt& pin) {
    KVLINK_CHECK(pins_.emplace(key, pin).second) << "two pins of one prompt";
    ends_.emplace(pin.until, key);
  }
  std::optional<PinnedPrompt> Take(const PinKey& key) {
    const auto at = pins_.find(key);
    if (at == pins_.end()) return std::nullopt;
    const PinnedPrompt pin = at->second;
    ends_.erase({pin.until, key});
    pins_.erase(at);
    return pin;
  }
  // One of those whose time is over.
  std::optional<PinKey> Expired(base::TimePoint now) const {
    if (ends_.empty() || ends_.begin()->first > now) return std::nullopt;
    return ends_.begin()->second;
  }
  std::vector<PinKey> EndingAt(BlockId block) const {
    std::vector<PinKey> keys;
    for (const auto& [key, pin] : pins_) {
      if (pin.end == block) keys.push_back(key);
    }
    return keys;
  }
  // The one that lasts longest first.
  template <typename Visit>
  void ForLastFirst(Visit visit) const {
    for (auto at = ends_.rbegin(); at != ends_.rend(); ++at) visit(pins_.at(at->second));
  }
  size_t size() const { return pins_.size(); }
  size_t tracking_bytes() const {
    constexpr size_t kTreeNode = 4 * sizeof(void*);  // colour and links
    return pins_.size() * (sizeof(*pins_.begin()) + sizeof(*ends_.begin()) + 2 * kTreeNode);
  }

 private:
  std::map<PinKey, PinnedPrompt> pins_;
  std::set<std::pair<base::TimePoint, PinKey>> ends_;
};

}  // namespace kvlink::cache
