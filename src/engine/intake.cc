// Intake and Expire: what comes from outside the engine thread, and what time does.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "engine/core.h"

namespace kvlink::engine {
namespace {

// How long the thread sleeps at most while a load is under way, whose deadline it has to see, and
// between two turns of what is done in idle time.
constexpr std::chrono::milliseconds kLoadPause{2}, kIdlePause{10};

// Nothing can run before a load has brought something: what waits waits for one.
bool OnlyLoadsAreLeft(const Core& core) {
  if (!core.running.empty() || core.any_ending) return false;
  return std::any_of(core.waiting.begin(), core.waiting.end(),
                     [](const auto& request) { return request->is_loading(); });
}

Request* Find(std::vector<std::unique_ptr<Request>>& requests, RequestId id) {
  const auto at = std::lower_bound(requests.begin(), requests.end(), id,
                                   [](const std::unique_ptr<Request>& request, RequestId wanted) {
                                     return request->id < wanted;
                                   });
  return at != requests.end() && (*at)->id == id ? at->get() : nullptr;
}

void CancelRequest(Core& core, RequestId id) {
  Request* request = Find(core.running, id);
  if (request == nullptr) request = Find(core.waiting, id);
  if (request != nullptr) End(core, *request, FinishReason::kCancelled);
}

// What the cache does when nobody waits. True: there is more.
bool RunIdle(Core& core, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const bool more = core.cache.RunIdle();
  lock.lock();
  return more;
}

}  // namespace

bool Intake(Core& core) {
  std::vector<RequestId> cancels;
  std::optional<uint64_t> withhold;
  {
    Inbox& inbox = core.inbox;
    std::unique_lock lock(inbox.mutex);
    const auto handed_in = [&] {
      return inbox.stop || inbox.withhold || !inbox.submissions.empty() || !inbox.cancels.empty();
    };
    // A waiting request is admitted as soon as nothing runs, unless it waits for a load.
    if (core.waiting.empty() && core.running.empty() && core.shadows.empty()) {
      while (!handed_in() && RunIdle(core, lock)) inbox.wake.wait_for(lock, kIdlePause, handed_in);
      inbox.wake.wait(lock, handed_in);
    } else if (OnlyLoadsAreLeft(core)) {
      inbox.wake.wait_for(lock, kLoadPause, [&] { return handed_in() || inbox.load_progress; });
    }
    inbox.load_progress = false;
    if (inbox.stop) return false;
    for (std::unique_ptr<Request>& request : inbox.submissions) {
      core.stats.requests += 1;
      core.stats.prompt_tokens += request->prompt_size();
      request->turn = core.turns.Arrive(request->params.ns.tenant, request->params.weight);
      core.waiting.push_back(std::move(request));
    }
    inbox.submissions.clear();
    inbox.waiting = core.waiting.size();
    cancels.swap(inbox.cancels);
    withhold = std::exchange(inbox.withhold, std::nullopt);
  }
  if (withhold) core.stats.withheld_bytes = core.cache.Withhold(*withhold);
  for (const RequestId id : cancels) CancelRequest(core, id);
  return true;
}

void Expire(Core& core) {
  const base::TimePoint now = core.Now();
  for (auto* requests : {&core.waiting, &core.running}) {
    for (const std::unique_ptr<Request>& request : *requests) {
      if (request->deadline && now >= *request->deadline) {
        End(core, *request, FinishReason::kDeadline);
      }
    }
  }
}

}  // namespace kvlink::engine
