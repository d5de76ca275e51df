#include "link/donor_notes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "verify/distribution.h"

namespace kvlink::link {
namespace {

// What a note begins with.
struct NoteHeader {
  uint32_t num_received = 0, num_nll = 0, num_entries = 0, num_tokens = 0;
  double log_sum = 0, entropy = 0;
};

template <typename T>
void Append(std::span<const T> values, std::vector<std::byte>* bytes) {
  const std::span<const std::byte> raw = std::as_bytes(values);
  bytes->insert(bytes->end(), raw.begin(), raw.end());
}

template <typename T>
std::vector<T> Take(uint32_t count, std::span<const std::byte>* bytes) {
  const size_t size = count * sizeof(T);
  KVLINK_CHECK(size <= bytes->size()) << "a note ends " << size - bytes->size() << " bytes early";
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes->data(), size);
  *bytes = bytes->subspan(size);
  return values;
}

}  // namespace

DonorNote MakeNote(uint32_t num_tokens, const PromptTail& tail, std::span<const float> logits) {
  const verify::Distribution first = verify::DistributionOf(logits, kTopTokens);
  return {.num_tokens = num_tokens, .tail = tail, .first = first.top, .entropy = first.entropy};
}

std::vector<std::byte> EncodeNote(const DonorNote& note) {
  const NoteHeader header = {.num_received = static_cast<uint32_t>(note.tail.received.size()),
                             .num_nll = static_cast<uint32_t>(note.tail.nll.size()),
                             .num_entries = static_cast<uint32_t>(note.first.entries.size()),
                             .num_tokens = note.num_tokens,
                             .log_sum = note.first.log_sum,
                             .entropy = note.entropy};
  std::vector<std::byte> bytes;
  Append(std::span(&header, 1), &bytes);
  Append(std::span<const float>(note.tail.received), &bytes);
  Append(std::span<const float>(note.tail.nll), &bytes);
  Append(std::span<const TopLogits::Entry>(note.first.entries), &bytes);
  return bytes;
}

DonorNote DecodeNote(std::span<const std::byte> bytes) {
  const NoteHeader header = Take<NoteHeader>(1, &bytes).front();
  DonorNote note;
  note.num_tokens = header.num_tokens;
  note.tail.received = Take<float>(header.num_received, &bytes);
  note.tail.nll = Take<float>(header.num_nll, &bytes);
  note.first.entries = Take<TopLogits::Entry>(header.num_entries, &bytes);
  note.first.log_sum = header.log_sum;
  note.entropy = header.entropy;
  return note;
}

uint64_t DonorNotes::PagesFor(size_t bytes) const {
  const size_t left = open_ == kNoBlock ? 0 : page_bytes_ - pages_.at(open_).used;
  return bytes <= left ? 0 : (bytes - left + page_bytes_ - 1) / page_bytes_;
}

void DonorNotes::Put(BlockId donor, std::span<const std::byte> note, std::span<const Page> fresh) {
  KVLINK_CHECK(!note.empty() && fresh.size() == PagesFor(note.size()))
      << fresh.size() << " pages for " << note.size() << " bytes";
  std::vector<Part> parts;
  const auto fill = [&](BlockId page) {
    PageUse& use = pages_.at(page);
    const size_t bytes = std::min(note.size(), page_bytes_ - use.used);
    if (bytes == 0) return;
    std::memcpy(use.data + use.used, note.data(), bytes);
    parts.push_back({page, use.used, bytes});
    use.used += bytes;
    ++use.parts;
    note = note.subspan(bytes);
  };
  if (open_ != kNoBlock) fill(open_);
  for (const Page& page : fresh) {
    pages_[page.block] = {.data = page.data, .used = 0, .parts = 0};
    fill(page.block);
    open_ = page.block;
  }
  Drop(donor);  // only now: a page that both share stays
  notes_[donor] = std::move(parts);
}

std::optional<std::vector<std::byte>> DonorNotes::Find(BlockId donor) const {
  const auto found = notes_.find(donor);
  if (found == notes_.end()) return std::nullopt;
  std::vector<std::byte> bytes;
  for (const Part& part : found->second) {
    const std::byte* from = pages_.at(part.page).data + part.offset;
    bytes.insert(bytes.end(), from, from + part.bytes);
  }
  return bytes;
}

std::vector<BlockId> DonorNotes::PagesOf(BlockId donor) const {
  std::vector<BlockId> pages;
  const auto found = notes_.find(donor);
  if (found == notes_.end()) return pages;
  for (const Part& part : found->second) pages.push_back(part.page);
  return pages;
}

void DonorNotes::Drop(BlockId donor) {
  const auto found = notes_.find(donor);
  if (found == notes_.end()) return;
  for (const Part& part : found->second) {
    const auto page = pages_.find(part.page);
    if (page == pages_.end() || --page->second.parts > 0) continue;
    if (open_ == part.page) open_ = kNoBlock;
    empty_.push_back(part.page);
    pages_.erase(page);
  }
  notes_.erase(found);
}

void DonorNotes::Move(BlockId from, BlockId to) {
  if (from == to || notes_.contains(to)) return Drop(from);
  auto node = notes_.extract(from);
  if (node.empty()) return;
  node.key() = to;
  notes_.insert(std::move(node));
}

void DonorNotes::PageGone(BlockId gone) {
  if (open_ == gone) open_ = kNoBlock;
  pages_.erase(gone);  // first, so that it does not count as empty
  std::vector<BlockId> hit;
  for (const auto& [donor, parts] : notes_) {
    if (std::ranges::any_of(parts, [gone](const Part& part) { return part.page == gone; })) {
      hit.push_back(donor);
    }
  }
  for (const BlockId donor : hit) Drop(donor);
}

std::vector<BlockId> DonorNotes::TakeEmpty() { return std::exchange(empty_, {}); }

size_t DonorNotes::tracking_bytes() const {
  constexpr size_t kNode = 48;
  size_t bytes = sizeof(*this) + empty_.capacity() * sizeof(BlockId) +
                 (pages_.bucket_count() + notes_.bucket_count()) * sizeof(void*) +
                 pages_.size() * (kNode + sizeof(PageUse));
  for (const auto& [donor, parts] : notes_) bytes += kNode + parts.capacity() * sizeof(Part);
  return bytes;
}

}  // namespace kvlink::link
