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

#include <array>
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
#include "kvlink/kv_shape.h"
#include "kvlink/options.h"
#include "kvlink/similar.h"
#include "kvlink/status.h"
#include "kvlink/tier.h"
#include "kvlink/view.h"

namespace kvlink {

// Who may share with whom. Both fields go into every block key, typed and length-prefixed, after
// the cache's model fingerprint: a request finds only blocks of the same tenant and salt.
struct Namespace {
  std::string tenant;  // set by the server from the API key
  std::string salt;    // a client's `cache_salt`; only narrows
  bool operator==(const Namespace&) const = default;
};

struct LookupRequest {
  std::span<const TokenId> tokens;  // the whole prompt; must outlive the call only
  Namespace ns;
  bool reuse = true;  // false: nothing is looked up (miss reason: policy)
  bool store = true;  // false: nothing of this request becomes findable
  // Rows that must be computed even when cached: at least 1 (the last token's logits). A request
  // that asks for prompt log-probabilities sets it to tokens.size().
  uint32_t min_compute = 1;
  // Rows that generation may add; decides difference block or full copy. A sequence that adds more
  // gets a full copy then.
  uint32_t max_new_tokens = 0;
  // Not kOff: rows of a similar prompt may stand in behind the exact ones. kOff is right for
  // whoever needs exact answers; CacheOptions::similar.policy must permit it, too.
  SimilarPolicy similar = SimilarPolicy::kOff;
  // Nobody sees the answer, and the exact run of the prompt follows: kinds of requests that failed
  // too often may borrow as well, and the verdict, when it accepts, asks for the comparison
  // (Verdict::shadow). So a kind that was closed can prove itself again, at the cost of what failed
  // attempts may waste. Not counted as a request.
  bool trial = false;
};

enum class MissReason : uint8_t {
  kNone,  // everything that can be reused was; also a prompt that goes on where the cached one ends
          // (a chat's next turn)
  kCold,  // no block of this prompt was ever seen
  kDiverged,   // a prefix hit, then other tokens (Plan::diverged_at)
  kEvicted,    // the next block was here and was evicted
  kNamespace,  // another model fingerprint or adapter
  kSalt,       // cached under the tenant's other salt
  kTierError,  // a tier failed
  kPolicy,     // sharing is off for the server or the request
  kCount,
};
const char* MissReasonName(MissReason reason);

using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = 0xffffffffu;

// A leader is computing blocks that this request needs as well: wait for the last of them.
struct InFlight {
  uint64_t leader = 0;  // id of the computing sequence
  uint64_t key_lo = 0, key_hi = 0;
  uint32_t num_tokens = 0;  // prompt tokens that will be ready then
};

// What a lookup found. A value: it pins nothing, and Begin checks it again (a page that went away
// becomes computing).
struct Plan {
  uint32_t num_tokens = 0;
  uint32_t exact_tokens = 0;    // ready rows by whole shared blocks
  uint32_t partial_tokens = 0;  // further ready rows inside the first divergent block
  uint32_t compute_from = 0;  // first token to run: min(exact + partial, num_tokens - min_compute)
  MissReason miss_reason = MissReason::kNone;
  uint32_t diverged_at = 0;  // index of the first token that is not covered; num_tokens if all are
  std::optional<InFlight> in_flight;
  // Rows behind the exact ones, in whole blocks, that a colder tier has or may have, and that cost
  // less to load than to compute, by what both were seen to take: start a Load, and look up again
  // when it ends. 0: compute. `tier` names the one that has the first of them; null: none is known.
  uint32_t loadable_tokens = 0;
  const char* tier = nullptr;
  bool tiers_asked = false;  // there are tiers, and what is not exact was looked for there
  // A donor's rows for what is not exact; otherwise why not. Waiting for a donor that is being
  // computed shows as in_flight.
  std::optional<SimilarPlan> similar;
  SimilarReason similar_reason = SimilarReason::kPolicy;
  double match_us = 0;  // time this lookup took
  uint32_t cached_tokens() const { return compute_from; }
};

// One branch's context. Move-only through unique_ptr; destroying it releases the pages, which stay
// as evictable cache.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual uint64_t id() const = 0;

  // Rows [0, num_ready) hold valid K and V. Positions below it need no write (their rows are shared
  // and equal).
  virtual uint32_t num_ready() const = 0;
  virtual uint32_t capacity() const = 0;  // positions that have a place

  // Makes room for positions [0, num_tokens): all or nothing. kResourceExhausted when pages run out
  // (after evicting all that can be evicted): preempt somebody. Invalidates views.
  virtual Status Reserve(uint32_t num_tokens) = 0;

  // Views over positions [0, capacity). Rows >= num_ready are written by the engine through the
  // same views: row r of position p goes to the page, or, where slots[row] >= 0, to that difference
  // cell.
  virtual const SpanTable& table() const = 0;

  // Rows [num_ready, num_ready + tokens.size()) are written: they hold these tokens. Full blocks
  // become findable unless the request said store = false.
  virtual void Commit(std::span<const TokenId> tokens) = 0;

  // Layers whose input must be left in the page of every row that runs, as F16 behind the tiles:
  // the k-th at shape.checkpoints_offset() + row * shape.checkpoint_bytes + k * 2 * embedding.
  virtual std::span<const uint32_t> checkpoint_layers() const { return {}; }
  // How many of the prompt's last rows are to be observed while they run: of a prompt that others
  // may borrow from, and of one that borrows. 0: none.
  virtual uint32_t observed_rows() const { return 0; }
  // What was seen of them, with the logits [vocabulary] of the last one. Once the prompt's last row
  // is committed, and before CheckFirstToken; again after each enlargement. Rows that were ready
  // and did not run are left out. Nothing happens where there is no room for it.
  virtual void RecordTail(const PromptTail& /*tail*/, std::span<const float> /*logits*/) {}

  // --- Sequences that borrow a donor's rows (Plan::similar). They store nothing, and neither do
  // their branches. ---

  // The prompt's rows that run, ascending, all from num_ready() on; the other rows behind the exact
  // ones are the donor's. Empty: this sequence borrows none, and all rows run. Rows are still
  // committed in order of position: a run of borrowed rows goes with what is computed behind it.
  virtual std::span<const Selection::Range> computed_rows() const = 0;

  // Modes whose rows enter and leave the network at different layers. All bands run, one after the
  // other, each with all of its rows; then all rows of the prompt are committed at once.
  virtual bool runs_in_bands() const { return false; }
  // What runs next, once all of the band before has run; none: commit. Begins again after kEnlarge.
  virtual std::optional<LayerBand> NextBand() { return std::nullopt; }
  // The donor's residual stream at what `layer` reads, of the row at `position`: `out` [embedding].
  // False: it was not recorded.
  virtual bool ReadCheckpoint(uint32_t /*layer*/, uint32_t /*position*/,
                              std::span<float> /*out*/) const {
    return false;
  }

  // The backward check, before the first token leaves: `logits` [vocabulary] of the prompt's last
  // row, with all rows committed.
  //   kAccept   go on
  //   kEnlarge  more rows are selected now: num_ready() is back at the end of the exact rows, and
  //             all of computed_rows() run again (views have changed)
  //   kFallBack drop this sequence and begin another with similar = kOff
  // Requires: computed_rows() is not empty.
  virtual Verdict CheckFirstToken(std::span<const float> logits) = 0;

  // A branch that shares rows [0, num_tokens) copy-on-write; num_tokens <= num_ready.
  // `max_new_tokens` decides between a difference block and a full copy of the tail block.
  // kResourceExhausted when there is no page for the copy; kFailedPrecondition when rows are
  // borrowed and the first token was not checked: they may all run again.
  virtual Result<std::unique_ptr<Sequence>> Fork(uint32_t num_tokens, uint32_t max_new_tokens) = 0;
};

struct CacheStats {
  // Pages. free + cached + in_use == total.
  uint64_t total_pages = 0, free_pages = 0, cached_pages = 0, in_use_pages = 0;
  uint64_t page_bytes = 0;
  uint64_t in_use_bytes = 0, peak_in_use_bytes = 0, cached_bytes = 0, budget_bytes = 0,
           pinned_bytes = 0;
  // What sequences would hold if each had a copy of all rows it reads, and of the bytes in use
  // those that two or more hold together. Sharing saves without_sharing_bytes - in_use_bytes (less
  // than 0 when what is borrowed from takes more than the borrower).
  uint64_t without_sharing_bytes = 0, shared_bytes = 0;
  uint64_t tracking_bytes = 0;  // all structures that track blocks (index, graph, tokens)
  // Counters, never decreasing. Tokens and misses count when a sequence begins, so that a request
  // that is looked up many times counts once: queried = its prompt, exact + partial = the prompt
  // rows that it need not compute.
  uint64_t lookups = 0, queried_tokens = 0, exact_tokens = 0, partial_tokens = 0,
           similar_tokens = 0;
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> misses{};
  uint64_t collisions = 0;  // key equal, tokens or parent not
  uint64_t stored_blocks = 0, evicted_blocks = 0;
  uint64_t cow_full_copies = 0, cow_difference_blocks = 0;
  uint64_t single_flight_waits = 0, single_flight_takeovers = 0;
  uint64_t fallbacks = 0;       // a plan that could not be honoured became computing
  uint64_t output_splices = 0;  // own outputs recognised in later prompts
  // Similar reuse. `similar_outcomes` counts how each request that asked for it ended (kNone:
  // accepted), once a Begin; those that were cancelled before their verdict count nowhere.
  // similar_tokens are the donor's rows in accepted requests, similar_waits the lookups that found
  // a donor which is still being computed.
  std::array<uint64_t, static_cast<size_t>(SimilarReason::kCount)> similar_outcomes{};
  uint64_t similar_attempts = 0, similar_enlarged = 0, similar_waits = 0;
  uint64_t shadows = 0, shadow_failures = 0;
  std::array<SimilarTrials, static_cast<size_t>(EditClass::kCount)> shadows_by_class{};
  // Tiers: loads that were started, rows they brought, loads that brought less than they promised
  // (also in fallbacks), and blocks that stayed unwritten because writing had not paid.
  uint64_t loads = 0, loaded_tokens = 0, failed_loads = 0, unwritten_blocks = 0;
  uint64_t donors = 0;       // prompts that can lend rows now
  uint64_t donor_notes = 0;  // of them, those whose tail was recorded
  uint64_t note_pages = 0;   // that hold what was recorded: cached pages, and evicted as others
  uint64_t similar_match_ns = 0;  // of match_ns
  uint64_t match_ns = 0;          // wall time spent in Lookup, and in Begin checking the plan again
};

// What the blocks of one Namespace::tenant hold, in use and cached.
struct TenantUse {
  std::string tenant;
  uint64_t bytes = 0;
  uint64_t quota_bytes = 0;     // 0: none
  uint64_t evicted_blocks = 0;  // to keep to the quota; since the tenant last had none
};

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

  // --- Colder tiers (CacheOptions::tiers). ---

  // Starts to load what the plan says. kNotFound: there is nothing to load any more.
  // kResourceExhausted: pages are missing, or enough loads are under way: compute, or try later.
  virtual Result<std::unique_ptr<Load>> StartLoad(const LookupRequest& request, const Plan& plan);
  // `num_rows` rows of prompts took `wall_us` on `num_threads` threads: what loading competes with.
  // 0 rows: other computing, which counts towards what writing to tiers may cost.
  virtual void ObserveCompute(uint32_t num_rows, double wall_us, int num_threads);
  // `wake` is called from any thread when a load may have something for Poll; null ends that, and
  // returns when no call runs any more.
  virtual void OnLoadProgress(std::function<void()> wake);
  // The engine has nothing to do: a few blocks that were not written are handed to the tiers. True:
  // there are more; call again in some milliseconds.
  virtual bool RunIdle();
  // Writes out what can be written within `patience`; for a clean end, when no sequence is left.
  // False: not all of it was.
  virtual bool Drain(std::chrono::milliseconds patience);
  virtual std::vector<TierFigures> Tiers() const;  // fastest first

  // The outcome of a shadow (Verdict::shadow): whether the exact run agreed with what was answered.
  virtual void RecordShadow(uint64_t shadow, bool agreed) = 0;

  // Pins the resident blocks of this prompt for `ttl`, within the pin budget. Returns the tokens
  // pinned.
  virtual Result<uint32_t> Pin(const LookupRequest& request, std::chrono::milliseconds ttl) = 0;
  // Ends pins of the resident blocks of this prompt, from its end on up to the first that another
  // pin needs. Returns the tokens that are pinned no longer. kNotFound: nothing of it is resident.
  virtual Result<uint32_t> Unpin(const LookupRequest& request);
  // Drops every block that no sequence uses.
  virtual void Clear() = 0;

  // --- Looking in (kvlink/block_list.h). ---

  // Holds the others up for about 0.1 us a block.
  virtual BlockList ListBlocks(const BlockFilter& filter) const;
  // Up to `last` blocks of the chain that end in block `id`. kNotFound: it is gone, or not for this
  // filter.
  virtual Result<ShownBlocks> ShowBlock(uint64_t id, uint32_t last,
                                        const BlockFilter& filter) const;

  // --- Limits beside the budget. ---

  // The bytes that the blocks of a Namespace::tenant may hold, in use and cached; 0: no limit of
  // its own. A tenant that would need more evicts its own blocks, never another's; when all of them
  // are in use or pinned, Begin, Reserve, Fork and StartLoad answer kQuotaExhausted. What a lower
  // quota leaves over is evicted at once, or when its users are done. Any thread.
  virtual void SetQuota(const std::string& tenant, uint64_t bytes);
  virtual std::vector<TenantUse> Tenants() const;  // that have blocks or a quota, by name
  // Does without so many bytes of the budget, when the machine is short of memory: cached blocks
  // give way, and the memory goes back to the system. What sequences need they get all the same.
  // Stands until it is called again. Returns the bytes that are done without now. From the thread
  // of the sequences.
  virtual uint64_t Withhold(uint64_t bytes);

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

// A cache without tiers.
inline Result<std::unique_ptr<Load>> Cache::StartLoad(const LookupRequest&, const Plan&) {
  return Status(StatusCode::kNotFound, "this cache has no tiers");
}
inline void Cache::ObserveCompute(uint32_t, double, int) {}
inline void Cache::OnLoadProgress(std::function<void()>) {}
inline bool Cache::RunIdle() { return false; }
inline bool Cache::Drain(std::chrono::milliseconds) { return true; }
inline std::vector<TierFigures> Cache::Tiers() const { return {}; }

// A cache that cannot be looked into.
inline Result<uint32_t> Cache::Unpin(const LookupRequest&) {
  return Status(StatusCode::kUnimplemented, "this cache has no pins");
}
inline BlockList Cache::ListBlocks(const BlockFilter&) const { return {}; }
inline Result<ShownBlocks> Cache::ShowBlock(uint64_t id, uint32_t, const BlockFilter&) const {
  return Status(StatusCode::kNotFound, "there is no block " + std::to_string(id));
}

// A cache without other limits than its budget.
inline void Cache::SetQuota(const std::string&, uint64_t) {}
inline std::vector<TenantUse> Cache::Tenants() const { return {}; }
inline uint64_t Cache::Withhold(uint64_t) { return 0; }

inline const char* MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kCold:
      return "cold";
    case MissReason::kDiverged:
      return "diverged";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kNamespace:
      return "namespace";
    case MissReason::kSalt:
      return "salt";
    case MissReason::kTierError:
      return "tier_error";
    case MissReason::kPolicy:
      return "policy";
    case MissReason::kCount:
      break;
  }
  return "unknown";
}

}  // namespace kvlink
