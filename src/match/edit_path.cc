#include "match/edit_path.h"

#include <algorithm>
#include <unordered_map>

#include "base/random.h"

namespace kvlink::match {
namespace {

// The furthest point on every diagonal k = x - y after d edits, d = 0, 1, ...: row d has d + 1
// entries, for k = -d, -d + 2, ..., d.
class Trace {
 public:
  int32_t& At(int32_t d, int32_t k) { return points_[Index(d, k)]; }
  void AddRow(int32_t d) { points_.resize(points_.size() + static_cast<size_t>(d) + 1); }

 private:
  static size_t Index(int32_t d, int32_t k) {
    const auto row = static_cast<size_t>(d);
    return row * (row + 1) / 2 + static_cast<size_t>((k + d) / 2);
  }
  std::vector<int32_t> points_;
};

// Whether the best way to diagonal k with d edits inserts (comes from k + 1) rather than deletes.
bool ComesFromAbove(Trace& trace, int32_t d, int32_t k) {
  return k == -d || (k != d && trace.At(d - 1, k - 1) < trace.At(d - 1, k + 1));
}

std::vector<ReuseSpan> WalkBack(Trace& trace, int32_t d, int32_t x, int32_t y) {
  std::vector<ReuseSpan> runs;
  for (;;) {
    const int32_t k = x - y;
    const bool above = d > 0 && ComesFromAbove(trace, d, k);
    const int32_t previous_k = above ? k + 1 : k - 1;
    // Where this diagonal's snake starts: right behind the d-th edit, or at the origin.
    int32_t start = 0;
    if (d > 0) start = trace.At(d - 1, previous_k) + (above ? 0 : 1);
    if (x > start) {
      runs.push_back({.position = static_cast<uint32_t>(start),
                      .donor_position = static_cast<uint32_t>(start - k),
                      .num_rows = static_cast<uint32_t>(x - start)});
    }
    if (d == 0) break;
    --d;
    x = trace.At(d, previous_k);
    y = x - previous_k;
  }
  std::ranges::reverse(runs);
  return runs;
}

uint64_t HashOfWord(TokenId token) {
  uint64_t state = static_cast<uint32_t>(token);
  return base::SplitMix64(state);
}

// Where a run of `size` tokens starts, by its hash; kTwice where there is more than one.
constexpr uint32_t kTwice = 0xffffffffu;
std::unordered_map<uint64_t, uint32_t> PlacesOfGrams(std::span<const TokenId> tokens,
                                                     uint32_t size) {
  std::unordered_map<uint64_t, uint32_t> places;
  places.reserve(tokens.size());
  constexpr uint64_t kBase = 0x9e3779b97f4a7c15u;
  uint64_t leaving = 1;
  for (uint32_t i = 0; i < size; ++i) leaving *= kBase;
  uint64_t hash = 0;
  for (size_t end = 1; end <= tokens.size(); ++end) {
    hash = hash * kBase + HashOfWord(tokens[end - 1]);
    if (end > size) hash -= leaving * HashOfWord(tokens[end - 1 - size]);
    if (end < size) continue;
    const auto [known, is_new] = places.try_emplace(hash, static_cast<uint32_t>(end - size));
    if (!is_new) known->second = kTwice;
  }
  return places;
}

// Where the same `size` tokens stand in a and in b and nowhere else, in the order of a.
std::vector<ReuseSpan> UniquePairs(std::span<const TokenId> a, std::span<const TokenId> b,
                                   uint32_t size) {
  std::vector<ReuseSpan> pairs;
  if (a.size() < size || b.size() < size) return pairs;
  const auto in_a = PlacesOfGrams(a, size), in_b = PlacesOfGrams(b, size);
  for (const auto& [hash, place] : in_a) {
    if (place == kTwice) continue;
    const auto other = in_b.find(hash);
    if (other == in_b.end() || other->second == kTwice) continue;
    if (!std::ranges::equal(a.subspan(place, size), b.subspan(other->second, size))) continue;
    pairs.push_back({.position = place, .donor_position = other->second, .num_rows = size});
  }
  std::ranges::sort(pairs, {}, &ReuseSpan::position);
  return pairs;
}

// Longest chain of pairs ascending in both, from pairs in ascending order of `position` (patience
// sorting).
std::vector<ReuseSpan> LongestAscending(const std::vector<ReuseSpan>& pairs) {
  std::vector<size_t> tails;  // of the chains of length 1, 2, ...: the pair that ends lowest
  std::vector<size_t> before(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto place = std::ranges::lower_bound(tails, pairs[i].donor_position, {},
                                                [&](size_t p) { return pairs[p].donor_position; });
    before[i] = place == tails.begin() ? i : *std::prev(place);
    if (place == tails.end()) {
      tails.push_back(i);
    } else {
      *place = i;
    }
  }
  std::vector<ReuseSpan> chain;
  if (tails.empty()) return chain;
  for (size_t i = tails.back();; i = before[i]) {
    chain.push_back(pairs[i]);
    if (before[i] == i) break;
  }
  std::ranges::reverse(chain);
  return chain;
}

}  // namespace

std::optional<std::vector<ReuseSpan>> RunsOfShortestEdit(std::span<const TokenId> a,
                                                         std::span<const TokenId> b,
                                                         uint32_t max_edits) {
  const auto n = static_cast<int32_t>(a.size()), m = static_cast<int32_t>(b.size());
  const auto most = static_cast<int32_t>(std::min<uint64_t>(max_edits, a.size() + b.size()));
  Trace trace;
  for (int32_t d = 0; d <= most; ++d) {
    trace.AddRow(d);
    for (int32_t k = -d; k <= d; k += 2) {
      int32_t x = 0;
      if (d > 0) {
        x = ComesFromAbove(trace, d, k) ? trace.At(d - 1, k + 1) : trace.At(d - 1, k - 1) + 1;
      }
      int32_t y = x - k;
      while (x < n && y < m && a[static_cast<size_t>(x)] == b[static_cast<size_t>(y)]) ++x, ++y;
      trace.At(d, k) = x;
      if (x >= n && y >= m) return WalkBack(trace, d, x, y);
    }
  }
  return std::nullopt;
}

uint32_t TokensInUniqueGrams(std::span<const TokenId> a, std::span<const TokenId> b,
                             uint32_t min_run) {
  uint32_t count = 0, end = 0;
  for (const ReuseSpan& pair : UniquePairs(a, b, min_run)) {
    count += pair.end() - std::max(pair.position, end);
    end = pair.end();
  }
  return count;
}

std::vector<ReuseSpan> RunsOfUniqueGrams(std::span<const TokenId> a, std::span<const TokenId> b,
                                         uint32_t min_run) {
  std::vector<ReuseSpan> runs;
  for (ReuseSpan next : LongestAscending(UniquePairs(a, b, min_run))) {
    if (runs.empty()) {
      runs.push_back(next);
      continue;
    }
    ReuseSpan& last = runs.back();
    if (next.shift() == last.shift() && next.position <= last.end()) {
      last.num_rows = next.end() - last.position;
      continue;
    }
    const uint32_t overlap = std::max(
        last.end() > next.position ? last.end() - next.position : 0,
        last.donor_end() > next.donor_position ? last.donor_end() - next.donor_position : 0);
    if (overlap >= next.num_rows) continue;
    runs.push_back({.position = next.position + overlap,
                    .donor_position = next.donor_position + overlap,
                    .num_rows = next.num_rows - overlap});
  }
  return runs;
}

}  // namespace kvlink::match
