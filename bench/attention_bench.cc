// Attention alone, in the shape of SmolLM2-135M: 30 layers, 9 heads over 3 KV heads of 64, blocks
// of 32. One iteration is one step of a model: the plan once, then every layer. Counters: GB/s of K
// and V read once for each sequence that does not share them, GMAC/s of both products.
//
// Figures to compare with are those of a throw-away prototype on a Zen 5 core (30 layers, 1
// thread): decode b1 at 2048 1.78 ms, b10 distinct 21.9 ms, b10 shared 7.6 ms. Take minima
// (--benchmark_repetitions=9 --benchmark_report_aggregates_only=false): neighbours disturb.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernel/attention_tuning.h"

namespace kvlink::kernel {
namespace {

constexpr uint32_t kHeads = 9;
KvShape Shape(KvType type) { return {30, 3, 64, 32, type}; }
constexpr uint32_t kRows = 32;
constexpr size_t kHugePage = size_t{2} << 20;

// Pages of finite values, in huge pages where the system gives them, handed out in random order.
class Pages {
 public:
  Pages(const KvShape& shape, size_t num) {
    const size_t bytes = (num * shape.page_bytes() + kHugePage - 1) / kHugePage * kHugePage;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes)));
    madvise(memory_.get(), bytes, MADV_HUGEPAGE);
    auto* elements = reinterpret_cast<uint16_t*>(memory_.get());
    uint32_t state = 1;
    for (size_t i = 0; i < bytes / 2; i++) {
      state = state * 1664525u + 1013904223u;
      elements[i] = static_cast<uint16_t>((state >> 16 & 0x83ff) | 0x3800);  // +-[0.5, 1) in F16
    }
    for (size_t i = 0; i < num; i++) free_.push_back(memory_.get() + i * shape.page_bytes());
    std::shuffle(free_.begin(), free_.end(), std::mt19937(7));
  }
  std::byte* Next() {
    std::byte* page = free_.back();
    free_.pop_back();
    return page;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::vector<std::byte*> free_;
};

uint32_t Blocks(uint32_t tokens) { return (tokens + kRows - 1) / kRows; }

struct Case {
  std::vector<SpanTable> tables;
  std::vector<BatchRow> rows;
};

// `batch` sequences of `context` tokens, their first `shared` ones in common; each computes its
// last `new_rows`.
Case MakeCase(Pages* pages, uint32_t batch, uint32_t shared, uint32_t context, uint32_t new_rows) {
  Case c;
  for (uint32_t s = 0; s < batch; s++) {
    SpanTable table;
    for (uint32_t b = 0; b < Blocks(context); b++) {
      const bool is_shared = s > 0 && (b + 1) * kRows <= shared;
      table.blocks.push_back(is_shared ? c.tables[0].blocks[b] : BlockView{pages->Next(), nullptr});
    }
    table.spans = {{0, 0, Blocks(context) * kRows, 0, 0}};
    c.tables.push_back(std::move(table));
    for (uint32_t p = context - new_rows; p < context; p++) c.rows.push_back({s, p});
  }
  return c;
}

struct Step {
  uint32_t batch = 1, shared = 0, context = 2048, new_rows = 1;
  KvType type = KvType::kF16;
  bool cascade = true;
};

void Run(benchmark::State& state, Step step) {
  const KvShape shape = Shape(step.type);
  Pages pages(shape, size_t{step.batch} * Blocks(step.context));
  const Case c = MakeCase(&pages, step.batch, step.shared, step.context, step.new_rows);
  AttentionParams params = {shape, kHeads, {{.scale = 0.125f, .rope = {}}}, 1};
  params.layers[0].rope.num_rot = shape.head_dim;
  AttentionTuning tuning;
  tuning.cascade = step.cascade;
  auto attention = CreatePagedAttention(params, tuning);
  if (!attention.ok()) return state.SkipWithError(attention.status().message().c_str());

  std::vector<const SpanTable*> tables;
  for (const SpanTable& table : c.tables) tables.push_back(&table);
  const size_t q_width = kHeads * shape.head_dim, kv_width = shape.num_kv_heads * shape.head_dim;
  std::vector<float> q(c.rows.size() * q_width), out(q.size()), kv(c.rows.size() * kv_width, 0.5f);
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& x : q) x = uniform(rng);
  std::vector<float> rotated(q.size());

  for (auto _ : state) {
    if (!(*attention)->Prepare(tables, c.rows, 1).ok()) return state.SkipWithError("Prepare");
    for (uint32_t layer = 0; layer < shape.num_layers; layer++) {
      (*attention)
          ->Write(layer, q.data(), q_width, kv.data(), kv_width, kv.data(), kv_width,
                  rotated.data(), q_width, 0, 1);
      (*attention)->Attend(layer, rotated.data(), q_width, out.data(), q_width, 0, 1);
    }
    benchmark::DoNotOptimize(out.data());
  }
  const double seen = step.context - (step.new_rows - 1) / 2.0;  // positions a row
  const double macs =
      seen * static_cast<double>(c.rows.size()) * kHeads * shape.head_dim * 2 * shape.num_layers;
  const double tokens = step.shared + step.batch * static_cast<double>(step.context - step.shared);
  using benchmark::Counter;
  state.counters["GMAC/s"] = Counter(macs / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(tokens * static_cast<double>(shape.token_bytes()) / 1e9,
                                   Counter::kIsIterationInvariantRate);
}

void RunPrepare(benchmark::State& state, uint32_t batch, uint32_t shared) {
  const KvShape shape = Shape(KvType::kF16);
  Pages pages(shape, size_t{batch} * Blocks(2064));
  const Case c = MakeCase(&pages, batch, shared, 2064, 1);
  AttentionParams params = {shape, kHeads, {{.scale = 0.125f, .rope = {}}}, 2};
  params.layers[0].rope.num_rot = shape.head_dim;
  auto attention = PagedAttention::Create(params);
  std::vector<const SpanTable*> tables;
  for (const SpanTable& table : c.tables) tables.push_back(&table);
  for (auto _ : state) {
    if (!(*attention)->Prepare(tables, c.rows, 2).ok()) return state.SkipWithError("Prepare");
  }
}

void Register() {
  const struct {
    const char* name;
    Step step;
  } steps[] = {{"decode_b1_512", {1, 0, 512}},
               {"decode_b1_2048", {1, 0, 2048}},
               {"decode_b1_7168", {1, 0, 7168}},
               {"decode_b10_distinct_2048", {10, 0, 2048}},
               {"decode_b10_shared_2048", {10, 2048, 2064}},
               {"decode_b32_shared_2048", {32, 2048, 2064}},
               {"decode_b10_shared_7168", {10, 7168, 7184}},
               {"prefill_512", {1, 0, 512, 512}},
               {"prefill_512_behind_1536", {1, 0, 2048, 512}}};
  for (KvType type : kKvTypes) {
    for (const auto& s : steps) {
      Step step = s.step;
      step.type = type;
      benchmark::RegisterBenchmark((std::string(KvTypeName(type)) + "/" + s.name).c_str(), Run,
                                   step)
          ->Unit(benchmark::kMillisecond);
    }
  }
  Step alone = {10, 2048, 2064};
  alone.cascade = false;
  benchmark::RegisterBenchmark("f16/decode_b10_shared_2048_no_cascade", Run, alone)
      ->Unit(benchmark::kMillisecond);
  const struct {
    const char* name;
    uint32_t batch, shared;
  } plans[] = {
      {"prepare/b1", 1, 0}, {"prepare/b10_distinct", 10, 0}, {"prepare/b10_shared", 10, 2048}};
  for (const auto& p : plans)
    benchmark::RegisterBenchmark(p.name, RunPrepare, p.batch, p.shared)
        ->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace kvlink::kernel

int main(int argc, char** argv) {
  kvlink::kernel::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
