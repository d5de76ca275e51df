// KnownKeys: which keys a tier is known to have, or not to have, where the tier cannot say so
// without asking its peer. Bounded: the least recently used half goes when it is full.
//
// A "yes" holds until it proves wrong (the peer may evict: then a load misses and corrects it). A
// "no" holds for a while only: other servers write to the same peer.
// Two generations instead of a list: when the young one is half of the capacity it becomes the old
// one. Threads: any. Cost: one or two hash probes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mutex.h"

namespace kvlink::tier {

class KnownKeys {
 public:
  KnownKeys(uint32_t capacity, std::chrono::steady_clock::duration absent_for)
      : half_(capacity / 2 + 1), absent_for_(absent_for) {}

  std::optional<bool> Find(const base::BlockKey& key, base::TimePoint now) const {
    const base::MutexLock lock(mutex_);
    for (const Generation* generation : {&young_, &old_}) {
      const auto found = generation->find(key);
      if (found == generation->end()) continue;
      if (found->second == kPresent) return true;
      if (now < found->second) return false;
      return std::nullopt;
    }
    return std::nullopt;
  }
  void SetPresent(const base::BlockKey& key) { Set(key, kPresent); }
  void SetAbsent(const base::BlockKey& key, base::TimePoint now) { Set(key, now + absent_for_); }
  void Forget(const base::BlockKey& key) {
    const base::MutexLock lock(mutex_);
    young_.erase(key);
    old_.erase(key);
  }
  void Clear() {
    const base::MutexLock lock(mutex_);
    young_.clear();
    old_.clear();
  }
  size_t size() const {
    const base::MutexLock lock(mutex_);
    return young_.size() + old_.size();  // a key in both counts twice
  }

 private:
  // When "no" ends; kPresent is "yes".
  using Generation = std::unordered_map<base::BlockKey, base::TimePoint>;
  static constexpr base::TimePoint kPresent = base::TimePoint::max();

  void Set(const base::BlockKey& key, base::TimePoint until) {
    const base::MutexLock lock(mutex_);
    if (young_.size() >= half_ && !young_.contains(key)) {
      old_ = std::exchange(young_, {});
    }
    young_[key] = until;
  }

  const size_t half_;
  const std::chrono::steady_clock::duration absent_for_;
  mutable base::Mutex mutex_;
  Generation young_ KVLINK_GUARDED_BY(mutex_), old_ KVLINK_GUARDED_BY(mutex_);
};

}  // namespace kvlink::tier
