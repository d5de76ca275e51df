#include "link/conductor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "link/attempt.h"
#include "link/borrowing_sequence.h"
#include "link/linked_sequence.h"
#include "link/list_blocks.h"
#include "link/loading_prefix.h"
#include "link/lookup.h"
#include "link/similar_lookup.h"

namespace kvlink::link {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

namespace {

// Blocks handed to the tiers at a time while there is nothing else to do: about a millisecond.
constexpr size_t kIdleBlocks = 4;

uint64_t NanosecondsSince(base::TimePoint start, const base::Clock& clock) {
  return static_cast<uint64_t>(duration_cast<nanoseconds>(clock() - start).count());
}

}  // namespace

Plan Conductor::Lookup(const LookupRequest& request) const {
  const base::Clock& clock = state_->options.clock;
  Counters& counters = *state_->counters;
  const base::TimePoint start = clock();
  const match::Root root = state_->keys.MakeRoot(request.ns);
  Plan plan;
  {
    const base::ReaderLock lock(state_->mutex);
    const match::PrefixMatch match = FindPrompt(*state_, request, root);
    plan = PlanOf(*state_, request, match);
    AddTiers(*state_, request, root, match, &plan);
    if (request.similar != SimilarPolicy::kOff) {
      const base::TimePoint similar_start = clock();
      SimilarMatch similar = FindSimilar(*state_, request, root, plan.diverged_at);
      plan.similar = std::move(similar.plan);
      plan.similar_reason = similar.reason;
      if (!plan.in_flight && similar.wait) {
        plan.in_flight = similar.wait;
        counters.similar_waits.Add();
      }
      counters.similar_match_ns.Add(NanosecondsSince(similar_start, clock));
    }
  }
  const uint64_t elapsed = NanosecondsSince(start, clock);
  plan.match_us = static_cast<double>(elapsed) / 1e3;
  counters.lookups.Add();
  counters.match_ns.Add(elapsed);
  return plan;
}

Status Conductor::CheckRequest(const LookupRequest& request) const {
  if (request.tokens.empty()) return {StatusCode::kInvalidArgument, "the prompt has no tokens"};
  const KvShape& shape = state_->options.shape;
  const uint64_t positions = request.tokens.size() + 1;
  const uint64_t needed = (positions + shape.tokens_per_block - 1) / shape.tokens_per_block;
  const uint64_t total = state_->options.budget_bytes / shape.page_bytes();
  if (needed <= total) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "a prompt of " + std::to_string(request.tokens.size()) + " tokens needs " +
              std::to_string(needed * shape.page_bytes()) + " bytes of KV, the budget is " +
              std::to_string(state_->options.budget_bytes) + " bytes (" +
              std::to_string(total * shape.tokens_per_block) + " tokens)"};
}

Result<std::unique_ptr<Sequence>> Conductor::Begin(const LookupRequest& request, const Plan& plan) {
  const Status valid = CheckRequest(request);
  if (!valid.ok()) return valid;
  SimilarReason reason = plan.similar_reason;
  if (plan.similar && request.similar != SimilarPolicy::kOff) {
    std::unique_ptr<Sequence> borrowing = BeginBorrowing(request, plan, &reason);
    if (borrowing) return borrowing;
  }
  auto exact = BeginExact(request, plan);
  if (exact.ok() && request.similar != SimilarPolicy::kOff && !request.trial) {
    state_->counters->CountOutcome(reason);
  }
  return exact;
}

Result<std::unique_ptr<Sequence>> Conductor::BeginExact(const LookupRequest& request,
                                                        const Plan& plan) {
  match::Root root = state_->keys.MakeRoot(request.ns);
  const bool store = request.store && state_->options.sharing != Sharing::kOff;
  const bool may_lend =
      store && state_->gate && request.tokens.size() >= state_->options.similar.min_reused_rows;
  const base::TimePoint start = state_->options.clock();
  // Outside the lock's scope: a sequence that fails to begin takes the lock when it goes.
  const bool may_leave_ram = state_->tiers == nullptr || state_->tiers->MayLeaveRam(request.ns);
  auto sequence = std::make_unique<LinkedSequence>(state_, root, store, may_leave_ram);
  Plan fresh;
  {
    const base::WriterLock lock(state_->mutex);
    const match::PrefixMatch match = FindPrompt(*state_, request, root);
    fresh = PlanOf(*state_, request, match);
    state_->counters->match_ns.Add(NanosecondsSince(start, state_->options.clock));
    AddTiers(*state_, request, root, match, &fresh);
    const uint32_t evicted = state_->tiers == nullptr || fresh.loadable_tokens > 0
                                 ? 0
                                 : NumEvicted(*state_, request, match);
    const Status begun = sequence->Begin(request, match);
    if (!begun.ok()) return begun;
    if (evicted > 0 && may_leave_ram) state_->tiers->NoteRegret(evicted);
    if (may_lend) sequence->BecomeDonor(request.tokens);
  }
  sequence->FinishCopies();
  CountBegun(request, plan, fresh);
  return std::unique_ptr<Sequence>(std::move(sequence));
}

// Everything is looked up again, so that whatever changed since the plan was made is a smaller
// plan, or none.
std::unique_ptr<Sequence> Conductor::BeginBorrowing(const LookupRequest& request, const Plan& plan,
                                                    SimilarReason* reason) {
  if (state_->gate == nullptr) return nullptr;
  const match::Root root = state_->keys.MakeRoot(request.ns);
  const auto size = static_cast<uint32_t>(request.tokens.size());
  const base::TimePoint start = state_->options.clock();
  // Outside the lock's scope, as above.
  auto sequence = std::make_unique<BorrowingSequence>(state_, root.tenant);
  Plan fresh;
  {
    const base::WriterLock lock(state_->mutex);
    const match::PrefixMatch match = FindPrompt(*state_, request, root);
    fresh = PlanOf(*state_, request, match);
    SimilarMatch similar = FindSimilar(*state_, request, root, match.num_tokens);
    state_->counters->match_ns.Add(NanosecondsSince(start, state_->options.clock));
    if (!similar.plan) {
      const bool is_gone = similar.reason == SimilarReason::kNoDonor ||
                           !state_->donors->resident().Contains(plan.similar->donor);
      *reason = is_gone ? SimilarReason::kDonorGone : similar.reason;
      return nullptr;
    }
    const AttemptTerms terms{.cluster = ClusterOf(root, similar.plan->edit),
                             .policy = request.similar,
                             .is_trial = request.trial,
                             .exact_tokens = match.num_tokens,
                             .num_tokens = size};
    auto attempt = Attempt::Start(state_, std::move(*similar.plan), terms, std::move(similar.note));
    if (attempt == nullptr) {
      *reason = SimilarReason::kBudget;
      return nullptr;
    }
    const Status begun = sequence->Begin(size, match, similar.donor_blocks, std::move(attempt));
    if (!begun.ok()) {
      *reason = SimilarReason::kNoRoom;
      return nullptr;
    }
  }
  if (!request.trial) state_->counters->similar_attempts.Add();
  CountBegun(request, plan, fresh);
  return sequence;
}

void Conductor::CountBegun(const LookupRequest& request, const Plan& plan, const Plan& fresh) {
  Counters& counters = *state_->counters;
  const uint32_t exact = std::min(fresh.exact_tokens, fresh.compute_from);
  counters.queried_tokens.Add(request.tokens.size());
  counters.exact_tokens.Add(exact);
  counters.partial_tokens.Add(fresh.compute_from - exact);
  counters.misses[static_cast<size_t>(fresh.miss_reason)].Add();
  if (fresh.diverged_at < plan.exact_tokens + plan.partial_tokens) counters.fallbacks.Add();
}

void Conductor::RecordShadow(uint64_t shadow, bool agreed) {
  if (state_->gate == nullptr) return;
  const auto edit = state_->gate->RecordShadow(shadow, agreed, state_->options.clock());
  if (!edit) return;
  auto& of_class = state_->counters->shadows_by_class[static_cast<size_t>(*edit)];
  state_->counters->shadows.Add();
  of_class.trials.Add();
  if (agreed) return;
  state_->counters->shadow_failures.Add();
  of_class.failures.Add();
}

bool Conductor::StillComputing(const InFlight& wait) const {
  const base::ReaderLock lock(state_->mutex);
  return state_->in_flight.IsComputing({wait.key_lo, wait.key_hi}, wait.leader);
}

BlockList Conductor::ListBlocks(const BlockFilter& filter) const {
  return link::ListBlocks(*state_, filter);
}

Result<ShownBlocks> Conductor::ShowBlock(uint64_t id, uint32_t last,
                                         const BlockFilter& filter) const {
  return link::ShowBlock(*state_, id, last, filter);
}

void Conductor::Clear() {
  const base::WriterLock lock(state_->mutex);
  const bool told_all = state_->store->Clear();
  if (told_all && state_->tiers) state_->tiers->TellObserverAgain();
}

void Conductor::SetQuota(const std::string& tenant, uint64_t bytes) {
  const base::WriterLock lock(state_->mutex);
  state_->store->SetQuota(tenant, bytes);
}

std::vector<TenantUse> Conductor::Tenants() const {
  const base::ReaderLock lock(state_->mutex);
  return state_->store->Tenants();
}

uint64_t Conductor::Withhold(uint64_t bytes) {
  const base::WriterLock lock(state_->mutex);
  return state_->store->Withhold(bytes);
}

// Texts are kept per namespace, by the same typed and length-prefixed fields as blocks; with
// sharing off as well, so that what a chat's history is made of does not depend on it.
void Conductor::Remember(const Namespace& ns, std::string_view text,
                         std::span<const TokenId> tokens) {
  const std::string extras = state_->keys.MakeRoot(ns).extras;
  state_->texts.Remember(extras, text, tokens);
  if (state_->tiers && state_->tiers->MayLeaveRam(ns)) {
    state_->tiers->KeepText(extras, text, tokens);
  }
}

std::optional<std::vector<TokenId>> Conductor::Recall(const Namespace& ns,
                                                      std::string_view text) const {
  const std::string extras = state_->keys.MakeRoot(ns).extras;
  auto tokens = state_->texts.Recall(extras, text);
  if (!tokens && state_->tiers && state_->tiers->MayLeaveRam(ns)) {
    tokens = state_->tiers->texts().Get(extras, text);  // generated before a restart, or elsewhere
    if (tokens) state_->texts.Remember(extras, text, *tokens);
  }
  if (tokens) state_->counters->output_splices.Add();
  return tokens;
}

std::optional<Cache::Recalled> Conductor::RecallPrefix(const Namespace& ns,
                                                       std::string_view text) const {
  auto recalled = state_->texts.RecallPrefix(state_->keys.MakeRoot(ns).extras, text);
  if (recalled) state_->counters->output_splices.Add();
  return recalled;
}

Result<std::unique_ptr<Load>> Conductor::StartLoad(const LookupRequest& request, const Plan&) {
  if (state_->tiers == nullptr) return Status(StatusCode::kNotFound, "this cache has no tiers");
  if (!request.reuse || !state_->tiers->MayLeaveRam(request.ns)) {
    return Status(StatusCode::kNotFound, "tiers are not for this request");
  }
  return LoadingPrefix::Start(state_, request);
}

void Conductor::ObserveCompute(uint32_t num_rows, double wall_us, int num_threads) {
  if (state_->tiers) state_->tiers->ObserveCompute(num_rows, wall_us, num_threads);
}

void Conductor::OnLoadProgress(std::function<void()> wake) {
  if (state_->tiers) state_->tiers->wake_up()->Set(std::move(wake));
}

bool Conductor::RunIdle() {
  if (state_->tiers == nullptr) return false;
  const bool more = WriteBacklog(kIdleBlocks);
  const base::WriterLock lock(state_->mutex);
  return state_->tiers->TellObserver(*state_->store) || more;
}

// The copies are made under the lock, which nobody wants now: unlike at a commit, no sequence holds
// these blocks.
bool Conductor::WriteBacklog(size_t most) {
  if (state_->tiers == nullptr) return false;
  const base::WriterLock lock(state_->mutex);
  LowerTiers& tiers = *state_->tiers;
  const std::vector<PendingWrite> writes = tiers.TakeBacklog(*state_->store, most);
  tiers.PutBack(tiers.Write(shape(), writes));
  return tiers.has_backlog();
}

bool Conductor::Drain(std::chrono::milliseconds patience) {
  if (state_->tiers == nullptr) return true;
  const base::TimePoint deadline = std::chrono::steady_clock::now() + patience;
  bool more = true;
  while (more && std::chrono::steady_clock::now() < deadline) {
    more = WriteBacklog(kIdleBlocks);
    if (!state_->tiers->store().Drain(deadline)) return false;
    const bool is_stuck = more && state_->tiers->all_cut_off();
    if (is_stuck) return false;
  }
  return !more;
}

std::vector<TierFigures> Conductor::Tiers() const {
  return state_->tiers ? state_->tiers->Figures() : std::vector<TierFigures>();
}

CacheStats Conductor::Stats() const {
  CacheStats stats;
  const base::ReaderLock lock(state_->mutex);
  state_->counters->CopyTo(&stats);
  stats.tracking_bytes = state_->sequence_bytes + state_->in_flight.tracking_bytes();
  stats.without_sharing_bytes = state_->sequence_pages * shape().page_bytes();
  state_->store->AddTo(&stats);
  if (state_->tiers) stats.tracking_bytes += state_->tiers->tracking_bytes();
  if (state_->donors) {
    stats.donors = state_->donors->resident().num_donors();
    stats.tracking_bytes += state_->donors->tracking_bytes();
  }
  return stats;
}

}  // namespace kvlink::link
