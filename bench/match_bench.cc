// What finding costs: hashing and looking up a prompt of 2,048 tokens, at sizes of the store that a
// machine may hold.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/random.h"
#include "match/prefix_index.h"
#include "match/text_memory.h"

namespace kvlink::match {
namespace {

constexpr uint32_t kBlock = 32;
constexpr uint32_t kPromptTokens = 2048;
constexpr TokenId kVocabulary = 49152;

std::vector<TokenId> RandomTokens(base::Random& random, size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(kVocabulary));
  return tokens;
}

// `num_prompts` prompts, the first of which is returned; every second one shares half of it.
class Store {
 public:
  explicit Store(int64_t num_prompts)
      : index_(kBlock, keys_), root_(keys_.MakeRoot({"tenant", ""})) {
    base::Random random(1);
    first_ = RandomTokens(random, kPromptTokens);
    BlockId next = 0;
    for (int64_t i = 0; i < num_prompts; ++i) {
      std::vector<TokenId> prompt = RandomTokens(random, kPromptTokens);
      if (i == 0) prompt = first_;
      if (i % 2 == 1) std::copy_n(first_.begin(), kPromptTokens / 2, prompt.begin());
      const PrefixMatch match = index_.Find(root_, prompt);
      BlockId parent = match.blocks.empty() ? kNoBlock : match.blocks.back();
      for (size_t at = match.blocks.size() * kBlock; at < prompt.size(); at += kBlock) {
        parent = index_.Insert(next++, root_, parent, std::span(prompt).subspan(at, kBlock));
      }
    }
  }
  const std::vector<TokenId>& first() const { return first_; }
  const Root& root() const { return root_; }
  const PrefixIndex& index() const { return index_; }
  const KeyMaker& keys() const { return keys_; }

 private:
  KeyMaker keys_{"a model fingerprint"};
  PrefixIndex index_;
  Root root_;
  std::vector<TokenId> first_;
};

void HashChain(benchmark::State& state) {
  const Store store(1);
  for (auto _ : state) {
    BlockKey key = store.root().key;
    for (size_t at = 0; at < kPromptTokens; at += kBlock) {
      key = store.keys().Next(key, std::span(store.first()).subspan(at, kBlock));
    }
    benchmark::DoNotOptimize(key);
  }
}
BENCHMARK(HashChain);

void FindWholePrompt(benchmark::State& state) {
  const Store store(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(store.index().Find(store.root(), store.first()));
  state.counters["bytes_per_block"] = static_cast<double>(store.index().tracking_bytes()) /
                                      static_cast<double>(store.index().num_blocks());
}
BENCHMARK(FindWholePrompt)->Arg(1)->Arg(100)->Arg(2000);

void FindDiverging(benchmark::State& state) {
  const Store store(state.range(0));
  std::vector<TokenId> prompt = store.first();
  for (size_t i = kPromptTokens / 2; i < prompt.size(); ++i) prompt[i] = kVocabulary;
  for (auto _ : state) benchmark::DoNotOptimize(store.index().Find(store.root(), prompt));
}
BENCHMARK(FindDiverging)->Arg(1)->Arg(100)->Arg(2000);

void MakeRoot(benchmark::State& state) {
  const Store store(1);
  for (auto _ : state) benchmark::DoNotOptimize(store.keys().MakeRoot({"tenant", "salt"}));
}
BENCHMARK(MakeRoot);

// `range` answers of 1 KB that all start alike: every one of their lengths is looked up.
void RecallPrefix(benchmark::State& state) {
  TextMemory memory(size_t{64} << 20);
  base::Random random(2);
  const std::string start = "The answer to your question is: ";
  std::string text;
  for (int64_t i = 0; i < state.range(0); ++i) {
    text = start;
    const size_t size = 900 + random.Below(200);
    while (text.size() < size) text.push_back(static_cast<char>('a' + random.Below(26)));
    memory.Remember("ns", text, std::vector<TokenId>(text.size() / 4));
  }
  text += "<|im_end|>\n<|im_start|>user\nand then?";
  for (auto _ : state) benchmark::DoNotOptimize(memory.RecallPrefix("ns", text));
}
BENCHMARK(RecallPrefix)->Arg(10)->Arg(1000);

}  // namespace
}  // namespace kvlink::match
