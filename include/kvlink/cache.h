// Cache: KV blocks shared between requests, as an inference engine sees them.
//
// An engine looks a request up (read-only), begins a sequence from the plan (all or nothing),
// computes the rows that the plan does not cover and writes them through the sequence's views,
// commits them (which makes full blocks findable by others), forks branches, and releases by
// destroying the sequence. The cache never runs a model.
//
// Invariants
//   1. A row that a sequence reads as ready is bit-equal to the row a cold run would compute.
//   2. Rows are visible to lookups only after Commit.
//   3. A lookup changes no structure.
//   4. free + cached + in use == total pages whenever idle; the byte budget is never exceeded.
// Threads: Lookup, Remember, Recall*, Stats, Tiers, Tenants, SetQuota, Pin, Unpin, Clear,
// ListBlocks and ShowBlock may be called from any thread. Sequences and loads belong to the thread
// that began them; all of one cache must be used from one thread (the engine's).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/block_list.h"
#include "kvlink/cache_stats.h"
#include "kvlink/kv_shape.h"
#include "kvlink/lookup.h"
#include "kvlink/options.h"
#include "kvlink/sequence.h"
#include "kvlink/status.h"
#include "kvlink/tier.h"

namespace kvlink {

class Cache {
 public:
  virtual ~Cache() = default;
  virtual const KvShape& shape() const = 0;

  virtual Plan Lookup(const LookupRequest& request) const = 0;

  // Starts a sequence with room for the whole prompt plus one token. All or nothing:
  // kResourceExhausted changes nothing. kInvalidArgument when the prompt can never fit the budget
  // (the message has the figures). Blocks the request will compute are announced as in flight
  // (single flight). The returned sequence's num_ready may be smaller than the plan promised (page
  // evicted in between: counted as fallback) or larger (committed in between).
  virtual Result<std::unique_ptr<Sequence>> Begin(const LookupRequest& request,
                                                  const Plan& plan) = 0;

  // True while the awaited leader is alive and has not committed that block yet. Cheap: call it
  // every step.
  virtual bool StillComputing(const InFlight& wait) const = 0;
  // A request starts to wait / stops waiting because its leader went away (statistics).
  virtual void CountWait() = 0;
  virtual void CountTakeover() = 0;

  // --- Colder tiers (CacheOptions::tiers); what stands here is a cache without tiers. ---

  // Starts to load what the plan says. kNotFound: there is nothing to load any more.
  // kResourceExhausted: pages are missing, or enough loads are under way: compute, or try later.
  virtual Result<std::unique_ptr<Load>> StartLoad(const LookupRequest& /*request*/,
                                                  const Plan& /*plan*/) {
    return Status(StatusCode::kNotFound, "this cache has no tiers");
  }
  // `num_rows` rows of prompts took `wall_us` on `num_threads` threads: what loading competes with.
  // 0 rows: other computing, which counts towards what writing to tiers may cost.
  virtual void ObserveCompute(uint32_t /*num_rows*/, double /*wall_us*/, int /*num_threads*/) {}
  // `wake` is called from any thread when a load may have something for Poll; null ends that, and
  // returns when no call runs any more.
  virtual void OnLoadProgress(std::function<void()> /*wake*/) {}
  // The engine has nothing to do: a few blocks that were not written are handed to the tiers. True:
  // there are more; call again in some milliseconds.
  virtual bool RunIdle() { return false; }
  // Writes out what can be written within `patience`; for a clean end, when no sequence is left.
  // False: not all of it was.
  virtual bool Drain(std::chrono::milliseconds /*patience*/) { return true; }
  virtual std::vector<TierFigures> Tiers() const { return {}; }  // fastest first

  // The outcome of a shadow (Verdict::shadow): whether the exact run agreed with what was answered.
  virtual void RecordShadow(uint64_t shadow, bool agreed) = 0;

  // Pins the resident blocks of this prompt for `ttl` from now on, within the pin budget. Returns
  // the tokens pinned. A prompt has one pin, whatever other prompts share its blocks.
  virtual Result<uint32_t> Pin(const LookupRequest& request, std::chrono::milliseconds ttl) = 0;
  // Ends the pin of this prompt, and no other's. Returns the tokens that no pin holds any longer; 0
  // where it has no pin. kNotFound: nothing of it is resident either.
  virtual Result<uint32_t> Unpin(const LookupRequest& /*request*/) {
    return Status(StatusCode::kUnimplemented, "this cache has no pins");
  }
  // Drops every block that no sequence uses.
  virtual void Clear() = 0;

  // --- Looking in (kvlink/block_list.h); what stands here is a cache that cannot be. ---

  // Holds the others up for about 0.1 us a block.
  virtual BlockList ListBlocks(const BlockFilter& /*filter*/) const { return {}; }
  // Up to `last` blocks of the chain that end in block `id`. kNotFound: it is gone, or not for this
  // filter.
  virtual Result<ShownBlocks> ShowBlock(uint64_t id, uint32_t /*last*/,
                                        const BlockFilter& /*filter*/) const {
    return Status(StatusCode::kNotFound, "there is no block " + std::to_string(id));
  }

  // --- Limits beside the budget; what stands here is a cache that has none. ---

  // The bytes that the blocks of a Namespace::tenant may hold, in use and cached; 0: no limit of
  // its own. A tenant that would need more evicts its own blocks, never another's; when all of them
  // are in use or pinned, Begin, Reserve, Fork and StartLoad answer kQuotaExhausted. What a lower
  // quota leaves over is evicted at once, or when its users are done. Any thread.
  virtual void SetQuota(const std::string& /*tenant*/, uint64_t /*bytes*/) {}
  // Those that have blocks or a quota, by name.
  virtual std::vector<TenantUse> Tenants() const { return {}; }
  // Does without so many bytes of the budget, when the machine is short of memory: cached blocks
  // give way, and the memory goes back to the system. What sequences need they get all the same.
  // Stands until it is called again. Returns the bytes that are done without now. From the thread
  // of the sequences.
  virtual uint64_t Withhold(uint64_t /*bytes*/) { return 0; }

  // Own output: `text` was made of these tokens. A later prompt that contains the same text gets
  // the same tokens.
  virtual void Remember(const Namespace& ns, std::string_view text,
                        std::span<const TokenId> tokens) = 0;
  virtual std::optional<std::vector<TokenId>> Recall(const Namespace& ns,
                                                     std::string_view text) const = 0;
  struct Recalled {
    size_t text_bytes = 0;
    std::vector<TokenId> tokens;
  };
  // The longest remembered text that `text` starts with.
  virtual std::optional<Recalled> RecallPrefix(const Namespace& ns,
                                               std::string_view text) const = 0;

  virtual CacheStats Stats() const = 0;
};

}  // namespace kvlink
