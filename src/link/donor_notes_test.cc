// Notes of donors: packed into pages, found again whole or not at all.
#include "link/donor_notes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/random.h"

namespace kvlink::link {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(base::Random& random, size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
  return bytes;
}

TEST(DonorNotes, ANoteIsReadAsItWasWritten) {
  std::vector<float> logits(200);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 37) / 4;
  const PromptTail tail{.received = {0.5f, 0.25f, 2}, .nll = {1.5f, 0.125f}};
  const DonorNote note = MakeNote(3, tail, logits);
  const DonorNote read = DecodeNote(EncodeNote(note));
  EXPECT_EQ(read.num_tokens, 3u);
  EXPECT_EQ(read.tail.received, tail.received);
  EXPECT_EQ(read.tail.nll, tail.nll);
  EXPECT_EQ(read.first.entries.size(), kTopTokens);
  EXPECT_EQ(read.first.entries[0].token, 36);
  EXPECT_EQ(read.first.log_sum, note.first.log_sum);
  EXPECT_GT(read.entropy, 0);
  EXPECT_EQ(read.entropy, note.entropy);
}

// Random operations against a map from donor to bytes.
class NotePages : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr size_t kPageBytes = 256;

  void Put(BlockId donor) {
    const Bytes note = RandomBytes(random_, 1 + random_.Below(random_.OneIn(4) ? 900 : 100));
    std::vector<DonorNotes::Page> fresh;
    const uint64_t pages = notes_.PagesFor(note.size());
    for (uint64_t i = 0; i < pages; ++i) {
      const BlockId block = next_page_++;
      memory_[block].resize(kPageBytes);
      fresh.push_back({block, memory_[block].data()});
    }
    notes_.Put(donor, note, fresh);
    expected_[donor] = note;
  }
  void Evict() {
    if (memory_.empty()) return;
    auto page = memory_.begin();
    std::advance(page, static_cast<ptrdiff_t>(random_.Below(memory_.size())));
    const BlockId block = page->first;
    std::erase_if(expected_, [&](const auto& entry) {
      const std::vector<BlockId> pages = notes_.PagesOf(entry.first);
      return std::ranges::count(pages, block) > 0;
    });
    ASSERT_TRUE(notes_.Owns(block));
    notes_.PageGone(block);
    memory_.erase(page);
  }
  void Move(BlockId from, BlockId to) {
    notes_.Move(from, to);
    if (from == to) {
      expected_.erase(from);
      return;
    }
    const auto note = expected_.find(from);
    if (note == expected_.end()) return;
    expected_.try_emplace(to, note->second);
    expected_.erase(from);
  }
  void Check() {
    for (const BlockId block : notes_.TakeEmpty()) {
      ASSERT_FALSE(notes_.Owns(block));
      ASSERT_EQ(memory_.erase(block), 1u) << "page " << block << " came back twice";
    }
    ASSERT_EQ(notes_.num_pages(), memory_.size());
    ASSERT_EQ(notes_.num_notes(), expected_.size());
    std::set<BlockId> used;
    for (BlockId donor = 0; donor < 20; ++donor) {
      const auto found = notes_.Find(donor);
      const auto note = expected_.find(donor);
      ASSERT_EQ(found.has_value(), note != expected_.end()) << donor;
      if (found) {
        ASSERT_EQ(*found, note->second) << donor;
      }
      for (const BlockId page : notes_.PagesOf(donor)) used.insert(page);
    }
    ASSERT_EQ(used.size(), memory_.size()) << "a page that holds nothing is kept";
  }

  base::Random random_{GetParam()};
  DonorNotes notes_{kPageBytes};
  std::map<BlockId, Bytes> memory_;    // of the pages that are out
  std::map<BlockId, Bytes> expected_;  // by donor
  BlockId next_page_ = 1000;
};

TEST_P(NotePages, KeepWhatWasPutUntilItGoes) {
  for (int step = 0; step < 5000; ++step) {
    const auto donor = static_cast<BlockId>(random_.Below(20));
    switch (random_.Below(8)) {
      case 0:
        notes_.Drop(donor);
        expected_.erase(donor);
        break;
      case 1:
        ASSERT_NO_FATAL_FAILURE(Evict());
        break;
      case 2:
        Move(donor, static_cast<BlockId>(random_.Below(20)));
        break;
      default:
        Put(donor);
    }
    ASSERT_NO_FATAL_FAILURE(Check()) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, NotePages, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace kvlink::link
