// VoteTally: votes per donor while one lookup runs. Open addressing, by donor number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace kvlink::match {

class VoteTally {
 public:
  struct Entry {
    uint32_t donor = kNobody;
    uint32_t template_hits = 0;
    float votes = 0;
  };
  static constexpr uint32_t kNobody = 0xffffffffu;

  VoteTally() : entries_(256) {}
  Entry& Of(uint32_t donor) {
    if (2 * (size_ + 1) > entries_.size()) Grow();
    Entry& entry = entries_[SlotOf(donor)];
    if (entry.donor == kNobody) {
      entry.donor = donor;
      ++size_;
    }
    return entry;
  }
  std::vector<Entry> All() const {
    std::vector<Entry> all;
    std::ranges::copy_if(entries_, std::back_inserter(all),
                         [](const Entry& entry) { return entry.donor != kNobody; });
    return all;
  }

 private:
  size_t SlotOf(uint32_t donor) const {
    size_t at = (donor * 0x9e3779b1u) & (entries_.size() - 1);
    while (entries_[at].donor != kNobody && entries_[at].donor != donor) {
      at = (at + 1) & (entries_.size() - 1);
    }
    return at;
  }
  void Grow() {
    const std::vector<Entry> all = All();
    entries_.assign(entries_.size() * 2, Entry{});
    for (const Entry& entry : all) entries_[SlotOf(entry.donor)] = entry;
  }
  std::vector<Entry> entries_;  // a power of two, at most half used
  size_t size_ = 0;
};

}  // namespace kvlink::match
