// End, Preempt: how a request gives its pages back before it has finished.
#include <algorithm>

#include "base/check.h"
#include "engine/branch_set.h"
#include "engine/core.h"

namespace kvlink::engine {
namespace {

// What is to be computed when the request starts again.
void PlanResume(Request& request) {
  request.trunk = Trunk{};
  if (!request.branched || request.has_later_branches()) {  // which will fork the prompt
    request.trunk.tokens = request.params.prompt;
    request.trunk.first = !request.branched;
    return;
  }
  const Lane* first = nullptr;
  std::vector<std::span<const TokenId>> live;
  for (const Lane& lane : request.lanes) {
    if (lane.ended) continue;
    if (first == nullptr) first = &lane;
    live.push_back(request.Generated(lane));
  }
  KVLINK_CHECK(first != nullptr) << "request " << request.id << " has no live branch";
  const uint32_t shared = request.prompt_size() + SharedTrunk(live);
  request.resumed.clear();
  for (uint32_t p = 0; p < shared; ++p) request.resumed.push_back(request.TokenAt(*first, p));
  request.trunk.tokens = request.resumed;
  request.trunk.first = false;
}

}  // namespace

void ReleaseSequences(Core& core, Request& request) {
  request.trunk.sequence.reset();
  request.sources.clear();
  for (Lane& lane : request.lanes) {
    lane.sequence.reset();
    lane.source = -1;
    lane.candidates.reset();
  }
  ++core.epoch;
}

void End(Core& core, Request& request, FinishReason reason, Status status) {
  if (request.ending) return;
  request.ending = Ending{reason, std::move(status)};
  ReleaseSequences(core, request);
  request.load.reset();
  if (request.turn != nullptr) request.turn->closed = false;
  core.admission_closed = false;
  core.any_ending = true;
}

void Preempt(Core& core, Request& request) {
  ReleaseSequences(core, request);
  PlanResume(request);
  request.report.preemptions += 1;
  core.stats.preemptions += 1;
  request.plan_epoch = 0;
  Requeue(core, request);
}

void Requeue(Core& core, Request& request) {
  const auto at = std::find_if(core.running.begin(), core.running.end(),
                               [&](const auto& other) { return other.get() == &request; });
  KVLINK_CHECK(at != core.running.end());
  const auto place =
      std::lower_bound(core.waiting.begin(), core.waiting.end(), request.id,
                       [](const auto& other, RequestId id) { return other->id < id; });
  core.waiting.insert(place, std::move(*at));
  core.running.erase(at);
}

}  // namespace kvlink::engine
