#include "match/in_flight_table.h"

#include <algorithm>

namespace kvlink::match {
namespace {

// Takes `value` out of the list of `key`; a list that is empty then leaves the map. False: it was
// not there.
template <typename Map, typename Value>
bool TakeOut(Map& map, const typename Map::key_type& key, const Value& value) {
  const auto list = map.find(key);
  if (list == map.end() || std::erase(list->second, value) == 0) return false;
  if (list->second.empty()) map.erase(list);
  return true;
}

}  // namespace

void InFlightTable::Announce(const BlockKey& key, uint64_t leader) {
  if (IsComputing(key, leader)) return;
  leaders_[key].push_back(leader);
  keys_of_leader_[leader].push_back(key);
}

void InFlightTable::Retire(const BlockKey& key, uint64_t leader) {
  if (TakeOut(leaders_, key, leader)) TakeOut(keys_of_leader_, leader, key);
}

void InFlightTable::RetireAll(uint64_t leader) {
  const auto keys = keys_of_leader_.find(leader);
  if (keys == keys_of_leader_.end()) return;
  for (const BlockKey& key : keys->second) TakeOut(leaders_, key, leader);
  keys_of_leader_.erase(keys);
}

std::optional<uint64_t> InFlightTable::LeaderOf(const BlockKey& key) const {
  const auto list = leaders_.find(key);
  if (list == leaders_.end()) return std::nullopt;
  return list->second.front();
}

bool InFlightTable::IsComputing(const BlockKey& key, uint64_t leader) const {
  const auto list = leaders_.find(key);
  return list != leaders_.end() &&
         std::find(list->second.begin(), list->second.end(), leader) != list->second.end();
}

size_t InFlightTable::tracking_bytes() const {
  // A node of a map: next pointer, cached hash or padding, the pair; malloc's 16 bytes a block are
  // in the constant.
  constexpr size_t kNode = 16 + 16 + sizeof(BlockKey) + sizeof(std::vector<uint64_t>);
  size_t bytes = (leaders_.bucket_count() + keys_of_leader_.bucket_count()) * sizeof(void*);
  for (const auto& [key, list] : leaders_) bytes += kNode + 16 + list.capacity() * sizeof(uint64_t);
  for (const auto& [leader, keys] : keys_of_leader_) {
    bytes += kNode + 16 + keys.capacity() * sizeof(BlockKey);
  }
  return bytes;
}

}  // namespace kvlink::match
