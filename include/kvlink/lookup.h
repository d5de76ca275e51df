// A lookup: what an engine asks the cache about one prompt, and the plan it gets as the answer.
//
//   prompt   [ exact: whole blocks ][ partial ][ to compute, to load, or similar rows ......... ]
//            0                                  cached_tokens(), less where more must run
//
// Both are values. A lookup changes nothing and a plan holds nothing, so that either may be dropped
// or made again at any time; Cache::Begin checks what it is handed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kvlink/kv_shape.h"
#include "kvlink/similar.h"
#include "kvlink/similar_options.h"

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
  // Other values of Namespace::tenant whose blocks are the asker's own, such as what its tenant was
  // before its settings changed. Nothing there is shared; it only makes a miss kNamespace. Must
  // outlive the call only.
  std::span<const std::string> own_scopes;
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
  // Everything that can be reused was; also a prompt that goes on where the cached one ends (a
  // chat's next turn).
  kNone,
  kCold,      // no block of this prompt was ever seen
  kDiverged,  // a prefix hit, then other tokens (Plan::diverged_at)
  kEvicted,   // the next block was here and was evicted
  // The asker's own, but elsewhere: in another of its scopes (LookupRequest::own_scopes), or in a
  // tier for another model fingerprint.
  kNamespace,
  kSalt,       // cached under the tenant's other salt: without any
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
