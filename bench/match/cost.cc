#include "cost.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>

#include "base/random.h"
#include "match/alignment.h"
#include "match/donor_index.h"
#include "match/sketch.h"

namespace kvlink::bench {
namespace {

double CpuMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

class Stopwatch {
 public:
  // Since the last lap, or the start.
  double Lap() {
    const double now = CpuMicroseconds(), lap = now - start_;
    start_ = now;
    return lap;
  }

 private:
  double start_ = CpuMicroseconds();
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Median over five rounds of the time that work() takes.
template <typename Work>
double Timed(Work work) {
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    const double start = CpuMicroseconds();
    work();
    rounds.push_back(CpuMicroseconds() - start);
  }
  return Median(rounds);
}

// Made again from its number whenever it is needed: a million of them need not be kept.
Tokens DonorTokens(uint64_t seed, uint64_t number) {
  base::Random random(seed * 1000003 + number);
  const bool has_template = number % 10 == 0;
  Tokens tokens(96 + random.Below(65));
  base::Random words(has_template ? seed : random.Next());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>((i < 48 ? words : random).Below(49152));
  }
  return tokens;
}

}  // namespace

PromptCost MeasurePrompts(const Case& prompts, const match::NormalTokens& classes,
                          const std::vector<uint8_t>& special, double prefill_us_per_token,
                          const SimilarOptions& options) {
  const match::Root root = match::KeyMaker("bench").MakeRoot({});
  double tokens = 0, donor_tokens = 0;
  size_t queries = 0;
  std::array<std::vector<double>, 4> rounds;  // sketch, find, align, add
  for (int round = 0; round < 5; ++round) {
    match::DonorIndex index(options);
    std::array<double, 4> sums{};
    tokens = donor_tokens = 0;
    queries = 0;
    for (size_t i = 0; i < prompts.items.size(); ++i) {
      const Case::Item& item = prompts.items[i];
      const auto size = static_cast<uint32_t>(item.tokens.size());
      Stopwatch watch;
      const match::Sketch sketch = match::MakeSketch(item.tokens, classes, options);
      if (item.is_query) {
        sums[0] += watch.Lap();
        const auto match = index.Find(root, sketch, 0);
        sums[1] += watch.Lap();
        if (match) {
          const uint32_t max_edits =
              match::MaxEdits(size, match->estimated_rows, prefill_us_per_token, options);
          (void)match::Align(
              item.tokens, prompts.items[match->donor].tokens,
              {.min_run = options.min_run, .max_edits = max_edits, .special = special});
        }
        sums[2] += watch.Lap();
        tokens += size;
        ++queries;
      }
      if (!item.is_donor) continue;
      watch.Lap();
      index.Add(i, root, sketch);
      sums[3] += watch.Lap();
      donor_tokens += size;
    }
    for (size_t i = 0; i < sums.size(); ++i) rounds[i].push_back(sums[i]);
  }
  PromptCost cost;
  cost.tokens = tokens / static_cast<double>(std::max<size_t>(queries, 1));
  cost.sketch_us = 1000 * Median(rounds[0]) / tokens;
  cost.find_us = 1000 * Median(rounds[1]) / tokens;
  cost.align_us = 1000 * Median(rounds[2]) / tokens;
  cost.add_us = 1000 * Median(rounds[3]) / std::max(donor_tokens, 1.0);
  return cost;
}

StoreCost MeasureStore(uint64_t num_donors, uint64_t seed, const SimilarOptions& options) {
  StoreCost cost{.num_donors = num_donors};
  const match::Root root = match::KeyMaker("bench").MakeRoot({});
  const match::NormalTokens classes;
  match::DonorIndex index(options);
  double add_us = 0;
  constexpr uint64_t kBatch = 1000;
  for (uint64_t first = 0; first < num_donors; first += kBatch) {
    std::vector<match::Sketch> sketches;
    for (uint64_t i = first; i < std::min(first + kBatch, num_donors); ++i) {
      sketches.push_back(match::MakeSketch(DonorTokens(seed, i), classes, options));
    }
    const double start = CpuMicroseconds();
    for (uint64_t i = 0; i < sketches.size(); ++i) index.Add(first + i, root, sketches[i]);
    add_us += CpuMicroseconds() - start;
  }
  cost.add_us = add_us / static_cast<double>(num_donors);
  cost.bytes_per_donor =
      static_cast<double>(index.tracking_bytes()) / static_cast<double>(num_donors);

  base::Random random(seed);
  constexpr size_t kPrompts = 400, kPromptTokens = 1024;
  std::vector<match::Sketch> sketches;
  std::vector<std::optional<uint64_t>> right;
  for (size_t i = 0; i < kPrompts; ++i) {
    Tokens prompt(kPromptTokens);
    for (TokenId& token : prompt) token = static_cast<TokenId>(random.Below(49152));
    right.push_back(std::nullopt);
    if (i % 2 == 0) {
      right.back() = random.Below(num_donors);
      const Tokens donor = DonorTokens(seed, *right.back());
      std::ranges::copy(donor, prompt.begin() + 300);
    }
    sketches.push_back(match::MakeSketch(prompt, classes, options));
  }
  size_t found = 0;
  cost.find_us = Timed([&] {
                   found = 0;
                   for (size_t i = 0; i < kPrompts; ++i) {
                     const auto match = index.Find(root, sketches[i], 0);
                     found += match && right[i] && match->donor == *right[i] ? 1 : 0;
                   }
                 }) /
                 kPrompts;
  cost.found = static_cast<double>(found) / (kPrompts / 2);
  const uint64_t erased = std::min<uint64_t>(num_donors, 1000);
  const double start = CpuMicroseconds();
  for (uint64_t i = 0; i < erased; ++i) index.Erase(i);
  cost.erase_us = (CpuMicroseconds() - start) / static_cast<double>(erased);
  return cost;
}

}  // namespace kvlink::bench
