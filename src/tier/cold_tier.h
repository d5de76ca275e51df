// The cold tier: blocks on this machine's disk, in RocksDB with blob files, within a byte budget.
//
//   column family "index":  key -> {parent, bytes, worth, uses}    (40 bytes; all in RAM as well)
//   column family "blocks": key -> bytes                           (blob files)
//
// Both are written in one batch, so a block and its index entry appear together or not at all.
// Durability: a write-ahead log that is written but not synced, so that kill -9 of the process
// loses nothing that Put confirmed; a power failure may lose the last seconds, never makes half a
// block. Opening on a device without any room left drops the log, the last megabytes written.
//
// Invariants
//   1. live bytes <= live_bytes_limit < budget_bytes; what the directory takes on the device stays
//      within budget_bytes: a Put that would exceed it evicts and compacts first, or is kFull.
//   2. A block is evicted only when no child of it is here; among those the least worth goes first
//      (eviction_index.h). Worth survives a restart.
//   3. One process at a time: the directory is locked.
// Threads: any. Cost: Get one read of the device a block; open reads the index, not the blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvlink/status.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

inline constexpr uint64_t kMinColdBudget = uint64_t{32} << 20;

struct ColdTierOptions {
  std::string directory;  // made when it is not there; must be empty or a cold store
  uint64_t budget_bytes = uint64_t{10} << 30;  // at least kMinColdBudget
  // Room that is left free on the device, whatever the budget says.
  uint64_t min_free_bytes = uint64_t{256} << 20;
  // A store whose structure is damaged is emptied, since all in it can be computed again; false:
  // Open fails with kDataLoss. (A damaged block is only a miss.)
  bool recreate_if_damaged = true;
  bool read_only = false;  // for inspection while no server runs; takes the lock as well
};

// kInvalidArgument: the options. kFailedPrecondition: another process has it open, the directory
// holds something else, or a newer version. kUnavailable, kResourceExhausted, kDataLoss: the
// device, its room, the structure.
Result<std::unique_ptr<BlockTier>> OpenColdTier(const ColdTierOptions& options);

}  // namespace kvlink::tier
