// Tiers: the places below RAM that keep blocks (cold: this machine's disk; remote: Redis), as an
// engine and an operator see them.
//
//   RAM, pages  --written behind-->  cold  and  remote        full, exact blocks only
//   RAM, pages  <----- a Load -----  the fastest that has it  when that is cheaper than computing
//
// A block becomes visible in a tier only when all of it was written. What a load brings is checked
// (checksum, model, tokens, the chain's SHA-256) before it becomes findable; what fails a check, is
// late or went away is computed instead, and counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvlink {

struct Namespace;

// What CacheOptions says about tiers. The defaults have none.
struct TierOptions {
  std::string cold_dir;                      // made when it is not there; empty: no cold tier
  uint64_t cold_bytes = uint64_t{10} << 30;  // what the directory may take on the disk
  std::string remote_url;      // redis:// or rediss://, docs/tiers.md; empty: no remote tier
  std::string remote_ca_file;  // PEM, for rediss://; empty: the system's authorities
  uint64_t queue_bytes = uint64_t{64} << 20;  // copies that wait to be written, a tier
  // Blocks of namespaces for which this is false stay in RAM: never written, never looked for in a
  // tier. Null: all may leave. Called from any thread, often: must be quick.
  std::function<bool(const Namespace&)> may_leave_ram;
  // What writing blocks may cost before any of them was of use: this share of the CPU time spent
  // computing, and this much at once. What loads save is earned on top. Blocks that are not written
  // for that reason wait for idle time.
  double write_share = 0.01;
  std::chrono::milliseconds write_head_start{50};

  bool any() const { return !cold_dir.empty() || !remote_url.empty(); }
};

// Rows [position, position + num_rows) of a prompt that came from a tier.
struct LoadedRows {
  std::string tier;  // "cold", "remote"
  uint32_t position = 0, num_rows = 0;
};

// Blocks on their way from tiers into pages, for one request that waits for them; others that need
// the same blocks find them in flight (Plan::in_flight) and wait for the same load. Pages are taken
// when the load starts, and what was loaded stays in use until this object goes, so that nothing is
// evicted before the request begins. Destroying it gives up what has not come.
// Threads: the engine's.
class Load {
 public:
  virtual ~Load() = default;
  virtual uint64_t id() const = 0;  // as InFlight::leader names it; 0: holds no pages yet
  // Takes over what has come: findable from then on. True: nothing more will come; look the prompt
  // up again. Never blocks; cheap when nothing came. Call it every step.
  virtual bool Poll() = 0;
  // It is over because pages were missing, which was seen only after its peer had been asked: start
  // another one when some came free.
  virtual bool lacked_room() const = 0;
  // What was taken over, ascending; neighbours of one tier are one entry.
  virtual std::span<const LoadedRows> loaded() const = 0;
};

// One tier's figures. Counters never decrease; blocks unless said.
struct TierFigures {
  std::string name;
  uint64_t hits = 0, misses = 0;  // of loads
  uint64_t stored = 0, promoted = 0;
  uint64_t dropped = 0;  // not written: the queue was full, or the tier cut off
  uint64_t bytes_read = 0, bytes_written = 0;
  struct Error {
    std::string op, reason;  // "get", "timeout"
    uint64_t count = 0;
  };
  std::vector<Error> errors;  // every reason that occurred
  uint64_t breaker_openings = 0;
  // Now.
  std::string breaker;  // "closed", "open", "half_open"
  uint64_t queued_blocks = 0, queued_bytes = 0;
  double latency_us = 0, bytes_per_s = 0;  // of loads, as observed
  uint64_t blocks = 0;                     // 0 where only the peer knows
  uint64_t bytes = 0, device_bytes = 0;    // of the values, and what they take there
  uint64_t budget_bytes = 0;               // 0: none of ours
  uint64_t evictions = 0;
  uint64_t unreachable = 0;  // of `blocks`: their parent is not here, so they are no hits
  std::string last_error;    // empty: none yet
};

}  // namespace kvlink
