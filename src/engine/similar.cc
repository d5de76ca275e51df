// Similar reuse in the engine: the backward check of prompts that ran on a donor's rows, and
// shadows: exact runs of the same prompts in idle time, whose outcomes the cache keeps count of.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/core.h"
#include "engine/logprobs.h"

namespace kvlink::engine {
namespace {

// Each holds a row of logits; the oldest go first.
constexpr size_t kMostShadows = 16;

// An answer agreed with the exact one when its first token would have been the same, or one that
// the exact run likes as well up to shadow_tie_gap, and its distribution was closer than this, in
// nats: the first quantisation that shows, Q4_K_M against F16, is at 0.03, an answer of another
// kind beyond 0.1.
constexpr double kMostDivergence = 0.1;

void NoteAccept(Core& core, Request& request, std::span<const float> logits, uint64_t shadow) {
  uint32_t computed = 0;
  for (const Selection::Range& range : request.trunk.sequence->computed_rows()) {
    computed += range.num_rows;
  }
  request.report.similar_tokens = request.prompt_size() - request.counted_rows - computed;
  core.stats.similar_prompt_tokens += request.report.similar_tokens;
  request.counted_rows = request.prompt_size();
  if (shadow == 0) return;
  auto copy = std::make_unique<Shadow>();
  copy->number = shadow;
  copy->logits.assign(logits.begin(), logits.end());
  copy->prompt = request.params.prompt;
  copy->ns = request.params.ns;
  copy->store = request.params.store;
  core.shadows.push_back(std::move(copy));
  if (core.shadows.size() > kMostShadows) core.shadows.pop_front();
}

// The request starts again from the end of its exact rows.
void StartAgain(Core& core, Request& request) {
  ReleaseSequences(core, request);
  request.trunk = Trunk{};
  request.trunk.tokens = request.params.prompt;
  request.plan_epoch = 0;
  core.admission_closed = false;
  Requeue(core, request);
}

// Nobody sees what was said on a donor's rows; the request goes on as if nothing had been tried.
void NoteTrial(Core& core, Request& request, const Verdict& verdict,
               std::span<const float> logits) {
  request.on_trial = false;
  if (verdict.action == Verdict::Action::kAccept && verdict.shadow != 0) {
    request.trial = std::make_unique<Shadow>();
    request.trial->number = verdict.shadow;
    request.trial->logits.assign(logits.begin(), logits.end());
  }
  StartAgain(core, request);
}

bool Agrees(std::span<const float> exact, std::span<const float> other, double tie_gap) {
  const auto first = std::max_element(other.begin(), other.end()) - other.begin();
  const float most = *std::max_element(exact.begin(), exact.end());
  if (double{most} - exact[static_cast<size_t>(first)] > tie_gap) return false;
  const double log_sum = LogSumExp(exact), other_log_sum = LogSumExp(other);
  double divergence = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = double{exact[i]} - log_sum;
    divergence += std::exp(log_p) * (log_p - (double{other[i]} - other_log_sum));
  }
  return divergence <= kMostDivergence;
}

void StartShadow(Core& core) {
  RequestId id = 0;
  {
    const std::lock_guard lock(core.inbox.mutex);
    // Core::waiting is in the order of ids: what was submitted comes first.
    if (!core.inbox.submissions.empty()) return;
    id = core.inbox.next_id++;
  }
  auto request = std::make_unique<Request>();
  request->id = id;
  request->shadow = std::move(core.shadows.back());
  core.shadows.pop_back();
  request->params.prompt = std::move(request->shadow->prompt);
  request->params.ns = request->shadow->ns;
  request->params.store = request->shadow->store;
  request->params.max_tokens = request->max_tokens = 1;
  request->submitted = core.Now();
  request->trunk.tokens = request->params.prompt;
  core.waiting.push_back(std::move(request));
}

// The blocks that it stored stay: it goes on there when it starts again.
void PutBack(Core& core, Request& request) {
  request.shadow->prompt = request.params.prompt;
  auto shadow = std::make_unique<Shadow>(std::move(*request.shadow));
  if (core.shadows.size() < kMostShadows) core.shadows.push_back(std::move(shadow));
  End(core, request, FinishReason::kCancelled);
}

}  // namespace

void ConsiderTrial(Core& core, Request& request) {
  const bool is_closed = request.plan.similar_reason == SimilarReason::kClusterClosed;
  if (!is_closed || request.was_tried || request.plan.in_flight) return;
  for (const auto* requests : {&core.waiting, &core.running}) {
    for (const std::unique_ptr<Request>& other : *requests) {
      if (other->on_trial || other->trial) return;  // one at a time
    }
  }
  LookupRequest lookup;
  lookup.tokens = request.trunk.tokens;
  lookup.ns = request.params.ns;
  lookup.similar = request.params.similar;
  lookup.max_new_tokens = request.max_tokens;
  lookup.trial = true;
  Plan plan = core.cache.Lookup(lookup);
  request.report.match_ms += plan.match_us / 1e3;
  if (!plan.similar || plan.in_flight) return;
  request.was_tried = request.on_trial = true;
  request.plan = std::move(plan);
}

void EndTrial(Core& core, Request& request, std::span<const float> logits) {
  const std::unique_ptr<Shadow> trial = std::move(request.trial);
  if (request.report.similar_tokens > 0) return;  // its kind was open by then
  core.cache.RecordShadow(trial->number,
                          Agrees(logits, trial->logits, core.options.shadow_tie_gap));
}

bool PassesCheck(Core& core, Request& request, std::span<const float> logits) {
  Sequence& sequence = *request.trunk.sequence;
  const Verdict verdict = sequence.CheckFirstToken(logits);
  if (request.on_trial && verdict.action != Verdict::Action::kEnlarge) {
    NoteTrial(core, request, verdict, logits);
    return false;
  }
  request.report.similar_reason = verdict.reason;
  switch (verdict.action) {
    case Verdict::Action::kAccept:
      NoteAccept(core, request, logits, verdict.shadow);
      return true;
    case Verdict::Action::kEnlarge:
      KVLINK_CHECK(!sequence.computed_rows().empty());
      request.report.enlarged = true;
      request.trunk.next = sequence.computed_rows().front().position;
      request.trunk.tail = {};
      core.kv_grew = true;
      return false;
    case Verdict::Action::kFallBack:
      request.exact_only = true;
      request.report.fell_back = true;
      StartAgain(core, request);
      return false;
  }
  return false;
}

void EndShadow(Core& core, Request& request, std::span<const float> logits) {
  core.cache.RecordShadow(request.shadow->number,
                          Agrees(logits, request.shadow->logits, core.options.shadow_tie_gap));
  End(core, request, FinishReason::kStop);
}

void RunShadows(Core& core) {
  size_t others = 0;
  Request* shadow = nullptr;
  for (auto* requests : {&core.waiting, &core.running}) {
    for (const std::unique_ptr<Request>& request : *requests) {
      if (request->ending) continue;
      if (request->shadow) {
        shadow = request.get();
      } else {
        ++others;
      }
    }
  }
  if (others == 0) {
    if (shadow == nullptr && !core.shadows.empty()) StartShadow(core);
  } else if (shadow != nullptr) {
    PutBack(core, *shadow);
  }
}

}  // namespace kvlink::engine
