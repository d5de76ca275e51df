#include "match/anchor_runs.h"

#include <algorithm>

#include "match/sketch.h"

namespace kvlink::match {
namespace {

// Where a text repeats itself: distances followed at one time, and the most places at which an
// n-gram starts new ones while others are followed.
constexpr size_t kMostOpen = 16;
constexpr size_t kMostPlaces = 4;

// A run that the anchor before ended.
struct Open {
  uint32_t run = 0;
  uint32_t next_donor_position = 0;  // where the next anchor must stand to go on with it
};

uint32_t PositionOf(const KeyPlace& place) { return place.position; }

}  // namespace

PromptAnchors::PromptAnchors(std::span<const KeyPlace> by_position) {
  positions_.reserve(by_position.size());
  by_key_.reserve(by_position.size());
  for (const KeyPlace& place : by_position) {
    by_key_.push_back({place.key, static_cast<uint32_t>(positions_.size())});
    positions_.push_back(place.position);
    tags_.push_back(static_cast<uint8_t>(place.tag));
  }
  std::ranges::sort(by_key_);
}

std::vector<uint32_t> PromptAnchors::KeysBehind(uint32_t position) const {
  std::vector<uint32_t> keys;
  keys.reserve(by_key_.size());
  for (const auto& [key, index] : by_key_) {
    if (positions_[index] >= position && (keys.empty() || keys.back() != key)) keys.push_back(key);
  }
  return keys;
}

std::vector<PromptAnchors::Run> PromptAnchors::Runs(std::span<const KeyPlace> donor,
                                                    uint32_t exact_tokens) const {
  // The donor's places of every anchor's key.
  std::vector<std::span<const KeyPlace>> places(positions_.size());
  size_t begin = 0, end = 0;
  for (const auto& [key, index] : by_key_) {
    if (end == begin || donor[begin].key != key) {
      for (begin = end; begin < donor.size() && donor[begin].key < key;) ++begin;
      for (end = begin; end < donor.size() && donor[end].key == key;) ++end;
    }
    places[index] = donor.subspan(begin, end - begin);
  }
  std::vector<Run> runs;
  std::vector<Open> open, still_open;
  for (size_t i = 0; i < positions_.size(); ++i) {
    const uint32_t position = positions_[i];
    still_open.clear();
    for (const Open& before : open) {
      const uint32_t step = position - positions_[i - 1];
      const uint32_t donor_position = before.next_donor_position + step;
      const auto place = std::ranges::lower_bound(places[i], donor_position, {}, PositionOf);
      if (place == places[i].end() || place->position != donor_position || place->tag != tags_[i]) {
        continue;
      }
      Run& run = runs[before.run];
      run.last = position;
      run.donor_last = donor_position;
      run.rows += step;
      run.rows_behind += positions_[i - 1] >= exact_tokens ? step : 0;
      still_open.push_back({before.run, donor_position});
    }
    const size_t followed = still_open.size();
    const bool may_start = followed == 0 || places[i].size() <= kMostPlaces;
    for (const KeyPlace& place : places[i]) {
      if (!may_start || still_open.size() == kMostOpen) break;
      if (place.tag != tags_[i]) continue;
      const auto is_same = [&](const Open& o) { return o.next_donor_position == place.position; };
      if (std::any_of(still_open.begin(),
                      still_open.begin() + static_cast<std::ptrdiff_t>(followed), is_same)) {
        continue;
      }
      still_open.push_back({static_cast<uint32_t>(runs.size()), place.position});
      runs.push_back({.first = position,
                      .last = position,
                      .donor_first = place.position,
                      .donor_last = place.position,
                      .rows = kGram,
                      .rows_behind = position >= exact_tokens ? kGram : 0});
    }
    open.swap(still_open);
  }
  // One anchor alone is chance.
  std::erase_if(runs, [](const Run& run) { return run.first == run.last; });
  return runs;
}

uint32_t PromptAnchors::SharedRows(std::span<const KeyPlace> donor, uint32_t exact_tokens,
                                   uint32_t min_rows) const {
  std::vector<Run> runs = Runs(donor, exact_tokens);
  std::erase_if(runs, [&](const Run& run) { return run.rows < min_rows; });
  if (runs.size() > kMostRuns) {
    std::ranges::nth_element(runs, runs.begin() + kMostRuns, std::ranges::greater(), &Run::rows);
    runs.resize(kMostRuns);
  }
  std::ranges::sort(runs, {}, &Run::first);
  // The heaviest chain that ends with each run; of it, the rows behind the exact ones.
  struct Chain {
    uint32_t rows, rows_behind;
  };
  std::vector<Chain> chains;
  Chain best{0, 0};
  for (size_t i = 0; i < runs.size(); ++i) {
    Chain chain{0, 0};
    for (size_t j = 0; j < i; ++j) {
      if (runs[j].last < runs[i].first && runs[j].donor_last < runs[i].donor_first &&
          chains[j].rows > chain.rows) {
        chain = chains[j];
      }
    }
    chains.push_back({chain.rows + runs[i].rows, chain.rows_behind + runs[i].rows_behind});
    if (chains.back().rows > best.rows) best = chains.back();
  }
  return best.rows_behind;
}

}  // namespace kvlink::match
