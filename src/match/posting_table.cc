#include "match/posting_table.h"

#include <utility>

#include "base/check.h"

namespace kvlink::match {
namespace {

constexpr size_t kFewestSlots = 64;

}  // namespace

void PostingTable::Add(uint32_t key, uint32_t donor) {
  if (4 * (num_keys_ + 1) > 3 * slots_.size()) {
    Resize(slots_.empty() ? kFewestSlots : slots_.size() + slots_.size() / 2);
  }
  Slot& slot = slots_[SlotOf(key)];
  if (slot.frequency == 0) {
    slot = {.key = key, .frequency = 0, .head = kNone};
    ++num_keys_;
  }
  ++slot.frequency;
  slot.head = TakeNode(donor, slot.head);
  uint32_t size = 0, last_newest = kNone;
  for (uint32_t node = slot.head; node != kNone; node = nodes_[node].next) {
    if (++size == kNewest) last_newest = node;
  }
  if (size <= kBucketSize) return;
  const uint32_t pushed_out = nodes_[last_newest].next;
  nodes_[last_newest].next = nodes_[pushed_out].next;
  free_.push_back(pushed_out);
}

void PostingTable::Remove(uint32_t key, uint32_t donor) {
  KVLINK_CHECK(!slots_.empty()) << "key " << key << " of donor " << donor;
  const size_t at = SlotOf(key);
  Slot& slot = slots_[at];
  KVLINK_CHECK(slot.frequency > 0) << "key " << key << " of donor " << donor;
  for (uint32_t* link = &slot.head; *link != kNone; link = &nodes_[*link].next) {
    if (nodes_[*link].donor != donor) continue;
    free_.push_back(*link);
    *link = nodes_[*link].next;
    break;
  }
  if (--slot.frequency > 0) return;
  EraseSlot(at);
  --num_keys_;
  if (num_keys_ == 0) {  // nothing is left: every node is free as well
    std::vector<Node>().swap(nodes_);
    std::vector<uint32_t>().swap(free_);
  }
  if (slots_.size() > kFewestSlots && 4 * num_keys_ < slots_.size()) Resize(slots_.size() / 2);
}

PostingTable::Bucket PostingTable::Find(uint32_t key) const {
  Bucket bucket;
  if (slots_.empty()) return bucket;
  const Slot& slot = slots_[SlotOf(key)];
  bucket.frequency = slot.frequency;
  if (slot.frequency == 0) return bucket;
  for (uint32_t node = slot.head; node != kNone; node = nodes_[node].next) {
    bucket.donors[bucket.size++] = nodes_[node].donor;
  }
  return bucket;
}

size_t PostingTable::SlotOf(uint32_t key) const {
  size_t at = HomeOf(key);
  while (slots_[at].frequency != 0 && slots_[at].key != key) {
    if (++at == slots_.size()) at = 0;
  }
  return at;
}

void PostingTable::Resize(size_t num_slots) {
  std::vector<Slot> old(num_slots);
  slots_.swap(old);
  for (const Slot& slot : old) {
    if (slot.frequency != 0) slots_[SlotOf(slot.key)] = slot;
  }
}

// Closes the gap: slots behind it that could lie nearer to their home move up, so that a probe
// never stops too early.
void PostingTable::EraseSlot(size_t slot) {
  const size_t size = slots_.size();
  size_t gap = slot;
  for (size_t at = (gap + 1) % size; slots_[at].frequency != 0; at = (at + 1) % size) {
    const size_t from_home = (at + size - HomeOf(slots_[at].key)) % size;
    const size_t from_gap = (at + size - gap) % size;
    if (from_home < from_gap) continue;
    slots_[gap] = slots_[at];
    gap = at;
  }
  slots_[gap] = Slot{};
}

uint32_t PostingTable::TakeNode(uint32_t donor, uint32_t next) {
  if (free_.empty()) {
    nodes_.push_back({donor, next});
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  const uint32_t node = free_.back();
  free_.pop_back();
  nodes_[node] = {donor, next};
  return node;
}

}  // namespace kvlink::match
