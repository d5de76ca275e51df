// TierStore: what the cache sees of everything below RAM: a stack of tiers, fastest first.
//
//   Put      -> copied into bounded queues; written behind, visible when the tier has confirmed it
//   Find     -> which tiers have a key, from memory, without input or output
//   Probe    -> asks the tiers that cannot answer from memory; Find knows afterwards
//   Load     -> a ticket; blocks arrive from the store's threads, verified, at their targets
//   LoadCostUs -> what loading would take by what was observed: the caller loads or computes
//
// A tier that fails is cut off by a breaker and probed until it works again; meanwhile Find sees
// nothing in it and Put skips it. A block that was loaded is written to the faster tiers
// (promotion), and offered to slower ones that others use as well: written there if the peer, asked
// before, does not have it. A faster tier that evicts keeps what is dear and used (demotion is
// writing to all tiers at Put). An engine that shares its cores with the writers gives them a pace.
//
// Invariants
//   1. A block that Load gives is bit-equal to what some Put got under the same name, or it is a
//      miss.
//   2. No call blocks on a tier, except Drain and the destructor (at most the tiers' deadlines).
//   3. Copies waiting to be written never exceed queue_bytes a tier; what does not fit is dropped
//      and counted.
// Threads: all functions from any thread. Two threads a tier: loads and stores never wait for each
// other, nor one tier for another. Cost: Find a hash probe a tier; Put one copy of the payload.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tier/block_codec.h"
#include "tier/block_tier.h"
#include "tier/breaker.h"
#include "tier/load_ticket.h"
#include "tier/write_pace.h"

namespace kvlink::tier {

struct TierStoreOptions {
  std::string model_fingerprint;  // its digest is in every block and compared on every load
  Compression compression = Compression::kNone;
  uint64_t queue_bytes = uint64_t{64} << 20;      // a tier
  std::chrono::milliseconds load_timeout{500};    // of one call of a tier, at most
  std::chrono::milliseconds store_timeout{2000};  // likewise
  std::chrono::milliseconds ping_timeout{250};    // likewise; also a probe's
  uint32_t known_keys = 1u << 18;              // remembered a tier that cannot answer Find itself
  std::chrono::milliseconds absent_for{1000};  // how long a probe's "no" is believed
  bool promote = true;                         // and offer
  // What writing may take beside computing; null: as much as it needs. Tiers before `paced_from`
  // (memory, which costs little and makes blocks findable) do not ask.
  std::shared_ptr<WritePace> pace;
  uint32_t paced_from = 0;
  int writer_nice = 0;  // of the threads that write: 0 to 19, setpriority(2)
  BreakerOptions breaker;
  base::Clock clock = base::SteadyClock();
};

// Bit t: tier t.
struct Where {
  uint32_t present = 0;  // has it (as far as known; a load may still miss)
  uint32_t unknown = 0;  // only a probe or a load can tell
};

enum class TierOp : uint8_t { kPut, kGet, kContains, kRemove, kCount };
const char* TierOpName(TierOp op);

struct TierStats {
  std::string name;
  // Counters, in blocks (of rows, not of text) unless said; never decreasing.
  uint64_t hits = 0, misses = 0;  // of loads
  uint64_t stored = 0, promoted = 0;
  uint64_t bytes_read = 0, bytes_written = 0;
  uint64_t queue_drops = 0;  // the queue was full, or the tier cut off
  double write_cpu_us = 0;   // CPU time of the thread that writes
  std::array<std::array<uint64_t, static_cast<size_t>(ErrorReason::kCount)>,
             static_cast<size_t>(TierOp::kCount)>
      errors{};  // [op][reason]
  uint64_t breaker_openings = 0;
  // Now.
  BreakerState breaker = BreakerState::kClosed;
  uint64_t queued_blocks = 0, queued_bytes = 0;  // waiting to be written
  double latency_us = 0, bytes_per_s = 0;        // of loads, observed (load_cost.h)
  TierUsage usage;
  std::string last_error;
  uint64_t num_errors() const;
};

class TierStore {
 public:
  // At most 32 tiers, fastest first. Does not touch them: a tier that is away is cut off at its
  // first failure and taken in when it answers.
  static std::unique_ptr<TierStore> Create(TierStoreOptions options,
                                           std::vector<std::unique_ptr<BlockTier>> tiers);
  virtual ~TierStore() = default;  // drops what is queued (call Drain before) and ends the threads

  // True when at least one tier will try to write it; false when every tier has it, is cut off or
  // has a full queue. Never waits.
  virtual bool Put(const PutBlock& block) = 0;
  // Behind the Puts that are queued, everywhere.
  virtual void Remove(std::span<const BlockKey> keys) = 0;

  virtual Where Find(const BlockKey& key) const = 0;
  // Asks for those keys that Find does not know; `done` runs, once, from a thread of the store, or
  // right away in this call when there is nothing to ask.
  virtual void Probe(std::span<const BlockKey> keys, std::function<void()> done) = 0;

  // From the fastest tier that has or may have it, falling through to the next where it misses.
  // `done` runs once, from a thread of the store, when every want has ended. Wants should be in
  // chain order.
  virtual std::shared_ptr<LoadTicket> Load(std::span<const Want> wants, TimePoint deadline,
                                           std::function<void()> done) = 0;

  // Time until `blocks` blocks of `bytes` payload each would be there, what waits before them
  // included.
  virtual double LoadCostUs(uint32_t tier, uint32_t blocks, uint64_t bytes) const = 0;

  // Writes out what is queued; false when that was not done by `deadline` (real time). New Puts may
  // still be queued.
  virtual bool Drain(TimePoint deadline) = 0;

  virtual uint32_t num_tiers() const = 0;
  virtual TierStats Stats(uint32_t tier) const = 0;
  // For listings, fsck and export; the store keeps it.
  virtual BlockTier& tier(uint32_t tier) = 0;
};

}  // namespace kvlink::tier
