// Place: gives every lane a sequence (by forking its source) and room for the rows it runs next.
//
// Oldest request first. When pages run out what waiting requests load is given up first, then the
// youngest running request is preempted, so the oldest always gets on and every request finishes in
// the end; a request that does not fit alone ends with an error. When a tenant's quota is full
// the same happens among its own requests.
#include <algorithm>
#include <string>

#include "engine/core.h"

namespace kvlink::engine {
namespace {

uint32_t LanesToFork(const Request& request, int source) {
  return static_cast<uint32_t>(
      std::count_if(request.lanes.begin(), request.lanes.end(), [&](const Lane& lane) {
        return !lane.ended && lane.sequence == nullptr && lane.source == source;
      }));
}

// Before:  source [rows 0..k)          lanes A, B, C wait for it
// After:   A = fork(k), B = fork(k), C = the source itself, unless later branches will fork it
Status PlaceLane(Core& core, Request& request, Lane& lane) {
  if (lane.sequence == nullptr) {
    std::unique_ptr<Sequence>& source = request.sources[static_cast<size_t>(lane.source)];
    if (LanesToFork(request, lane.source) == 1 && !request.has_later_branches()) {
      lane.sequence = std::move(source);
    } else {
      auto forked = source->Fork(source->num_ready(), request.RemainingTokens(lane));
      if (!forked.ok()) return forked.status();
      lane.sequence = std::move(*forked);
    }
    lane.source = -1;
    core.kv_grew = true;
  }
  const uint32_t needed = request.LaneSize(lane);
  if (lane.sequence->capacity() >= needed) return {};
  core.kv_grew = true;
  return lane.sequence->Reserve(needed);
}

Status DoesNotFit(const Core& core, const Request& request, const Status& why) {
  uint64_t longest = 0;
  for (const Lane& lane : request.lanes) {
    longest = std::max<uint64_t>(longest, lane.ended ? 0 : request.LaneSize(lane));
  }
  const std::string what = "branches at once: " + std::to_string(request.num_live()) +
                           ", longest " + std::to_string(longest) + " tokens: ";
  if (why.code() == StatusCode::kQuotaExhausted) return {why.code(), what + why.message()};
  return {StatusCode::kResourceExhausted, what + "more than the KV budget of " +
                                              std::to_string(core.budget_tokens) +
                                              " tokens holds: " + why.message()};
}

// Frees pages for `request`, of anybody's or, for a quota, of its tenant's. False: it lost its own.
bool MakeRoom(Core& core, Request& request, const Status& why) {
  const bool by_quota = why.code() == StatusCode::kQuotaExhausted;
  const FairTurns::Turn* const turn = by_quota ? request.turn : nullptr;
  if (DropLoad(core, nullptr, turn)) return true;
  Request* youngest = nullptr;
  size_t live = 0;
  for (const std::unique_ptr<Request>& other : core.running) {
    if (other->ending || (by_quota && other->turn != turn)) continue;
    youngest = other.get();
    ++live;
  }
  const auto preempt = [&](Request& victim) {
    (by_quota && turn != nullptr ? request.turn->closed : core.admission_closed) = true;
    Preempt(core, victim);
  };
  if (youngest != &request) {
    preempt(*youngest);
    return true;
  }
  if (live > 1) {
    preempt(request);
  } else {
    End(core, request, FinishReason::kError, DoesNotFit(core, request, why));
  }
  return false;
}

void PlaceRequest(Core& core, Request& request) {
  if (!request.branched || request.trunk.sequence != nullptr) return;  // Begin made room
  for (Lane& lane : request.lanes) {
    if (!request.is_live(lane)) continue;
    for (Status status = PlaceLane(core, request, lane); !status.ok();
         status = PlaceLane(core, request, lane)) {
      if (status.code() != StatusCode::kResourceExhausted &&
          status.code() != StatusCode::kQuotaExhausted) {
        End(core, request, FinishReason::kError, std::move(status));
        return;
      }
      if (!MakeRoom(core, request, status)) return;
    }
  }
  if (!request.has_later_branches()) request.sources.clear();
}

// How many requests ran when the pages in use were at their peak.
void NotePeak(Core& core) {
  if (!core.kv_grew) return;
  core.kv_grew = false;
  const uint64_t in_use = core.cache.Stats().in_use_bytes;
  if (in_use <= core.peak_kv_bytes) return;
  core.peak_kv_bytes = in_use;
  core.stats.running_at_peak_kv = core.running.size();
}

}  // namespace

void Place(Core& core) {
  // Victims go from behind, or it is this one itself; an ending request stays until Finish.
  for (size_t i = 0; i < core.running.size();) {
    Request* const request = core.running[i].get();
    if (!request->ending) PlaceRequest(core, *request);
    if (i < core.running.size() && core.running[i].get() == request) ++i;
  }
  NotePeak(core);
}

}  // namespace kvlink::engine
