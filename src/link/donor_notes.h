// DonorNotes: what was seen of donors' last rows, packed into pages of the pool.
//
//   page of notes   [ donor 7 ....... | donor 12 .. | donor 3 (begin) ]  [ donor 3 (end) | free ]
//
// Notes lie one behind the other; one that does not fit goes on in the next page. The pages are
// blocks of the graph that hold no rows: nobody's parent, in no index, evicted by the same order as
// all others.
//
// Invariants
//   1. A page is here as long as some note has a part in it; a note is here only whole.
//   2. Each page is one that the graph keeps: who takes one out tells the other.
// Threads: const members may run at the same time; everything else needs the object alone.
// Cost: a copy of the note.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvlink/cache.h"

namespace kvlink::link {

inline constexpr uint32_t kTopTokens = 64;  // of a distribution that are compared one by one

// Of one donor.
struct DonorNote {
  uint32_t num_tokens = 0;  // of its prompt
  PromptTail tail;
  TopLogits first;     // of the token behind the prompt
  double entropy = 0;  // of it, in nats
};

// `logits` [vocabulary] of the prompt's last row.
DonorNote MakeNote(uint32_t num_tokens, const PromptTail& tail, std::span<const float> logits);
std::vector<std::byte> EncodeNote(const DonorNote& note);
// Requires: bytes that EncodeNote made.
DonorNote DecodeNote(std::span<const std::byte> bytes);

class DonorNotes {
 public:
  struct Page {
    BlockId block = kNoBlock;
    std::byte* data = nullptr;
  };

  explicit DonorNotes(size_t page_bytes) : page_bytes_(page_bytes) {}

  // Fresh pages that a note of so many bytes needs.
  uint64_t PagesFor(size_t bytes) const;
  // Replaces the donor's note. Requires: as many fresh pages as PagesFor says, and some bytes.
  void Put(BlockId donor, std::span<const std::byte> note, std::span<const Page> fresh);
  std::optional<std::vector<std::byte>> Find(BlockId donor) const;
  std::vector<BlockId> PagesOf(BlockId donor) const;

  void Drop(BlockId donor);
  void Move(BlockId from, BlockId to);  // a note that `to` has stays
  bool Owns(BlockId page) const { return pages_.contains(page); }
  void PageGone(BlockId page);  // with all notes that have a part in it
  // Pages that hold nothing any more, and are no longer here.
  std::vector<BlockId> TakeEmpty();

  size_t num_notes() const { return notes_.size(); }
  size_t num_pages() const { return pages_.size(); }
  size_t tracking_bytes() const;

 private:
  struct Part {
    BlockId page = kNoBlock;
    size_t offset = 0, bytes = 0;
  };
  struct PageUse {
    std::byte* data = nullptr;
    size_t used = 0;     // from its begin on
    uint32_t parts = 0;  // of notes that are here
  };

  const size_t page_bytes_;
  std::unordered_map<BlockId, PageUse> pages_;
  std::unordered_map<BlockId, std::vector<Part>> notes_;  // by donor
  BlockId open_ = kNoBlock;                               // where the next note begins
  std::vector<BlockId> empty_;
};

}  // namespace kvlink::link
