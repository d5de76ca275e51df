#include "match/alignment.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "match/edit_path.h"

namespace kvlink::match {
namespace {

constexpr double kNsPerStep = 3;       // of the search, one point on one diagonal
constexpr uint32_t kMostEdits = 2048;  // whatever there is to gain: 8 MiB of trace

uint32_t CommonPrefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<uint32_t>(end - a.begin());
}

uint32_t CommonSuffix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto end = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first;
  return static_cast<uint32_t>(end - a.rbegin());
}

// Joins neighbours that touch in both.
void Append(std::vector<ReuseSpan>* spans, const ReuseSpan& span) {
  if (span.num_rows == 0) return;
  if (!spans->empty() && spans->back().end() == span.position &&
      spans->back().donor_end() == span.donor_position) {
    spans->back().num_rows += span.num_rows;
    return;
  }
  spans->push_back(span);
}

// Into the gaps that dropped runs and other choices left. Ends first: what follows an edit is worth
// less than what comes before one.
void Grow(std::span<const TokenId> tokens, std::span<const TokenId> donor,
          std::vector<ReuseSpan>* spans) {
  for (size_t i = 0; i < spans->size(); ++i) {
    ReuseSpan& span = (*spans)[i];
    const bool is_last = i + 1 == spans->size();
    const uint32_t end = is_last ? static_cast<uint32_t>(tokens.size()) : (*spans)[i + 1].position;
    const uint32_t donor_end =
        is_last ? static_cast<uint32_t>(donor.size()) : (*spans)[i + 1].donor_position;
    while (span.end() < end && span.donor_end() < donor_end &&
           tokens[span.end()] == donor[span.donor_end()]) {
      ++span.num_rows;
    }
    const uint32_t begin = i == 0 ? 0 : (*spans)[i - 1].end();
    const uint32_t donor_begin = i == 0 ? 0 : (*spans)[i - 1].donor_end();
    while (span.position > begin && span.donor_position > donor_begin &&
           tokens[span.position - 1] == donor[span.donor_position - 1]) {
      --span.position;
      --span.donor_position;
      ++span.num_rows;
    }
  }
}

void TrimFront(ReuseSpan* span, uint32_t rows) {
  rows = std::min(rows, span->num_rows);
  span->position += rows;
  span->donor_position += rows;
  span->num_rows -= rows;
}

// The first rows of a prompt are attention sinks: a row that was one is none elsewhere.
void LeaveSinks(ReuseSpan* span) {
  const uint32_t first = std::min(span->position, span->donor_position);
  if (first < kSinkRows) TrimFront(span, kSinkRows - first);
}

class Roles {
 public:
  Roles(std::span<const TokenId> tokens, std::span<const uint8_t> special)
      : tokens_(tokens), special_(special) {}
  bool IsMarker(uint32_t position) const {
    const auto id = static_cast<uint32_t>(tokens_[position]);
    return id < special_.size() && special_[id] != 0;
  }
  // The last marker up to `position`, and the token behind it, which names the role.
  std::pair<TokenId, TokenId> At(uint32_t position) const {
    for (uint32_t i = position + 1; i-- > 0;) {
      if (IsMarker(i)) return {tokens_[i], i + 1 < tokens_.size() ? tokens_[i + 1] : -1};
    }
    return {-1, -1};
  }

 private:
  std::span<const TokenId> tokens_;
  std::span<const uint8_t> special_;
};

// Rows that spoke for another role are given up; from the next marker inside the run on, the roles
// are the same.
void LeaveOtherRoles(const Roles& roles, const Roles& donor_roles, ReuseSpan* span) {
  if (span->num_rows == 0) return;
  if (roles.At(span->position) == donor_roles.At(span->donor_position)) return;
  uint32_t rows = 0;
  while (rows < span->num_rows && !roles.IsMarker(span->position + rows)) ++rows;
  TrimFront(span, rows);
}

// Unique runs, and between them what a shortest edit finds with the edits that are left.
std::vector<ReuseSpan> RunsBeyondTheBound(std::span<const TokenId> tokens,
                                          std::span<const TokenId> donor, uint32_t min_run,
                                          uint32_t max_edits) {
  std::vector<ReuseSpan> unique = RunsOfUniqueGrams(tokens, donor, min_run);
  if (unique.empty()) return unique;
  Grow(tokens, donor, &unique);
  std::vector<ReuseSpan> runs;
  uint32_t begin = 0, donor_begin = 0;
  for (size_t i = 0; i <= unique.size(); ++i) {
    const bool is_end = i == unique.size();
    const auto end = is_end ? static_cast<uint32_t>(tokens.size()) : unique[i].position;
    const auto donor_end = is_end ? static_cast<uint32_t>(donor.size()) : unique[i].donor_position;
    const uint32_t rows = end - begin, donor_rows = donor_end - donor_begin;
    if (rows >= min_run && donor_rows >= min_run) {
      const auto between = RunsOfShortestEdit(tokens.subspan(begin, rows),
                                              donor.subspan(donor_begin, donor_rows), max_edits);
      if (between) {
        uint32_t kept = 0;
        for (ReuseSpan run : *between) {
          kept += run.num_rows;
          run.position += begin;
          run.donor_position += donor_begin;
          Append(&runs, run);
        }
        max_edits -= rows + donor_rows - 2 * kept;
      }
    }
    if (is_end) break;
    Append(&runs, unique[i]);
    begin = unique[i].end();
    donor_begin = unique[i].donor_end();
  }
  return runs;
}

// What lies between the spans of one of the prompts; gaps shorter than a run are left out, and a
// token that stands nowhere else is put between the others.
template <typename Start>
std::vector<TokenId> Gaps(std::span<const TokenId> tokens, std::span<const ReuseSpan> spans,
                          uint32_t min_run, TokenId separator, Start start_of) {
  std::vector<TokenId> gaps;
  uint32_t begin = 0;
  for (size_t i = 0; i <= spans.size(); ++i) {
    const auto end = i == spans.size() ? static_cast<uint32_t>(tokens.size()) : start_of(spans[i]);
    if (end - begin >= min_run) {
      const auto gap = tokens.subspan(begin, end - begin);
      gaps.insert(gaps.end(), gap.begin(), gap.end());
      gaps.push_back(separator);
    }
    if (i < spans.size()) begin = end + spans[i].num_rows;
  }
  return gaps;
}

uint32_t CountMoved(std::span<const TokenId> tokens, std::span<const TokenId> donor,
                    std::span<const ReuseSpan> spans, uint32_t min_run) {
  const auto gaps = Gaps(tokens, spans, min_run, -1, [](const ReuseSpan& s) { return s.position; });
  const auto donor_gaps =
      Gaps(donor, spans, min_run, -2, [](const ReuseSpan& s) { return s.donor_position; });
  return TokensInUniqueGrams(gaps, donor_gaps, min_run);
}

}  // namespace

Alignment Align(std::span<const TokenId> tokens, std::span<const TokenId> donor,
                const AlignOptions& options) {
  Alignment alignment;
  const uint32_t prefix = CommonPrefix(tokens, donor);
  const auto rest = tokens.subspan(prefix), donor_rest = donor.subspan(prefix);
  const uint32_t suffix = CommonSuffix(rest, donor_rest);
  const auto middle = rest.first(rest.size() - suffix);
  const auto donor_middle = donor_rest.first(donor_rest.size() - suffix);
  const uint32_t min_run = std::max(options.min_run, 1u);
  std::optional<std::vector<ReuseSpan>> runs;
  if (middle.empty() || donor_middle.empty()) {
    runs.emplace();
  } else {
    runs = RunsOfShortestEdit(middle, donor_middle, options.max_edits);
  }
  alignment.within_bound = runs.has_value();
  if (!runs) runs = RunsBeyondTheBound(middle, donor_middle, min_run, options.max_edits);

  std::vector<ReuseSpan> all;
  Append(&all, {.num_rows = prefix});
  for (const ReuseSpan& run : *runs) {
    Append(&all, {.position = run.position + prefix,
                  .donor_position = run.donor_position + prefix,
                  .num_rows = run.num_rows});
  }
  Append(&all, {.position = static_cast<uint32_t>(tokens.size()) - suffix,
                .donor_position = static_cast<uint32_t>(donor.size()) - suffix,
                .num_rows = suffix});
  const auto is_prefix = [](const ReuseSpan& s) {
    return s.position == 0 && s.donor_position == 0;
  };
  const auto is_short = [&](const ReuseSpan& s) { return !is_prefix(s) && s.num_rows < min_run; };
  std::erase_if(all, is_short);
  Grow(tokens, donor, &all);
  const Roles roles(tokens, options.special), donor_roles(donor, options.special);
  for (ReuseSpan& span : all) {
    if (is_prefix(span)) continue;
    LeaveSinks(&span);
    LeaveOtherRoles(roles, donor_roles, &span);
  }
  std::erase_if(all, is_short);
  for (const ReuseSpan& span : all) alignment.num_matched += span.num_rows;
  alignment.num_moved = CountMoved(tokens, donor, all, min_run);
  alignment.spans = std::move(all);
  return alignment;
}

uint32_t MaxEdits(uint32_t num_tokens, uint32_t gain_rows, double us_per_row,
                  const SimilarOptions& options) {
  const double budget_ns = options.lookup_cost_share * gain_rows * us_per_row * 1e3;
  const double affordable = std::sqrt(2 * std::max(budget_ns, 0.0) / kNsPerStep);
  const double sensible = options.max_edit_share * num_tokens;
  return static_cast<uint32_t>(std::min({affordable, sensible, double{kMostEdits}}));
}

std::vector<ReuseSpan> SpansBehind(std::span<const ReuseSpan> spans, uint32_t position) {
  std::vector<ReuseSpan> behind;
  for (ReuseSpan span : spans) {
    if (span.position < position) TrimFront(&span, position - span.position);
    if (span.num_rows > 0) behind.push_back(span);
  }
  return behind;
}

}  // namespace kvlink::match
