// Intake and Expire: what comes from outside the engine thread, and what time does.
#include <algorithm>

#include "engine/core.h"

namespace kvlink::engine {
namespace {

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

}  // namespace

bool Intake(Core& core) {
  std::vector<RequestId> cancels;
  {
    Inbox& inbox = core.inbox;
    std::unique_lock lock(inbox.mutex);
    // A waiting request is admitted as soon as nothing runs, so this never sleeps on one.
    if (core.waiting.empty() && core.running.empty() && core.shadows.empty()) {
      inbox.wake.wait(
          lock, [&] { return inbox.stop || !inbox.submissions.empty() || !inbox.cancels.empty(); });
    }
    if (inbox.stop) return false;
    for (std::unique_ptr<Request>& request : inbox.submissions) {
      core.stats.requests += 1;
      core.stats.prompt_tokens += request->prompt_size();
      core.waiting.push_back(std::move(request));
    }
    inbox.submissions.clear();
    inbox.waiting = core.waiting.size();
    cancels.swap(inbox.cancels);
  }
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
