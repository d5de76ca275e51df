// Admit: which waiting request starts next.
//
// Order: the tenant that was served least (fair_turns.h). Of its requests one that waited longer
// than `starvation` comes first, the oldest of them, and nobody passes it; otherwise the longest
// hit, then the oldest. Only the tenant's first kWindow candidates are looked up, and a lookup is
// remembered until something changed (Core::epoch), so that a long queue costs nothing per step.
//
// Single flight: a request whose blocks a leader is computing waits without pages, until the leader
// has committed them (it is looked up again and hits), is gone, or is late. Then the oldest waiter
// takes over: it begins, is the new leader, and the others find it in flight.
//
// Quotas: where a tenant's own quota of KV is full of what its requests use, none of its requests
// starts until one of them ends; those of others go on.
//
// A request with more branches than sequences starts with as many branches as there are sequences.
// The others begin one by one as sequences come free, each as if it were a request as old as the
// whole: its tenant's turn first, then before younger requests. One sequence is always left to it,
// so that it gets on whatever else waits.
//
// Loads: a request whose next blocks are in a colder tier waits in the same way while they are
// loaded, one load at most each time it is in the queue; then it is looked up again, and hits.
// While all sequences are taken the oldest waiting requests load already (prefetch).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/core.h"

namespace kvlink::engine {
namespace {

constexpr size_t kWindow = 16;
constexpr size_t kPrefetch = 4;  // waiting requests that load before they can start

// Lanes that a running request has, or keeps, and that a waiting one starts with.
uint32_t LanesOf(const Core& core, const Request& request) {
  if (request.beam || !request.branched) {
    return std::min(request.width, core.options.max_sequences);
  }
  return std::max(request.num_live(), 1u);
}

uint32_t RunningLanes(const Core& core) {
  uint32_t lanes = 0;
  for (const std::unique_ptr<Request>& request : core.running) {
    if (!request->ending) lanes += LanesOf(core, *request);
  }
  return lanes;
}

uint32_t ForkingRequests(const Core& core) {
  return static_cast<uint32_t>(
      std::count_if(core.running.begin(), core.running.end(),
                    [](const auto& request) { return request->can_fork_more(); }));
}

// The oldest of a tenant's that has branches left to begin; null: none.
Request* ForkingOf(const Core& core, const FairTurns::Turn* turn) {
  for (const std::unique_ptr<Request>& request : core.running) {
    if (request->turn == turn && request->can_fork_more()) return request.get();
  }
  return nullptr;
}

// Who has branches left to begin, and none that lives, goes on with the next one.
void KeepForking(Core& core) {
  for (const std::unique_ptr<Request>& request : core.running) {
    while (request->can_fork_more() && request->num_live() == 0) BeginNextBranch(core, *request);
  }
}

LookupRequest LookupOf(const Request& request) {
  const bool fresh_logprobs = request.trunk.first && request.params.prompt_logprobs >= 0;
  LookupRequest lookup;
  lookup.tokens = request.trunk.tokens;
  lookup.ns = request.params.ns;
  lookup.own_scopes = request.params.own_scopes;
  lookup.reuse = request.params.reuse;
  lookup.store = request.params.store;
  // Rows that ran before a preemption were counted as computed.
  const bool may_borrow = request.trunk.first && !request.exact_only &&
                          request.params.prompt_logprobs < 0 && request.report.preemptions == 0;
  lookup.similar = may_borrow ? request.params.similar : SimilarPolicy::kOff;
  lookup.trial = request.on_trial;
  lookup.min_compute = fresh_logprobs ? request.prompt_size() : 1;
  lookup.max_new_tokens =
      request.prompt_size() + request.max_tokens - static_cast<uint32_t>(lookup.tokens.size());
  return lookup;
}

void LookUp(Core& core, Request& request) {
  request.plan = core.cache.Lookup(LookupOf(request));
  request.plan_epoch = core.epoch;
  request.report.match_ms += request.plan.match_us / 1e3;
  ConsiderTrial(core, request);
}

bool AnyLoad(const Core& core) {
  return std::any_of(core.waiting.begin(), core.waiting.end(),
                     [](const auto& request) { return request->is_loading(); });
}

// Requests whose load is over look again.
void PollLoads(Core& core) {
  for (const std::unique_ptr<Request>& request : core.waiting) {
    if (!request->is_loading() || !request->load->Poll()) continue;
    if (request->load->lacked_room()) {
      request->may_load = true;
      request->load_refused_epoch = core.epoch;
    }
    request->load_ended = true;
    const std::span<const LoadedRows> loaded = request->load->loaded();
    request->loaded_rows.assign(loaded.begin(), loaded.end());
    request->plan_epoch = 0;
  }
}

enum class LoadStart : uint8_t { kStarted, kNothing, kNoRoom };

LoadStart StartLoad(Core& core, Request& request) {
  if (request.plan.loadable_tokens == 0 || !request.may_load) return LoadStart::kNothing;
  if (request.load_refused_epoch == core.epoch) return LoadStart::kNoRoom;
  Result<std::unique_ptr<Load>> load = core.cache.StartLoad(LookupOf(request), request.plan);
  if (load.ok()) {
    request.load = std::move(*load);
    request.load_ended = false;
    request.may_load = false;
    core.kv_grew = true;
    return LoadStart::kStarted;
  }
  if (load.status().code() != StatusCode::kResourceExhausted &&
      load.status().code() != StatusCode::kQuotaExhausted) {
    request.may_load = false;
    return LoadStart::kNothing;
  }
  request.load_refused_epoch = core.epoch;
  return LoadStart::kNoRoom;
}

// Requests that cannot start yet load what they will need.
void Prefetch(Core& core) {
  size_t seen = 0;
  for (const std::unique_ptr<Request>& request : core.waiting) {
    if (request->ending || request->wait) continue;
    if (++seen > kPrefetch) return;
    if (request->is_loading() || !request->may_load) continue;
    if (request->plan_epoch == 0) LookUp(core, *request);
    if (request->plan.in_flight) continue;
    // The room that comes free is for this one, not for what younger ones load.
    if (StartLoad(core, *request) == LoadStart::kNoRoom) return;
  }
}

// A leader is gone or late: those that waited for it look again.
void WakeWaiters(Core& core) {
  const base::TimePoint now = core.Now();
  bool orphaned = core.running.empty() && !AnyLoad(core);  // no leader of ours can be alive
  for (size_t i = 0; i < core.waiting.size(); ++i) {
    Request& request = *core.waiting[i];
    if (!request.wait || request.ending) continue;
    if (!core.cache.StillComputing(request.wait->in_flight)) {
      request.wait.reset();
      request.plan_epoch = 0;
      continue;
    }
    const bool late = now - request.wait->since > core.options.single_flight_patience;
    if (!late && !orphaned) continue;
    orphaned = false;  // this one takes over
    const uint64_t leader = request.wait->in_flight.leader;
    request.wait.reset();
    request.plan_epoch = 0;
    request.overtakes = true;
    for (size_t j = i + 1; j < core.waiting.size(); ++j) {  // they give the new leader its time
      std::optional<LeaderWait>& other = core.waiting[j]->wait;
      if (other && other->in_flight.leader == leader) other->since = now;
    }
  }
}

void StartWaiting(Core& core, Request& request) {
  request.wait = LeaderWait{*request.plan.in_flight, core.Now()};
  request.awaited_tokens = request.plan.in_flight->num_tokens;
  if (!request.report.waited_for_leader) core.cache.CountWait();
  request.report.waited_for_leader = true;
}

bool IsCandidate(const Request& request) {
  return !request.wait && !request.ending && !request.is_loading();
}

struct Candidate {
  Request* request = nullptr;  // null: none of this tenant's can start
  bool keeps_lanes = false;    // lanes that come free are kept for one of its requests
};

// The request of one tenant that should start now, or whose next branch should begin. Leaves the
// plan of one that should start fresh.
Candidate CandidateOf(Core& core, const FairTurns::Turn* turn, uint32_t free_lanes) {
  const base::TimePoint now = core.Now();
  Request* const forking = ForkingOf(core, turn);
  const uint32_t most_lanes = core.options.max_sequences - ForkingRequests(core);  // to come free
  Request* best = nullptr;
  size_t seen = 0;
  for (const std::unique_ptr<Request>& request : core.waiting) {
    if (request->turn != turn || !IsCandidate(*request)) continue;
    if (forking != nullptr && forking->id < request->id) break;
    if (++seen > kWindow) break;
    const bool aged = now - request->submitted > core.options.starvation;
    const uint32_t lanes = LanesOf(core, *request);
    if (lanes > free_lanes) {
      if (aged && lanes <= most_lanes) return {best, true};
      continue;
    }
    if (request->plan_epoch != core.epoch) LookUp(core, *request);
    if (request->plan.in_flight && !request->overtakes) {
      StartWaiting(core, *request);
      continue;
    }
    const LoadStart load = StartLoad(core, *request);
    if (load == LoadStart::kStarted) continue;
    if (load == LoadStart::kNoRoom && AnyLoad(core)) {  // theirs will be over in a moment
      if (aged) return {best, true};                    // and no younger one's begins before
      continue;
    }
    if (aged) return {request.get(), false};  // older ones wait for leaders
    if (best == nullptr || request->plan.cached_tokens() > best->plan.cached_tokens()) {
      best = request.get();
    }
  }
  return {best != nullptr ? best : forking, false};
}

bool AnyRuns(const Core& core, const FairTurns::Turn* turn) {
  return std::any_of(core.running.begin(), core.running.end(),
                     [&](const auto& request) { return request->turn == turn; });
}

// Tenants with requests that may start, the least served first, then the one that waits longest.
std::vector<const FairTurns::Turn*> TurnsInOrder(Core& core) {
  std::vector<const FairTurns::Turn*> turns;
  const uint64_t walk = ++core.turn_walks;
  bool shadow = false;
  for (const std::unique_ptr<Request>& request : core.running) {
    if (request->turn == nullptr || request->turn->closed || !request->can_fork_more()) continue;
    if (std::exchange(request->turn->seen, walk) != walk) turns.push_back(request->turn);
  }
  for (const std::unique_ptr<Request>& request : core.waiting) {
    if (!IsCandidate(*request)) continue;
    if (request->turn == nullptr) {
      shadow = true;
      continue;
    }
    request->turn->closed = request->turn->closed && AnyRuns(core, request->turn);
    if (!request->turn->closed && std::exchange(request->turn->seen, walk) != walk) {
      turns.push_back(request->turn);
    }
  }
  std::stable_sort(turns.begin(), turns.end(),
                   [](const auto* a, const auto* b) { return a->served < b->served; });
  if (shadow) turns.push_back(nullptr);
  return turns;
}

// The request that should start now, or whose next branch should begin; null: none can.
Request* NextCandidate(Core& core, uint32_t free_lanes) {
  for (const FairTurns::Turn* turn : TurnsInOrder(core)) {
    const Candidate candidate = CandidateOf(core, turn, free_lanes);
    if (candidate.request != nullptr || candidate.keeps_lanes) return candidate.request;
  }
  return nullptr;
}

// Of the prompt's rows [first, end), those that the request loaded.
void CountLoaded(Request& request, uint32_t first, uint32_t end) {
  for (const LoadedRows& rows : request.loaded_rows) {
    const uint32_t from = std::max(first, rows.position);
    const uint32_t to = std::min(end, rows.position + rows.num_rows);
    if (from >= to) continue;
    auto& loaded = request.report.loaded;
    const auto known = std::find_if(loaded.begin(), loaded.end(),
                                    [&](const auto& of_tier) { return of_tier.tier == rows.tier; });
    if (known != loaded.end()) {
      known->tokens += to - from;
    } else {
      loaded.push_back({rows.tier, to - from});
    }
  }
}

// Counts the prompt's rows that need no computing; a later start counts only what is new.
void CountCached(Core& core, Request& request) {
  const uint32_t ready = std::min(request.trunk.next, request.prompt_size());
  if (ready <= request.counted_rows) return;
  const uint32_t cached = ready - request.counted_rows;
  const uint32_t counted = std::exchange(request.counted_rows, ready);
  if (request.shadow) return;
  CountLoaded(request, counted, ready);
  request.report.cached_tokens += cached;
  core.stats.cached_prompt_tokens += cached;
}

void ReportStart(Core& core, Request& request) {
  RequestReport& report = request.report;
  const Plan& plan = request.plan;
  const uint32_t ready = request.trunk.next;
  const uint32_t block = core.cache.shape().tokens_per_block;
  report.partial_tokens =
      ready == plan.compute_from ? ready - std::min(ready, plan.exact_tokens) : ready % block;
  report.miss_reason = plan.miss_reason;
  report.diverged_at = plan.diverged_at;
  request.started = true;
  request.started_at = core.Now();
  report.queue_ms =
      std::chrono::duration<double, std::milli>(request.started_at - request.submitted).count();
  Event event;
  event.kind = Event::Kind::kStarted;
  event.report = std::make_shared<const RequestReport>(report);
  Emit(core, request, std::move(event));
}

void Start(Core& core, Request& request, std::unique_ptr<Sequence> sequence) {
  const auto size = static_cast<uint32_t>(request.trunk.tokens.size());
  const LookupRequest lookup = LookupOf(request);
  request.trunk.next = std::min(sequence->num_ready(), size - lookup.min_compute);
  request.trunk.sequence = std::move(sequence);
  if (lookup.similar != SimilarPolicy::kOff) {
    request.report.similar_reason = request.plan.similar_reason;
    if (request.plan.similar) {
      request.report.mask_similarity = request.plan.similar->mask_similarity;
      request.report.similar_edit = request.plan.similar->edit;
    }
  }
  if (request.trunk.first) request.prompt_logprobs.clear();
  CountCached(core, request);
  request.report.tiers_asked = request.report.tiers_asked || request.plan.tiers_asked;
  request.load.reset();  // the sequence has what it held
  request.load_ended = false;
  request.may_load = true;
  request.loaded_rows.clear();
  ++core.epoch;
  core.kv_grew = true;
  if (!request.started) {
    if (request.turn != nullptr) request.turn->Charge(size - request.trunk.next);
    ReportStart(core, request);
  }
}

// The tenant's quota is full of what its requests use. False: nothing of it will come back by
// itself.
bool WaitsForItsTenant(Core& core, Request& request) {
  if (request.turn == nullptr) return false;
  request.turn->closed = AnyRuns(core, request.turn);
  return request.turn->closed;
}

Status DoesNotFit(const Core& core, const Request& request, const Status& why) {
  const CacheStats cache = core.cache.Stats();
  return {StatusCode::kResourceExhausted,
          "a prompt of " + std::to_string(request.trunk.tokens.size()) +
              " tokens does not fit the KV budget of " + std::to_string(cache.budget_bytes) +
              " bytes (" + std::to_string(core.budget_tokens) + " tokens, " +
              std::to_string(cache.pinned_bytes) + " bytes pinned): " + why.message()};
}

// False: no more can start in this step.
bool TryStart(Core& core, Request& request) {
  Result<std::unique_ptr<Sequence>> begun = core.cache.Begin(LookupOf(request), request.plan);
  while (begun.status().code() == StatusCode::kResourceExhausted && core.running.empty() &&
         DropLoad(core, &request)) {
    begun = core.cache.Begin(LookupOf(request), request.plan);
  }
  while (begun.status().code() == StatusCode::kQuotaExhausted && request.turn != nullptr &&
         !AnyRuns(core, request.turn) && DropLoad(core, &request, request.turn)) {
    begun = core.cache.Begin(LookupOf(request), request.plan);
  }
  if (begun.status().code() == StatusCode::kQuotaExhausted && WaitsForItsTenant(core, request)) {
    return true;
  }
  if (!begun.ok()) {
    const bool full = begun.status().code() == StatusCode::kResourceExhausted;
    if (full && !core.running.empty()) {
      core.admission_closed = true;
      return false;
    }
    End(core, request, FinishReason::kError,
        full ? DoesNotFit(core, request, begun.status()) : begun.status());
    return true;
  }
  if (request.on_trial && (*begun)->computed_rows().empty()) {  // the donor has gone meanwhile
    request.on_trial = false;
    request.plan_epoch = 0;
    return true;
  }
  // Less than the leader would have brought, by a block or more: it went away before it was done.
  const uint32_t found = request.plan.exact_tokens + request.plan.partial_tokens;
  const uint32_t block = core.cache.shape().tokens_per_block;
  if (request.overtakes ||
      (request.awaited_tokens > 0 && found + block <= request.awaited_tokens)) {
    core.cache.CountTakeover();
  }
  request.awaited_tokens = 0;
  request.overtakes = false;

  const auto at = std::find_if(core.waiting.begin(), core.waiting.end(),
                               [&](const auto& other) { return other.get() == &request; });
  KVLINK_CHECK(at != core.waiting.end());
  const auto place =
      std::lower_bound(core.running.begin(), core.running.end(), request.id,
                       [](const auto& other, RequestId id) { return other->id < id; });
  core.running.insert(place, std::move(*at));
  core.waiting.erase(at);
  core.stats.peak_running = std::max<uint64_t>(core.stats.peak_running, core.running.size());
  Start(core, request, std::move(*begun));
  return true;
}

}  // namespace

bool DropLoad(Core& core, const Request* keep, const FairTurns::Turn* turn) {
  for (auto request = core.waiting.rbegin(); request != core.waiting.rend(); ++request) {
    if (request->get() == keep || (*request)->load == nullptr) continue;
    if (turn != nullptr && (*request)->turn != turn) continue;
    (*request)->load.reset();
    (*request)->load_ended = false;
    (*request)->loaded_rows.clear();
    (*request)->plan_epoch = 0;
    ++core.epoch;
    return true;
  }
  return false;
}

void Admit(Core& core) {
  KeepForking(core);
  if (core.waiting.empty() && ForkingRequests(core) == 0) return;
  PollLoads(core);
  WakeWaiters(core);
  if (core.running.empty()) core.admission_closed = false;
  while (!core.admission_closed) {
    const uint32_t used = RunningLanes(core);
    const uint32_t free = core.options.max_sequences - std::min(used, core.options.max_sequences);
    if (free == 0) return Prefetch(core);
    Request* request = NextCandidate(core, free);
    if (request == nullptr) return;
    if (request->can_fork_more()) {
      BeginNextBranch(core, *request);
    } else if (!TryStart(core, *request)) {
      return;
    }
  }
}

}  // namespace kvlink::engine
