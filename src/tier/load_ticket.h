// LoadTicket: blocks on their way up from the tiers; what TierStore::Load returns.
//
// Results arrive in any order, from the store's threads. The caller polls Done (an atomic), or gets
// the callback, or waits; at its own deadline it cancels and uses what is there: partial loads are
// useful, since blocks form chains (num_leading).
//
// Invariants
//   1. result(i) changes once, from pending, and never after Done or Cancel.
//   2. After Cancel returns, no target is written and no callback runs or will run.
//   3. A target that was not loaded holds unspecified bytes.
// Threads: any. The destructor does not wait; a target must live until Done or Cancel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tier/block_codec.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

// One block to load. The ticket keeps its own copy, tokens included.
struct Want {
  BlockName name;
  // Where the payload goes, of exactly its size (another size is kForeign); empty: into
  // LoadResult::payload.
  std::span<std::byte> target;
};

struct LoadResult {
  bool pending = true;
  Outcome outcome = Outcome::kMiss;
  ErrorReason reason = ErrorReason::kNone;
  uint32_t tier = 0;  // which gave it, or failed last
  uint32_t valid_rows = 0;
  std::string payload;  // of a want without a target
  bool loaded() const { return !pending && outcome == Outcome::kOk; }
};

class LoadTicket {
 public:
  LoadTicket(std::span<const Want> wants, TimePoint deadline, std::function<void()> done);

  bool Done() const { return done_.load(std::memory_order_acquire); }
  // Until Done or real time `until`; whether it is done.
  bool WaitUntil(TimePoint until);
  // Ends the ticket: what is pending becomes a miss. Waits for a copy or a callback that runs at
  // this moment, so it must not be called from the callback.
  void Cancel();

  size_t size() const { return wants_.size(); }
  // Leading wants that are loaded, as of now.
  uint32_t num_leading() const;
  LoadResult result(size_t i) const;  // a copy; for payloads take Result after Done
  LoadResult TakeResult(size_t i);    // moves the payload out; Requires: Done

  // --- For the store's threads. ---
  TimePoint deadline() const { return deadline_; }
  const BlockName& name(size_t i) const { return wants_[i].name; }
  size_t target_bytes(size_t i) const { return wants_[i].target.size(); }
  // Decodes `bytes` for want i straight to its target; false (with `error`) when they are not the
  // wanted block. True and nothing is written when the ticket has ended.
  bool Fill(size_t i, std::string_view bytes, const BlockKey& model, BlockHeader* header,
            DecodeError* error);
  // Want i, which was filled, ends as loaded. The last one to end runs the callback.
  void Succeed(size_t i, uint32_t tier, uint32_t valid_rows);
  // A tier failed to give want i, and another is asked: a miss there will be reported as this
  // error.
  void NoteError(size_t i, uint32_t tier, ErrorReason reason);
  // Want i ends as a miss or an error, likewise.
  void Fail(size_t i, uint32_t tier, Outcome outcome, ErrorReason reason);
  // Runs the callback when nothing is pending and it has not run.
  void FinishIfDone();

 private:
  void Settle(size_t i, LoadResult result) KVLINK_REQUIRES(mutex_);

  const TimePoint deadline_;
  std::vector<std::vector<TokenId>> tokens_;  // what the names' spans show
  std::vector<Want> wants_;
  std::function<void()> callback_;
  std::atomic<bool> done_{false};

  mutable base::Mutex mutex_;
  std::condition_variable changed_;
  std::vector<LoadResult> results_ KVLINK_GUARDED_BY(mutex_);
  size_t num_pending_ KVLINK_GUARDED_BY(mutex_);
  bool ended_ KVLINK_GUARDED_BY(mutex_) = false;  // done or cancelled
  bool callback_runs_ KVLINK_GUARDED_BY(mutex_) = false;
};

}  // namespace kvlink::tier
