// cold_writer DIRECTORY BUDGET BYTES: puts numbered blocks of BYTES into a cold store, as fast as
// it can, and says each number that was confirmed, until it is killed. For cold_fault_test.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tier/cold_tier.h"
#include "tier/testing/tier_world.h"

int main(int argc, char** argv) {
  using namespace kvlink::tier;
  if (argc != 4) return 2;
  ColdTierOptions options;
  options.directory = argv[1];
  options.budget_bytes = std::strtoull(argv[2], nullptr, 10);
  options.min_free_bytes = 0;
  auto tier = OpenColdTier(options);
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.status().ToString().c_str());
    return 1;
  }
  for (uint64_t n = 0;; ++n) {
    const NumberedBlock block(n, std::strtoull(argv[3], nullptr, 10));
    const std::string bytes = block.Encoded();
    const TierPut put{block.put.name.key, block.put.name.parent, 1000, bytes};
    const TierAnswer answer = (*tier)->Put({&put, 1}, Soon())[0];
    std::printf("%llu %s\n", static_cast<unsigned long long>(n),
                answer.outcome == Outcome::kOk ? "ok" : ErrorReasonName(answer.reason));
    std::fflush(stdout);
  }
}
