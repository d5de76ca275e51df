// Two requests with a common system prompt, on the cache alone: what an inference engine does with
// kvlink, with the model left out. Prints what was shared.
//
//   look up -> begin -> compute the rows that are missing, through the views -> commit -> release
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvlink/cache.h"
#include "kvlink/options.h"

namespace {

using Tokens = std::vector<kvlink::TokenId>;

// Stands for the model's forward pass: writes the K and V of the rows [from, to) into the
// sequence's pages. A real engine hands the same views to its attention kernel.
void ComputeRows(const kvlink::KvShape& shape, const kvlink::SpanTable& table, uint32_t from,
                 uint32_t to) {
  for (uint32_t position = from; position < to; ++position) {
    const kvlink::BlockView& block = table.blocks[position / shape.tokens_per_block];
    const uint32_t row = position % shape.tokens_per_block;
    const kvlink::DifferenceView* difference = block.difference;
    const int cell = difference != nullptr ? difference->slots[row] : -1;
    for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
        // V of this row; K goes to the same tile, [head_dim][tokens_per_block] (kv_shape.h).
        std::byte* v =
            block.page + shape.TileOffset(layer, head) + shape.v_offset() + row * shape.row_bytes();
        if (cell >= 0) {
          v = difference->cells + difference->HeadOffset(shape, layer, head) +
              (difference->capacity + static_cast<uint32_t>(cell)) * shape.row_bytes();
        }
        std::memset(v, static_cast<int>(position & 0x3f), shape.row_bytes());
      }
    }
  }
}

struct Outcome {
  std::unique_ptr<kvlink::Sequence> sequence;
  uint32_t computed = 0;
};

kvlink::Result<Outcome> Prefill(kvlink::Cache& cache, const Tokens& prompt) {
  kvlink::LookupRequest request;
  request.tokens = prompt;
  request.ns.tenant = "example";
  request.max_new_tokens = 64;
  const kvlink::Plan plan = cache.Lookup(request);
  std::printf(
      "  plan: %u tokens ready (%u in whole blocks, %u inside a block), %u to compute; %s\n",
      plan.exact_tokens + plan.partial_tokens, plan.exact_tokens, plan.partial_tokens,
      plan.num_tokens - plan.compute_from, kvlink::MissReasonName(plan.miss_reason));

  auto begun = cache.Begin(request, plan);
  if (!begun.ok()) return begun.status();
  Outcome outcome{.sequence = std::move(begun).value()};
  const uint32_t ready = outcome.sequence->num_ready();
  outcome.computed = plan.num_tokens - ready;
  ComputeRows(cache.shape(), outcome.sequence->table(), ready, plan.num_tokens);
  outcome.sequence->Commit(std::span(prompt).subspan(ready));
  return outcome;
}

int Fail(const kvlink::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main() {
  kvlink::CacheOptions options;
  options.shape = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
  options.budget_bytes = size_t{64} << 20;
  options.model_fingerprint = "example model, f16";
  auto created = kvlink::CreateCache(options);
  if (!created.ok()) return Fail(created.status());
  kvlink::Cache& cache = **created;

  Tokens system(500), first, second;
  for (size_t i = 0; i < system.size(); ++i) system[i] = static_cast<kvlink::TokenId>(7 * i + 1);
  first = system;
  second = system;
  for (kvlink::TokenId token = 0; token < 30; ++token) {
    first.push_back(10000 + token);
    second.push_back(20000 + token);
  }

  std::printf("first request, %zu tokens\n", first.size());
  auto a = Prefill(cache, first);
  if (!a.ok()) return Fail(a.status());
  std::printf("second request, the same first %zu tokens\n", system.size());
  auto b = Prefill(cache, second);
  if (!b.ok()) return Fail(b.status());

  const std::vector<kvlink::BlockView>& blocks_a = a->sequence->table().blocks;
  const std::vector<kvlink::BlockView>& blocks_b = b->sequence->table().blocks;
  size_t shared = 0;
  while (shared < blocks_b.size() && blocks_a[shared] == blocks_b[shared]) ++shared;
  const kvlink::CacheStats stats = cache.Stats();
  std::printf("shared: %zu of %zu blocks are the same memory; the second computed %u of %zu rows\n",
              shared, blocks_b.size(), b->computed, second.size());
  std::printf(
      "memory: %.1f MiB in use, without sharing it would be %.1f MiB\n",
      static_cast<double>(stats.in_use_bytes) / (1 << 20),
      static_cast<double>((blocks_a.size() + blocks_b.size()) * stats.page_bytes) / (1 << 20));

  a->sequence.reset();  // its pages stay as cache, until somebody needs the room
  b->sequence.reset();
  std::printf("released: %.1f MiB cached\n",
              static_cast<double>(cache.Stats().cached_bytes) / (1 << 20));
  const bool as_expected = shared == system.size() / cache.shape().tokens_per_block &&
                           b->computed == second.size() - system.size();
  return as_expected ? 0 : 1;
}
