// The part of BlockStore that keeps what was seen of donors' last rows, in pages of the pool.
#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "link/block_store.h"

namespace kvlink::link {

// Making room may evict the page that the last note ends in, and then takes one more.
bool BlockStore::KeepNote(BlockId donor, const DonorNote& note, base::TimePoint now) {
  const std::vector<std::byte> bytes = EncodeNote(note);
  uint64_t pages = notes_.PagesFor(bytes.size());
  while (pool_->Counts().free < pages) {
    if (!MakeRoom(cache::kNobody, pages, 0, now).ok()) return false;
    pages = notes_.PagesFor(bytes.size());
  }
  std::vector<DonorNotes::Page> fresh;
  for (uint64_t i = 0; i < pages; ++i) {
    const BlockId id = AddPage(kNoBlock, 0, cache::kNobody);
    graph_.SetRows(id, shape_.tokens_per_block);
    graph_.Keep(id);
    fresh.push_back({id, graph_.View(id).page});
  }
  notes_.Put(donor, bytes, fresh);
  for (const DonorNotes::Page& page : fresh) graph_.Release(page.block);
  ForgetEmptyNotePages();
  return true;
}

std::optional<DonorNote> BlockStore::NoteOf(BlockId donor) const {
  const auto bytes = notes_.Find(donor);
  if (!bytes) return std::nullopt;
  return DecodeNote(*bytes);
}

void BlockStore::DropNote(BlockId donor) {
  notes_.Drop(donor);
  ForgetEmptyNotePages();
}

void BlockStore::CountNoteUse(BlockId donor) {
  for (const BlockId page : notes_.PagesOf(donor)) graph_.CountUse(page);
}

bool BlockStore::EvictNotes(BlockId page) {
  if (!notes_.Owns(page)) return false;
  notes_.PageGone(page);
  graph_.Forget(page);
  ForgetEmptyNotePages();
  return true;
}

void BlockStore::ForgetEmptyNotePages() {
  for (const BlockId page : notes_.TakeEmpty()) graph_.Forget(page);
}

}  // namespace kvlink::link
