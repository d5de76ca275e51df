// Replay: a trace through one machine's tiers.
//
// Hot RAM, cold disk and a remote store are one BlockCache each. Whatever is computed is written to
// all of them (behind, so that it costs bytes and no time), and every request counts as a use in
// all of them. A block is taken from the fastest tier that has it. `remote` may be shared by
// machines.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "block_cache.h"
#include "trace.h"

namespace kvlink::simulate {

// In blocks; 0: there is no such tier.
struct TierSizes {
  uint64_t ram = 0, cold = 0, remote = 0;
  uint64_t total() const { return ram + cold + remote; }
};

// Where a request's blocks came from, and what was written.
struct Served {
  uint64_t ram = 0, cold = 0, remote = 0;  // hits
  uint64_t cold_written = 0, remote_written = 0;
  uint64_t hits() const { return ram + cold + remote; }
  void Add(const Served& other);
};

class Tiers {
 public:
  // Null: there is no such tier.
  Tiers(std::unique_ptr<BlockCache> ram, std::unique_ptr<BlockCache> cold, BlockCache* remote)
      : ram_(std::move(ram)), cold_(std::move(cold)), remote_(remote) {}
  Served Find(std::span<const NodeId> path) const;
  Served Serve(std::span<const NodeId> path, uint32_t now);

 private:
  std::unique_ptr<BlockCache> ram_, cold_;
  BlockCache* remote_;
};

// How long a machine takes, as if it did one thing at a time:
//   prefill of rows [a, b)   (b - a) / prefill_rate * (1 + (a + b) / 2 / dear_position) s
//   answer of n tokens       n / decode_rate s
//   load of n bytes          n / bandwidth s, while the request waits
struct Machine {
  double prefill_rate = 4300;   // tokens/s at the start of a prompt
  double dear_position = 1250;  // where attention has doubled a row's cost
  double decode_rate = 1190;    // tokens/s of all sequences that run together
  double disk_bytes_per_s = 1e9, network_bytes_per_s = 1.25e9;
  double kv_bytes_per_token = 23040;

  double PrefillSeconds(uint64_t from, uint64_t to) const;
  double LoadSeconds(const Served& served, uint32_t block_tokens) const;
};

struct ReplayResult {
  Served blocks;
  uint64_t input_tokens = 0, hit_tokens = 0;
  double prefill_s = 0, cold_prefill_s = 0;  // with the cache, and without
  double token_hit_rate() const {
    return input_tokens == 0 ? 0
                             : static_cast<double>(hit_tokens) / static_cast<double>(input_tokens);
  }
  double saved_prefill() const { return cold_prefill_s == 0 ? 0 : 1 - prefill_s / cold_prefill_s; }
};

// Requires: sizes.ram > 0.
ReplayResult Replay(const Trace& trace, Policy policy, const TierSizes& sizes,
                    const Machine& machine);

}  // namespace kvlink::simulate
