// The cold tier: blocks on this machine's disk within a byte budget: their bytes in files that are
// appended to (blob_files.h), everything else in RocksDB (cold_database.h), and in memory as well.
//
//   put    bytes -> end of the current file; then one batch of entries:
//          key -> {parent, bytes, ..., place}
//   evict  one batch; the place becomes garbage, a file of garbage goes
//   space  what still lives in the sparsest file is appended to the current one
//
// A block exists from the moment its entry is written, which is after its bytes were. Durability:
// nothing is synced but by Flush, so that kill -9 of the process loses nothing that Put confirmed;
// a power failure may lose the last seconds, and may leave an entry without its bytes, which the
// codec's checksum finds: a miss.
//
// Invariants
//   1. live bytes <= live_bytes_limit < budget_bytes; what the directory takes on the device stays
//      within budget_bytes: a Put that would exceed it evicts and moves first, or is kFull.
//   2. A block is evicted only when no child of it is here; among those the least worth goes first
//      (eviction_index.h). Worth survives a restart.
//   3. One process at a time: the directory is locked.
// Threads: any. Cost: Put one write of the device a call, Get one read a block; open reads the
// index, not the blocks; about 300 bytes of memory a block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvlink/status.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

inline constexpr uint64_t kMinColdBudget = uint64_t{32} << 20;
// A budget for whoever only looks after a store: nothing is evicted to keep to it.
inline constexpr uint64_t kAnyColdSize = uint64_t{1} << 60;

struct ColdTierOptions {
  std::string directory;  // made when it is not there; must be empty or a cold store
  uint64_t budget_bytes = uint64_t{10} << 30;  // at least kMinColdBudget
  // Room that is left free on the device, whatever the budget says.
  uint64_t min_free_bytes = uint64_t{256} << 20;
  // A store whose structure is damaged is emptied, since all in it can be computed again; false:
  // Open fails with kDataLoss. (A damaged block is only a miss.)
  bool recreate_if_damaged = true;
  bool read_only = false;   // for inspection while no server runs; takes the lock as well
  bool must_exist = false;  // no store is made where there is none: kNotFound; as with read_only
};

// kInvalidArgument: the options. kFailedPrecondition: another process has it open, the directory
// holds something else, something that is no file under the name of one (cold_files.h), or a newer
// version. kUnavailable, kResourceExhausted, kDataLoss: the device, its room, the structure.
Result<std::unique_ptr<BlockTier>> OpenColdTier(const ColdTierOptions& options);

}  // namespace kvlink::tier
