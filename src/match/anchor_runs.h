// How many rows two prompts seem to share, from their anchors alone: runs of neighbouring anchors
// at one distance (position in the donor - position in the prompt), of which a chain is taken that
// is ascending in both. What they share by chance stands at many distances, and what stands in
// another order is in no chain, so that neither counts. Nor do anchors of the same classes but
// other raw ids: a list of other numbers is found, and then seen to be another.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvlink::match {

// A key, where its n-gram starts, and its tag.
struct KeyPlace {
  uint32_t key = 0;
  uint32_t position : 24 = 0;  // prompts end long before 16 million tokens
  uint32_t tag : 8 = 0;
  bool operator==(const KeyPlace& other) const { return Packed() == other.Packed(); }
  auto operator<=>(const KeyPlace& other) const { return Packed() <=> other.Packed(); }
  uint64_t Packed() const { return uint64_t{key} << 32 | uint64_t{position} << 8 | tag; }
};

class PromptAnchors {
 public:
  // Requires: ascending positions.
  explicit PromptAnchors(std::span<const KeyPlace> by_position);

  // Keys of anchors from `position` on, ascending, each once.
  std::vector<uint32_t> KeysBehind(uint32_t position) const;

  // Rows behind the first `exact_tokens` that a donor with these anchors (ascending by key, then by
  // position) seems to share in runs of at least `min_rows`. Too few rather than too many: a run's
  // ends up to the next anchor are not counted. Time O(anchors of both), and runs^2 for at most
  // kMostRuns.
  uint32_t SharedRows(std::span<const KeyPlace> donor, uint32_t exact_tokens,
                      uint32_t min_rows = 0) const;

  static constexpr size_t kMostRuns = 128;

 private:
  struct Run {
    uint32_t first = 0, last = 0;  // positions of its anchors in the prompt
    uint32_t donor_first = 0, donor_last = 0;
    uint32_t rows = 0, rows_behind = 0;
  };
  std::vector<Run> Runs(std::span<const KeyPlace> donor, uint32_t exact_tokens) const;

  std::vector<uint32_t> positions_;
  std::vector<uint8_t> tags_;
  std::vector<std::pair<uint32_t, uint32_t>> by_key_;  // {key, index into positions_}
};

}  // namespace kvlink::match
