#include "match/edit_path.h"

#include <algorithm>
#include <bit>

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

// Hashes of all runs of `size` tokens, by their first one (polynomial, rolling).
std::vector<uint64_t> RunHashes(std::span<const TokenId> tokens, uint32_t size) {
  if (tokens.size() < size) return {};
  std::vector<uint64_t> hashes;
  hashes.reserve(tokens.size() - size + 1);
  constexpr uint64_t kBase = 0x9e3779b97f4a7c15u;
  uint64_t leaving = 1;
  for (uint32_t i = 0; i < size; ++i) leaving *= kBase;
  uint64_t hash = 0;
  for (size_t end = 1; end <= tokens.size(); ++end) {
    hash = hash * kBase + HashOfWord(tokens[end - 1]);
    if (end > size) hash -= leaving * HashOfWord(tokens[end - 1 - size]);
    if (end >= size) hashes.push_back(hash);
  }
  return hashes;
}

// Where each hash stands; kTwice where at more than one place. Open addressing, half full at most.
class Places {
 public:
  static constexpr uint32_t kNowhere = 0xffffffffu, kTwice = 0xfffffffeu;

  explicit Places(std::span<const uint64_t> hashes) {
    slots_.resize(std::bit_ceil(2 * hashes.size() + 2));
    for (uint32_t i = 0; i < hashes.size(); ++i) {
      Slot& slot = slots_[SlotOf(hashes[i])];
      slot.place = slot.place == kNowhere ? i : kTwice;
      slot.hash = hashes[i];
    }
  }
  uint32_t Of(uint64_t hash) const { return slots_[SlotOf(hash)].place; }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t place = kNowhere;
  };
  size_t SlotOf(uint64_t hash) const {
    size_t at = (hash ^ hash >> 32) & (slots_.size() - 1);
    while (slots_[at].place != kNowhere && slots_[at].hash != hash) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }
  std::vector<Slot> slots_;
};

// Where the same `size` tokens stand in a and in b and nowhere else, in the order of a.
std::vector<ReuseSpan> UniquePairs(std::span<const TokenId> a, std::span<const TokenId> b,
                                   uint32_t size) {
  std::vector<ReuseSpan> pairs;
  const std::vector<uint64_t> in_a = RunHashes(a, size), in_b = RunHashes(b, size);
  if (in_a.empty() || in_b.empty()) return pairs;
  const Places places_a(in_a), places_b(in_b);
  for (uint32_t i = 0; i < in_a.size(); ++i) {
    const uint32_t other = places_b.Of(in_a[i]);
    if (other >= Places::kTwice || places_a.Of(in_a[i]) != i) continue;
    if (!std::ranges::equal(a.subspan(i, size), b.subspan(other, size))) continue;
    pairs.push_back({.position = i, .donor_position = other, .num_rows = size});
  }
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
