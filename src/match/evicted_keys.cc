#include "match/evicted_keys.h"

#include <algorithm>
#include <bit>

namespace kvlink::match {
namespace {

constexpr size_t kWays = 4;

uint64_t TagOf(const BlockKey& key) { return std::max<uint64_t>(key.lo, 1); }  // 0 means empty

}  // namespace

EvictedKeys::EvictedKeys(size_t capacity) : slots_(std::bit_ceil(std::max(capacity, kWays))) {}

void EvictedKeys::Add(const BlockKey& key) {
  const uint64_t tag = TagOf(key);
  const auto set = slots_.begin() + static_cast<std::ptrdiff_t>(SetOf(tag));
  auto last = std::find(set, set + kWays, tag);
  if (last == set + kWays) --last;  // not here: the oldest makes room
  std::copy_backward(set, last, last + 1);
  *set = tag;
}

bool EvictedKeys::Contains(const BlockKey& key) const {
  const uint64_t tag = TagOf(key);
  const auto set = slots_.begin() + static_cast<std::ptrdiff_t>(SetOf(tag));
  return std::find(set, set + kWays, tag) != set + kWays;
}

void EvictedKeys::Clear() { std::fill(slots_.begin(), slots_.end(), 0); }

// The low bits choose the set: keys are hashes already.
size_t EvictedKeys::SetOf(uint64_t tag) const { return tag * kWays & (slots_.size() - 1); }

}  // namespace kvlink::match
