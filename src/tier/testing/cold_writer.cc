// cold_writer DIRECTORY BUDGET BYTES [COUNT]: puts numbered blocks of BYTES into a cold store, as
// fast as it can, and says of each number whether it was confirmed, or why not; until it is killed,
// or COUNT blocks were tried. Then it says whether what was confirmed can be read and nothing else,
// now and after opening the store again (on a full device some may be gone then). For
// cold_fault_test.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>

#include "tier/cold_tier.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

// Whether what is there is right, bit by bit, and was confirmed; and all of that is there, unless
// some may be gone.
bool Sound(BlockTier& tier, const std::set<uint64_t>& confirmed, uint64_t count, size_t bytes,
           bool may_be_gone) {
  for (uint64_t n = 0; n < count; ++n) {
    const TierAnswer answer = GetOne(tier, NumberedKey(n));
    if (answer.outcome == Outcome::kError) return false;
    const bool there = answer.outcome == Outcome::kOk;
    if (there && answer.bytes != NumberedBlock(n, bytes).Encoded()) return false;
    if (confirmed.contains(n) ? !there && !may_be_gone : there) return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  if (argc < 4) return 2;
  ColdTierOptions options;
  options.directory = argv[1];
  options.budget_bytes = std::strtoull(argv[2], nullptr, 10);
  options.min_free_bytes = 0;
  const size_t bytes = std::strtoull(argv[3], nullptr, 10);
  const uint64_t count = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  auto tier = OpenColdTier(options);
  std::set<uint64_t> confirmed;
  for (uint64_t n = 0; tier.ok() && (count == 0 || n < count); ++n) {
    const NumberedBlock block(n, bytes);
    const std::string encoded = block.Encoded();
    const TierPut put{block.put.name.key, block.put.name.parent, 1000, encoded};
    const TierAnswer answer = (*tier)->Put({&put, 1}, Soon())[0];
    if (answer.outcome == Outcome::kOk) confirmed.insert(n);
    std::printf("%llu %s\n", static_cast<unsigned long long>(n),
                answer.outcome == Outcome::kOk ? "ok" : ErrorReasonName(answer.reason));
    std::fflush(stdout);
  }
  if (tier.ok()) {
    std::printf("now %s\n", Sound(**tier, confirmed, count, bytes, false) ? "sound" : "wrong");
    *tier = nullptr;
    tier = OpenColdTier(options);
  }
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.status().ToString().c_str());
    return 1;
  }
  std::printf("again %s\n", Sound(**tier, confirmed, count, bytes, true) ? "sound" : "wrong");
  return 0;
}

}  // namespace
}  // namespace kvlink::tier

int main(int argc, char** argv) { return kvlink::tier::Main(argc, argv); }
