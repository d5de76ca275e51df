#include "link/lookup.h"

#include <algorithm>
#include <string>

namespace kvlink::link {
namespace {

bool MayReuse(const CacheState& state, const LookupRequest& request) {
  return request.reuse && state.options.sharing != Sharing::kOff;
}

// Whether other tokens than the prompt's follow the last row that matched. Where nothing follows,
// the prompt goes on where the cache ends, as the next turn of a chat does: all that is there was
// found.
bool OthersFollow(const BlockStore& store, const match::PrefixMatch& match) {
  if (match.partial != kNoBlock) {
    return match.partial_rows < store.index().TokensOf(match.partial).size();
  }
  return store.index().HasChildren(match.blocks.back());
}

// Nothing better is known about the block that is missing.
bool SaysLittle(MissReason reason) {
  return reason == MissReason::kCold || reason == MissReason::kDiverged;
}

// Where else the block that is missing is, of what belongs to the asker: in its scope without a
// salt, or in another scope of its own. Other salts and scopes are not looked at: what they hold is
// nobody else's business. kCold: nowhere.
MissReason ReasonElsewhere(const CacheState& state, const LookupRequest& request,
                           const match::PrefixMatch& match) KVLINK_REQUIRES_SHARED(state.mutex) {
  if (!match.has_next) return MissReason::kCold;
  const size_t missing = match.blocks.size() + 1;
  const auto tokens = request.tokens.first(missing * state.options.shape.tokens_per_block);
  const auto is_in = [&](const Namespace& ns) KVLINK_REQUIRES_SHARED(state.mutex) {
    return state.store->index().Find(state.keys.MakeRoot(ns), tokens).blocks.size() == missing;
  };
  const Namespace& own = request.ns;
  if (!own.salt.empty() && is_in({.tenant = own.tenant, .salt = ""})) return MissReason::kSalt;
  for (const std::string& scope : request.own_scopes) {
    if (scope != own.tenant && is_in({.tenant = scope, .salt = own.salt})) {
      return MissReason::kNamespace;
    }
  }
  return MissReason::kCold;
}

MissReason ReasonOf(const CacheState& state, const LookupRequest& request,
                    const match::PrefixMatch& match) KVLINK_REQUIRES_SHARED(state.mutex) {
  if (!MayReuse(state, request)) return MissReason::kPolicy;
  const auto size = static_cast<uint32_t>(request.tokens.size());
  if (match.num_tokens >= ComputeFrom(request, size)) return MissReason::kNone;
  if (match.has_next && state.store->WasEvicted(match.next_key)) return MissReason::kEvicted;
  const bool goes_on = match.num_tokens > 0;
  if (goes_on && !OthersFollow(*state.store, match)) return MissReason::kNone;
  // What is elsewhere says more than where this prompt leaves those before it: all prompts of a
  // template begin alike.
  const MissReason elsewhere = ReasonElsewhere(state, request, match);
  if (elsewhere != MissReason::kCold) return elsewhere;
  return goes_on ? MissReason::kDiverged : MissReason::kCold;
}

// The last of the consecutive blocks, from the first that is missing, that one leader computes.
std::optional<InFlight> InFlightOf(const CacheState& state, const LookupRequest& request,
                                   const match::PrefixMatch& match)
    KVLINK_REQUIRES_SHARED(state.mutex) {
  if (!match.has_next) return std::nullopt;
  const std::optional<uint64_t> leader = state.in_flight.LeaderOf(match.next_key);
  if (!leader) return std::nullopt;
  const uint32_t block = state.options.shape.tokens_per_block;
  const auto size = static_cast<uint32_t>(request.tokens.size());
  base::BlockKey key = match.next_key;
  auto end = static_cast<uint32_t>((match.blocks.size() + 1) * block);
  while (end + block <= size) {
    const base::BlockKey next = state.keys.Next(key, request.tokens.subspan(end, block));
    if (!state.in_flight.IsComputing(next, *leader)) break;
    key = next;
    end += block;
  }
  return InFlight{.leader = *leader, .key_lo = key.lo, .key_hi = key.hi, .num_tokens = end};
}

}  // namespace

match::PrefixMatch FindPrompt(const CacheState& state, const LookupRequest& request,
                              const match::Root& root) {
  if (!MayReuse(state, request)) return {};
  match::PrefixMatch match = state.store->index().Find(root, request.tokens);
  state.counters->collisions.Add(match.collisions);
  return match;
}

Plan PlanOf(const CacheState& state, const LookupRequest& request,
            const match::PrefixMatch& match) {
  Plan plan;
  plan.num_tokens = static_cast<uint32_t>(request.tokens.size());
  plan.partial_tokens = match.partial_rows;
  plan.exact_tokens = match.num_tokens - match.partial_rows;
  plan.compute_from = ComputeFrom(request, match.num_tokens);
  plan.miss_reason = ReasonOf(state, request, match);
  plan.diverged_at = match.num_tokens;
  plan.in_flight = InFlightOf(state, request, match);
  return plan;
}

void AddTiers(const CacheState& state, const LookupRequest& request, const match::Root& root,
              const match::PrefixMatch& match, Plan* plan) {
  if (state.tiers == nullptr || !MayReuse(state, request)) return;
  if (!state.tiers->MayLeaveRam(request.ns)) return;
  plan->tiers_asked = true;
  if (match.num_tokens >= ComputeFrom(request, plan->num_tokens)) return;
  const Loadable loadable = state.tiers->Find(request, root, match);
  if (loadable.failed_before && loadable.names.empty()) {
    plan->miss_reason = MissReason::kTierError;
  } else if (SaysLittle(plan->miss_reason) && loadable.names.empty() &&
             state.tiers->IsOfAnotherModel(request, match.blocks.size())) {
    plan->miss_reason = MissReason::kNamespace;
  }
  if (!state.tiers->Pays(loadable)) return;
  plan->loadable_tokens =
      static_cast<uint32_t>(loadable.names.size()) * state.options.shape.tokens_per_block;
  if (loadable.num_known() > 0) plan->tier = state.tiers->NameOf(loadable.tiers.front());
}

uint32_t NumEvicted(const CacheState& state, const LookupRequest& request,
                    const match::PrefixMatch& match) {
  if (!match.has_next) return 0;
  const uint32_t block = state.options.shape.tokens_per_block;
  base::BlockKey key = match.next_key;
  uint32_t count = 0;
  size_t end = (match.blocks.size() + 1) * block;
  while (state.store->WasEvicted(key)) {
    ++count;
    if (end + block > request.tokens.size()) break;
    key = state.keys.Next(key, request.tokens.subspan(end, block));
    end += block;
  }
  return count;
}

uint32_t ComputeFrom(const LookupRequest& request, uint32_t ready) {
  const auto size = static_cast<uint32_t>(request.tokens.size());
  return std::min(ready, size - std::min(size, std::max(request.min_compute, 1u)));
}

}  // namespace kvlink::link
