// A step of attention allocates nothing once its shapes have been seen.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "kernel/attention_world.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KVLINK_COUNTS_ALLOCATIONS 1
#endif

#ifdef KVLINK_COUNTS_ALLOCATIONS
namespace {
std::atomic<uint64_t> num_allocations{0};
}
// Everything, operator new and aligned memory too, comes from here.
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_memalign(size_t, size_t);
extern "C" void* malloc(size_t size) {
  num_allocations++;
  return __libc_malloc(size);
}
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  num_allocations++;
  return __libc_memalign(alignment, size);
}
#endif

namespace kvlink::kernel {
namespace {

class Allocations : public testing::TestWithParam<KvType> {
 protected:
  void SetUp() override {
#ifndef KVLINK_COUNTS_ALLOCATIONS
    GTEST_SKIP() << "allocations are counted with glibc, without sanitizers";
#endif
  }
  static uint64_t count() {
#ifdef KVLINK_COUNTS_ALLOCATIONS
    return num_allocations;
#else
    return 0;
#endif
  }
};

TEST_P(Allocations, OfDecodeStepsAreNone) {
  const WorldShape shape = WindowedShape(100, 0, 0, GetParam());
  AttentionWorld world(shape);
  const auto attention = world.Attention();
  constexpr uint32_t kTokens = 1100, kSequences = 6;
  const WorldSequence base = world.NewSequence(kTokens, 1);
  world.Prefill(*attention, base, 0, 1040, 260);
  std::vector<WorldSequence> sequences;
  std::vector<const SpanTable*> tables;
  for (uint32_t i = 0; i < kSequences; i++) {
    sequences.push_back(world.Fork(base, 1024, kTokens, 5000 * (i + 1)));
    world.Prefill(*attention, sequences.back(), 1024, 1040, 16);
  }
  sequences[1].table.blocks[3].difference = world.NewDifference({2, 5}, true);
  for (const WorldSequence& sequence : sequences) tables.push_back(&sequence.table);

  const size_t q_width = size_t{shape.num_heads()} * shape.kv.head_dim;
  const size_t kv_width = size_t{shape.kv.num_kv_heads} * shape.kv.head_dim;
  std::vector<float> q(kSequences * q_width, 0.5f), kv(kSequences * kv_width, 0.25f),
      out(kSequences * q_width);
  std::vector<BatchRow> rows(kSequences);
  uint64_t before = 0;
  for (uint32_t position = 1040; position < kTokens; position++) {
    if (position == 1042) before = count();
    for (uint32_t i = 0; i < kSequences; i++) rows[i] = {i, position};
    if (!attention->Prepare(tables, rows, 2).ok()) FAIL() << "position " << position;
    for (uint32_t layer = 0; layer < shape.kv.num_layers; layer++) {
      for (int thread : {0, 1}) {
        attention->Write(layer, q.data(), q_width, kv.data(), kv_width, kv.data(), kv_width,
                         q.data(), q_width, thread, 2);
      }
      for (int thread : {0, 1})
        attention->Attend(layer, q.data(), q_width, out.data(), q_width, thread, 2);
    }
  }
  EXPECT_EQ(count(), before);
  EXPECT_GT(count(), 0u) << "nothing is counted";
}
INSTANTIATE_TEST_SUITE_P(KvTypes, Allocations, testing::ValuesIn(kKvTypes),
                         [](const auto& type) { return KvTypeName(type.param); });

}  // namespace
}  // namespace kvlink::kernel
