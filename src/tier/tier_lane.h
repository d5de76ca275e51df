// TierLane: one tier inside a TierStore: its two threads, their queues, its breaker and counters.
//
//   load thread:   probes and loads, in order
//   store thread:  puts and removes, in order, and the trials that bring a tier back after failures
//
// Invariants
//   1. Copies in the queue of puts never exceed options.queue_bytes.
//   2. Every want of a load job is reported exactly once: accepted by its ticket, or Passed on.
//   3. No lock is held while a tier, a ticket or the owner is called.
// Threads: any.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "tier/breaker.h"
#include "tier/known_keys.h"
#include "tier/load_cost.h"
#include "tier/load_ticket.h"
#include "tier/pending_block.h"
#include "tier/tier_store.h"

namespace kvlink::tier {

struct PassedWant {
  size_t want = 0;  // index in the ticket
  Outcome outcome = Outcome::kMiss;
  ErrorReason reason = ErrorReason::kNone;
};

// What a lane tells its store, from its threads.
class LaneOwner {
 public:
  virtual ~LaneOwner() = default;
  // Tier `tier` does not give these: try the next tiers or end them.
  virtual void Passed(const std::shared_ptr<LoadTicket>& ticket, uint32_t tier,
                      std::span<const PassedWant> wants) = 0;
  // `bytes` with that header were read from `tier` and are sound.
  virtual void Loaded(uint32_t tier, const BlockHeader& header, std::string bytes) = 0;
};

class TierLane {
 public:
  static constexpr size_t kBlocksACall = 16;
  static constexpr size_t kBytesACall = size_t{16} << 20;

  TierLane(uint32_t index, std::unique_ptr<BlockTier> tier, const TierStoreOptions& options,
           LaneOwner& owner);
  void Start();
  void Stop();  // ends the threads; jobs that wait are passed on or dropped. Idempotent.
  ~TierLane();

  bool cut_off() const { return !breaker_.closed(); }

  // Why a block is to be written: somebody put it, or it was loaded from a slower or a faster tier.
  enum class Origin : uint8_t { kPut, kPromoted, kOffered };
  // Takes a place in the queue, before anything is copied. False: the tier has the block, will have
  // it, is cut off, or the queue is full. Of an offer also: the tier has no peer that others write
  // to, and so has let go of the block itself.
  bool Reserve(const BlockKey& key, size_t bytes, Origin origin);
  // Requires: Reserve of its key and size_bytes() gave true.
  void Put(std::shared_ptr<PendingBlock> block, Origin origin);
  void Remove(std::vector<BlockKey> keys);
  std::optional<bool> Find(const BlockKey& key) const;  // empty: not known; cut off: false
  void Probe(std::vector<BlockKey> keys, std::shared_ptr<void> until_done);
  void Load(std::shared_ptr<LoadTicket> ticket, std::vector<size_t> wants);
  double LoadCostUs(uint32_t blocks, uint64_t bytes) const;
  bool Drain(TimePoint deadline);
  TierStats Stats() const;
  BlockTier& tier() { return *tier_; }

 private:
  struct ProbeJob {
    std::vector<BlockKey> keys;
    std::shared_ptr<void> until_done;  // its last owner to let go tells the caller
  };
  struct LoadJob {
    std::shared_ptr<LoadTicket> ticket;
    std::vector<size_t> wants;
    uint64_t bytes = 0;
  };
  struct PutJob {
    std::shared_ptr<PendingBlock> block;
    Origin origin = Origin::kPut;
  };
  using ReadJob = std::variant<ProbeJob, LoadJob>;
  using WriteJob = std::variant<PutJob, std::vector<BlockKey>>;

  void ReadLoop();
  void RunProbe(const ProbeJob& job);
  // Asks the tier; what it says is known afterwards. Errors are counted.
  std::vector<TierAnswer> Ask(std::span<const BlockKey> keys);
  void RunLoad(const LoadJob& job);
  void LoadSome(const LoadJob& job, std::span<const size_t> wants);
  // What became of the want; kOk: its ticket has it.
  PassedWant TakeLoaded(const LoadJob& job, size_t want, TierAnswer answer);
  void PassAll(const LoadJob& job, std::span<const size_t> wants, ErrorReason reason);

  void WriteLoop();
  // Whether the put at the front is to wait for its pace.
  bool IsTooEarly() const KVLINK_REQUIRES(mutex_);
  void Trial();
  void RunPuts(std::vector<PutJob> jobs);
  std::vector<PutJob> TakeNeedless(std::vector<PutJob>* jobs);
  void LeaveQueue(const PendingBlock& block) KVLINK_REQUIRES(mutex_);
  void RunRemove(const std::vector<BlockKey>& keys);
  std::vector<PutJob> TakePuts() KVLINK_REQUIRES(mutex_);

  void Count(TierOp op, ErrorReason reason);
  // Of one call of the tier that was allowed `allowed` time.
  void Judge(std::span<const TierAnswer> answers, std::chrono::steady_clock::duration allowed);

  const uint32_t index_;
  const std::unique_ptr<BlockTier> tier_;
  const TierStoreOptions& options_;
  const BlockKey model_;
  LaneOwner& owner_;
  WritePace* const pace_;  // null: none
  Breaker breaker_;
  KnownKeys known_;

  mutable base::Mutex mutex_;
  std::condition_variable wake_reader_, wake_writer_, idle_;
  bool stop_ KVLINK_GUARDED_BY(mutex_) = false;
  std::deque<ReadJob> reads_ KVLINK_GUARDED_BY(mutex_);
  uint64_t waiting_load_bytes_ KVLINK_GUARDED_BY(mutex_) = 0;
  std::deque<WriteJob> writes_ KVLINK_GUARDED_BY(mutex_);
  std::unordered_set<BlockKey> queued_keys_ KVLINK_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ KVLINK_GUARDED_BY(mutex_) = 0;  // those being written included
  bool writing_ KVLINK_GUARDED_BY(mutex_) = false;
  uint32_t draining_ KVLINK_GUARDED_BY(mutex_) = 0;  // who waits in Drain
  LoadCost cost_ KVLINK_GUARDED_BY(mutex_);
  TierStats stats_ KVLINK_GUARDED_BY(mutex_);
  std::thread reader_, writer_;
};

}  // namespace kvlink::tier
