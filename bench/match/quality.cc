#include "quality.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "match/alignment.h"
#include "match/donor_index.h"
#include "match/sketch.h"

namespace kvlink::bench {
namespace {

// MurmurHash3 of 32 bits (Appleby, public domain) of three token ids, with seed 0.
uint32_t Murmur3(std::span<const TokenId, 3> tokens) {
  uint32_t h = 0;
  for (const TokenId token : tokens) {
    uint32_t k = static_cast<uint32_t>(token) * 0xcc9e2d51u;
    k = std::rotl(k, 15) * 0x1b873593u;
    h = std::rotl(h ^ k, 13) * 5 + 0xe6546b64u;
  }
  h ^= 12;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

// The source system's fingerprint: one minimum over the prompt's 3-grams.
std::optional<uint32_t> SingleMinimum(const Tokens& tokens) {
  if (tokens.size() < 3) return std::nullopt;
  uint32_t smallest = ~0u;
  for (size_t i = 0; i + 3 <= tokens.size(); ++i) {
    smallest = std::min(smallest, Murmur3(std::span<const TokenId, 3>(&tokens[i], 3)));
  }
  return smallest;
}

uint32_t CommonPrefix(const Tokens& a, const Tokens& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<uint32_t>(end - a.begin());
}

uint32_t RowsLent(const Tokens& tokens, const Tokens& donor, uint32_t exact,
                  const std::vector<uint8_t>& special, const SimilarOptions& options) {
  const auto max_edits =
      static_cast<uint32_t>(options.max_edit_share * static_cast<double>(tokens.size()));
  const match::Alignment alignment = match::Align(
      tokens, donor, {.min_run = options.min_run, .max_edits = max_edits, .special = special});
  uint32_t rows = 0;
  for (const ReuseSpan& span : match::SpansBehind(alignment.spans, exact)) rows += span.num_rows;
  return rows;
}

void Count(std::optional<uint32_t> found, const std::vector<uint32_t>& lent, uint32_t best,
           const SimilarOptions& options, Counts* counts) {
  ++counts->queries;
  const bool has_donor = best >= options.min_reused_rows;
  counts->have_donor += has_donor ? 1 : 0;
  if (!found) return;
  ++counts->returned;
  if (has_donor && 10 * lent[*found] >= 9 * best) ++counts->right;
}

}  // namespace

Quality Measure(const Case& prompts, const match::NormalTokens& classes,
                const std::vector<uint8_t>& special, const SimilarOptions& options) {
  Quality quality;
  const match::Root root = match::KeyMaker("bench").MakeRoot({});
  match::DonorIndex index(options);
  std::unordered_map<uint32_t, uint32_t> by_minimum;  // the newest donor of a fingerprint
  std::vector<const Tokens*> donors;
  double tokens_sum = 0, exact_sum = 0, best_sum = 0;
  for (const Case::Item& item : prompts.items) {
    const match::Sketch sketch = match::MakeSketch(item.tokens, classes, options);
    const std::optional<uint32_t> minimum = SingleMinimum(item.tokens);
    if (item.is_query && !donors.empty()) {
      uint32_t exact = 0;
      for (const Tokens* donor : donors) exact = std::max(exact, CommonPrefix(item.tokens, *donor));
      std::vector<uint32_t> lent;
      for (const Tokens* donor : donors) {
        lent.push_back(RowsLent(item.tokens, *donor, exact, special, options));
      }
      const uint32_t best = *std::ranges::max_element(lent);
      const auto match = index.Find(root, sketch, exact);
      Count(match ? std::optional(static_cast<uint32_t>(match->donor)) : std::nullopt, lent, best,
            options, &quality.index);
      const auto same = minimum ? by_minimum.find(*minimum) : by_minimum.end();
      Count(same == by_minimum.end() ? std::nullopt : std::optional(same->second), lent, best,
            options, &quality.single_minimum);
      tokens_sum += static_cast<double>(item.tokens.size());
      exact_sum += exact;
      best_sum += best;
    }
    if (!item.is_donor) continue;
    index.Add(donors.size(), root, sketch);
    if (minimum) by_minimum[*minimum] = static_cast<uint32_t>(donors.size());
    donors.push_back(&item.tokens);
  }
  const double queries = std::max(quality.index.queries, 1u);
  quality.mean_tokens = tokens_sum / queries;
  quality.mean_exact = exact_sum / queries;
  quality.mean_best = best_sum / queries;
  return quality;
}

}  // namespace kvlink::bench
