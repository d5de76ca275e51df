// BlockTier: a place below RAM that keeps blocks: key -> bytes. Disk, Redis, memory or a fault.
//
// A tier moves bytes and knows nothing about models, pages or formats: TierStore encodes, verifies,
// queues, measures and keeps a failing tier away. So a new tier is one file (memory_tier.h is the
// shortest).
//
// Invariants
//   1. Get gives the bytes that one Put was given, or a miss, or an error; never a mixture. (Bytes
//      that rot are found by the codec's checksum, above.)
//   2. A Put that failed, or was cut short by a kill, is invisible to Get and Contains.
//   3. No call takes much longer than its deadline; what was not done by then is kTimeout. A
//      deadline that has passed does nothing.
// Threads: all functions from any thread; TierStore has one thread that loads and one that stores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "kvlink/status.h"

namespace kvlink::tier {

using base::BlockKey;
using base::TimePoint;

// Why an operation on a block failed: `reason` of kvlink_tier_errors_total.
enum class ErrorReason : uint8_t {
  kNone,
  kTimeout,      // the deadline passed
  kUnavailable,  // cannot be reached, or the connection broke
  kAuth,         // the peer refuses the password
  kTls,          // no trusted encryption with the peer
  kCorrupt,      // bytes fail a check: magic, length, checksum
  kForeign,      // sound bytes of something else: another model, version, token, parent or identity
  kFull,         // a budget or the device has no room
  kIo,           // the device failed
  kProtocol,     // the peer answered what it must not
  kBreaker,      // not tried: the tier failed too often just now
  kCount,
};
const char* ErrorReasonName(ErrorReason reason);

enum class Outcome : uint8_t { kOk, kMiss, kError };

struct TierAnswer {
  Outcome outcome = Outcome::kMiss;
  ErrorReason reason = ErrorReason::kNone;  // of kError
  std::string bytes;                        // of Get's kOk
  static TierAnswer Ok(std::string bytes = {}) { return {Outcome::kOk, {}, std::move(bytes)}; }
  static TierAnswer Miss() { return {}; }
  static TierAnswer Error(ErrorReason reason) { return {Outcome::kError, reason, {}}; }
};

struct TierPut {
  BlockKey key;
  BlockKey parent;     // {0, 0}: none. A tier that evicts, evicts children before their parent.
  double cost_us = 0;  // what computing the block again would take; the eviction's weight
  std::string_view bytes;
  // Who holds it keeps `bytes` as they are: a tier in memory needs no copy. Null: only during the
  // call.
  std::shared_ptr<const void> owner = nullptr;
};

struct TierEntry {  // of a listing
  BlockKey key;
  BlockKey parent;
  uint64_t bytes = 0;
  uint32_t uses = 0;  // Puts and Gets
};

struct TierUsage {
  uint64_t blocks = 0;        // 0 where only the peer knows
  uint64_t bytes = 0;         // of their values
  uint64_t device_bytes = 0;  // what they take there, garbage and logs included
  uint64_t budget_bytes = 0;  // 0: none of ours
  uint64_t evictions = 0;     // since the start
  uint64_t unreachable = 0;   // of blocks: those whose parent is not here; they are evicted first
};

class BlockTier {
 public:
  virtual ~BlockTier() = default;
  virtual std::string_view name() const = 0;  // "cold", "remote": `tier` of the metrics

  // One answer for each item, in order. Putting a key again replaces its bytes.
  virtual std::vector<TierAnswer> Put(std::span<const TierPut> items, TimePoint deadline) = 0;
  virtual std::vector<TierAnswer> Get(std::span<const BlockKey> keys, TimePoint deadline) = 0;
  // kOk where the key is there. May do input and output.
  virtual std::vector<TierAnswer> Contains(std::span<const BlockKey> keys, TimePoint deadline) = 0;
  virtual std::vector<TierAnswer> Remove(std::span<const BlockKey> keys, TimePoint deadline) = 0;

  // Contains without input and output, in well under a microsecond; empty where only the peer
  // knows.
  virtual std::optional<bool> ContainsNow(const BlockKey& key) const = 0;
  // Whether the tier can be used now: connects again where a connection was lost.
  virtual Status Ping(TimePoint deadline) = 0;
  // What was put survives a power failure when this returns ok.
  virtual Status Flush(TimePoint deadline) = 0;
  virtual TierUsage Usage() const = 0;
  // Calls visit for every block, in no order, until it returns false.
  virtual Status List(const std::function<bool(const TierEntry&)>& visit) const = 0;
  // The message of the last error; empty: none yet.
  virtual std::string LastError() const = 0;
};

inline const char* ErrorReasonName(ErrorReason reason) {
  switch (reason) {
    case ErrorReason::kNone:
      return "none";
    case ErrorReason::kTimeout:
      return "timeout";
    case ErrorReason::kUnavailable:
      return "unavailable";
    case ErrorReason::kAuth:
      return "auth";
    case ErrorReason::kTls:
      return "tls";
    case ErrorReason::kCorrupt:
      return "corrupt";
    case ErrorReason::kForeign:
      return "foreign";
    case ErrorReason::kFull:
      return "full";
    case ErrorReason::kIo:
      return "io";
    case ErrorReason::kProtocol:
      return "protocol";
    case ErrorReason::kBreaker:
      return "breaker";
    case ErrorReason::kCount:
      break;
  }
  return "unknown";
}

}  // namespace kvlink::tier
