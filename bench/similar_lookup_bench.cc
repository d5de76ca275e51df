// What recording a donor's tail costs beside the model (logits of 8 rows of 49,152 tokens), and the
// same sums in double; what a lookup costs with similar reuse off, on without a donor, and on with
// one; per request, for prompts of 1k, 2.4k and 8k tokens. `share` is the cost as a part of the
// prefill that the lookup is for, at 0.5 ms a row (a model of 135M parameters on two cores; larger
// models take longer).
//   build/<preset>/bench/similar_lookup_bench --benchmark_min_time=0.2
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "base/exp_sums.h"
#include "base/random.h"
#include "kvlink/cache.h"
#include "link/donor_notes.h"

namespace {

using kvlink::TokenId;
using Tokens = std::vector<TokenId>;

constexpr double kPrefillSecondsPerRow = 0.5e-3;

Tokens RandomTokens(kvlink::base::Random& random, size_t count) {
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(40000));
  return tokens;
}

// A cache of small pages with `donors` prompts of `size` tokens, all strangers to each other.
class World {
 public:
  World(size_t size, size_t donors, kvlink::SimilarPolicy policy) : random_(1) {
    kvlink::CacheOptions options;
    options.shape = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
    options.budget_bytes = (donors + 4) * (size + 64) * options.shape.token_bytes() * 2;
    options.model_fingerprint = "bench";
    options.similar.policy = policy;
    options.similar_model.calibrated.fill({.trials = 1000, .failures = 0});
    cache_ = std::move(kvlink::CreateCache(options)).value();
    for (size_t i = 0; i < donors; ++i) Store(RandomTokens(random_, size));
    text_ = RandomTokens(random_, size);
  }
  void Store(const Tokens& tokens) {
    kvlink::LookupRequest request;
    request.tokens = tokens;
    auto sequence = std::move(cache_->Begin(request, cache_->Lookup(request))).value();
    sequence->Commit(tokens);
  }
  // The text with another line near its start.
  Tokens Mutated() {
    Tokens tokens = text_;
    for (size_t i = 40; i < 52; ++i) tokens[i] = static_cast<TokenId>(random_.Below(40000));
    tokens.insert(tokens.begin() + 60, random_.OneIn(2) ? 1 : 2, 7);
    return tokens;
  }
  Tokens Stranger() { return RandomTokens(random_, text_.size()); }
  void StoreText() { Store(text_); }
  kvlink::Cache& cache() { return *cache_; }

 private:
  kvlink::base::Random random_;
  std::unique_ptr<kvlink::Cache> cache_;
  Tokens text_;
};

void Report(benchmark::State& state) {
  const double prefill = kPrefillSecondsPerRow * static_cast<double>(state.range(0));
  state.counters["share"] = benchmark::Counter(
      prefill, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void LookUp(benchmark::State& state, World& world, const Tokens& tokens) {
  kvlink::LookupRequest request;
  request.tokens = tokens;
  request.similar = kvlink::SimilarPolicy::kOn;
  for (auto _ : state) benchmark::DoNotOptimize(world.cache().Lookup(request));
  Report(state);
}

void Off(benchmark::State& state) {
  World world(static_cast<size_t>(state.range(0)), 20, kvlink::SimilarPolicy::kOff);
  LookUp(state, world, world.Stranger());
}
void NoDonor(benchmark::State& state) {
  World world(static_cast<size_t>(state.range(0)), 20, kvlink::SimilarPolicy::kOn);
  LookUp(state, world, world.Stranger());
}
void Donor(benchmark::State& state) {
  World world(static_cast<size_t>(state.range(0)), 20, kvlink::SimilarPolicy::kOn);
  world.StoreText();
  const Tokens tokens = world.Mutated();
  kvlink::LookupRequest request;
  request.tokens = tokens;
  request.similar = kvlink::SimilarPolicy::kOn;
  if (!world.cache().Lookup(request).similar) return state.SkipWithError("no donor was found");
  LookUp(state, world, tokens);
}
// A whole request that shares nothing: look up, begin, commit in chunks of 512, release.
void Cold(benchmark::State& state, kvlink::SimilarPolicy policy) {
  const auto size = static_cast<size_t>(state.range(0));
  World world(size, 20, policy);
  kvlink::LookupRequest request;
  request.similar = policy;
  for (auto _ : state) {
    state.PauseTiming();
    const Tokens tokens = world.Stranger();
    request.tokens = tokens;
    state.ResumeTiming();
    auto sequence = std::move(world.cache().Begin(request, world.cache().Lookup(request))).value();
    for (size_t at = 0; at < size; at += 512) {
      sequence->Commit(std::span(tokens).subspan(at, std::min<size_t>(512, size - at)));
    }
    sequence.reset();
  }
  Report(state);
}
void ColdOff(benchmark::State& state) { Cold(state, kvlink::SimilarPolicy::kOff); }
void ColdOn(benchmark::State& state) { Cold(state, kvlink::SimilarPolicy::kOn); }

// Of a donor: how likely its last tokens were, the first token's distribution, its entropy.
constexpr size_t kVocabulary = 49'152, kTailRows = 8;

std::vector<float> TailLogits() {
  kvlink::base::Random random(2);
  std::vector<float> logits(kTailRows * kVocabulary);
  for (float& logit : logits) logit = static_cast<float>(14 * (random.Unit() - 0.5));
  return logits;
}
double LogSumInDouble(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  return largest + std::log(sum);
}
template <typename LogSum>
void RecordTail(benchmark::State& state, LogSum log_sum) {
  const std::vector<float> logits = TailLogits();
  const std::span<const float> all = logits;
  for (auto _ : state) {
    kvlink::PromptTail tail;
    for (size_t row = 0; row + 1 < kTailRows; ++row) {
      const auto of_row = all.subspan(row * kVocabulary, kVocabulary);
      tail.nll.push_back(static_cast<float>(log_sum(of_row) - of_row[row]));
    }
    benchmark::DoNotOptimize(kvlink::link::MakeNote(1000, tail, all.last(kVocabulary)));
  }
}
void Tail(benchmark::State& state) {
  RecordTail(state, [](std::span<const float> logits) {
    return kvlink::base::SumExponentials(logits).log_sum;
  });
}
void TailInDouble(benchmark::State& state) { RecordTail(state, LogSumInDouble); }

BENCHMARK(Tail)->Unit(benchmark::kMicrosecond);
BENCHMARK(TailInDouble)->Unit(benchmark::kMicrosecond);
BENCHMARK(Off)->Arg(1000)->Arg(2400)->Arg(8000)->Unit(benchmark::kMicrosecond);
BENCHMARK(NoDonor)->Arg(1000)->Arg(2400)->Arg(8000)->Unit(benchmark::kMicrosecond);
BENCHMARK(Donor)->Arg(1000)->Arg(2400)->Arg(8000)->Unit(benchmark::kMicrosecond);
BENCHMARK(ColdOff)->Arg(1000)->Arg(2400)->Arg(8000)->Unit(benchmark::kMicrosecond);
BENCHMARK(ColdOn)->Arg(1000)->Arg(2400)->Arg(8000)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
