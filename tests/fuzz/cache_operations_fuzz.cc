// Operations on a cache, chosen by the bytes: begin, compute, generate, fork, release, pin, time,
// clear. After each one rows hold what a cold run would have written, hits are those of a naive
// reference, and pages are conserved (link/operations_harness.h).
#include <gtest/gtest.h>

#include <iterator>

#include "fuzz_input.h"
#include "link/operations_harness.h"

namespace kvlink::link {
namespace {

const OperationsSetting kSettings[] = {
    {.name = "Pressure"},
    {.name = "Colliding", .hash_bits = 8},
    {.name = "Differences", .tokens_per_block = 16, .cow_copy_threshold = 0.5},
    {.name = "OnlyDifferences", .cow_copy_threshold = 1},
    {.name = "NoDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0},
    {.name = "Roomy", .pages = 2000},
    {.name = "RoomyColliding", .pages = 2000, .hash_bits = 8, .cow_copy_threshold = 0.4},
    {.name = "SharingOff", .sharing = Sharing::kOff},
};
constexpr int kMostSteps = 400;

void Run(fuzz::FuzzInput input) {
  const OperationsSetting& setting = kSettings[input.Below(std::size(kSettings))];
  const KvType kv_type = kKvTypes[input.Below(std::size(kKvTypes))];
  OperationsHarness operations(setting, kv_type,
                               [&input](uint64_t bound) { return input.Below(bound); });
  for (int step = 0; step < kMostSteps && !input.empty(); ++step) {
    operations.Step();
    operations.CheckAccounts();
    if (step % 16 == 0) operations.CheckAll();
  }
  operations.CheckAll();
  operations.live().clear();
  operations.CheckAccounts();
  operations.harness().cache->Clear();
  const CacheStats idle = operations.harness().cache->Stats();
  ASSERT_EQ(idle.free_pages, idle.total_pages);
  ASSERT_EQ(idle.pinned_bytes, 0u);
}

}  // namespace
}  // namespace kvlink::link

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  // Outside a test: what fails ends the process, as a fuzzer wants it.
  GTEST_FLAG_SET(break_on_failure, true);
  kvlink::link::Run({bytes, size});
  return 0;
}
