// Branches: what one row of logits does to a sampled branch or to a beam.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/core.h"
#include "engine/logprobs.h"

namespace kvlink::engine {
namespace {

void NoteFirstToken(Core& core, Request& request) {
  if (request.has_first_token) return;
  request.has_first_token = true;
  request.first_token_at = core.Now();
}

void CountGenerated(Core& core, Request& request, uint32_t tokens) {
  request.report.generated_tokens += tokens;
  core.stats.generated_tokens += tokens;
}

// The branch is complete: its pages stay as evictable cache.
void EndLane(Core& core, Request& request, Lane& lane, FinishReason reason) {
  lane.ended = true;
  lane.reason = reason;
  lane.source = -1;
  lane.sequence.reset();
  lane.sampler.reset();  // as large as the vocabulary
  core.admission_closed = false;
  const bool all = std::all_of(request.lanes.begin(), request.lanes.end(),
                               [](const Lane& other) { return other.ended; });
  if (all) End(core, request, reason);
}

TopList TopOf(std::span<const float> logits, double log_sum_exp, size_t count) {
  return std::make_shared<const std::vector<TokenLogprob>>(
      TopLogprobs(logits, log_sum_exp, static_cast<int>(count)));
}

TopList BeamCandidates(const Core& core, const Request& request, const float* row) {
  const std::span<const float> logits(row, core.vocab_size);
  const size_t wanted = static_cast<size_t>(std::max(request.params.logprobs, 0));
  return TopOf(logits, LogSumExp(logits), std::max(request.beam->candidates_needed(), wanted));
}

void BeginBranch(Core& core, Request& request, const float* logits) {
  Lane& lane = request.lanes[request.begun++];
  lane.source = 0;
  SampleLane(core, request, lane, logits);
}

}  // namespace

void BeginBranches(Core& core, Request& request, const float* logits) {
  request.branched = true;
  if (request.beam) {
    request.lanes.resize(1);
    request.lanes[0].sequence = std::move(request.sources[0]);
    request.sources.clear();
    request.lanes[0].candidates = BeamCandidates(core, request, logits);
    return;  // StepBeams does the rest
  }
  const uint32_t at_once = std::min(request.width, core.options.max_sequences);
  if (at_once < request.width) {
    request.first_logits.assign(logits, logits + core.vocab_size);
  }
  while (request.begun < at_once && !request.ending) BeginBranch(core, request, logits);
}

void BeginNextBranch(Core& core, Request& request) {
  KVLINK_DCHECK(request.can_fork_more());
  // It takes its turn among other tenants' requests: what was generated so far counts.
  if (request.turn != nullptr) {
    const uint32_t generated = request.report.generated_tokens;
    request.turn->Charge(generated - std::exchange(request.charged_tokens, generated));
  }
  BeginBranch(core, request, request.first_logits.data());
  if (!request.has_later_branches()) request.first_logits = std::vector<float>();
}

void SampleLane(Core& core, Request& request, Lane& lane, const float* row) {
  if (request.beam) {
    lane.candidates = BeamCandidates(core, request, row);
    return;
  }
  const std::span<const float> logits(row, core.vocab_size);
  TokenEvent event;
  event.branch = static_cast<uint32_t>(&lane - request.lanes.data());
  event.token = lane.sampler->Sample(row);
  if (Status status = lane.sampler->status(); !status.ok()) {
    End(core, request, FinishReason::kError, std::move(status));
    return;
  }
  NoteFirstToken(core, request);
  CountGenerated(core, request, 1);
  lane.sampled += 1;
  TopList top;
  if (request.scores()) {
    const double log_sum = LogSumExp(logits);
    const double own = double{logits[static_cast<size_t>(event.token)]} - log_sum;
    lane.sum += own;
    event.logprob = static_cast<float>(own);
    if (request.wants_logprobs()) {
      top = TopOf(logits, log_sum, static_cast<size_t>(request.params.logprobs));
    }
  }
  const model::Tokenizer& tokenizer = core.model.tokenizer();
  FinishReason reason = FinishReason::kStop;
  bool ended = false;
  // A grammar gives an end of generation in spite of ignore_eos only when nothing else can follow.
  const bool may_end =
      !request.params.sampling.ignore_eos || !request.params.sampling.grammar.empty();
  if (may_end && tokenizer.IsEndOfGeneration(event.token)) {
    ended = true;
    event.token = -1;
    event.text = lane.text->Flush();
  } else {
    lane.generated.push_back(event.token);
    if (request.replays()) lane.scored.push_back({event.token, event.logprob, top});
    event.text = lane.text->Append(tokenizer.Piece(event.token, false));
    if (lane.text->stopped()) {
      ended = true;
    } else if (lane.generated.size() >= request.max_tokens) {
      ended = true;
      reason = FinishReason::kLength;
      event.text += lane.text->Flush();
    }
  }
  if (!request.replays() && (event.token >= 0 || !event.text.empty())) {
    if (top && event.token >= 0) event.top = *top;
    EmitToken(core, request, std::move(event));
  }
  if (ended) EndLane(core, request, lane, reason);
}

// Before:  lanes L0 L1 L2 with candidates;     parents = {1, 1, 0}
// After:   sources {L0, L1};  lanes: 0 <- source 1, 1 <- source 1, 2 <- source 0;
//          L2's pages are free
void StepBeams(Core& core, Request& request) {
  std::vector<TopList> candidates;
  for (const Lane& lane : request.lanes) {
    if (!lane.candidates) return;
    candidates.push_back(lane.candidates);
  }
  NoteFirstToken(core, request);
  const std::vector<uint32_t> parents = request.beam->Step(candidates);
  CountGenerated(core, request, static_cast<uint32_t>(parents.size()));
  if (request.beam->done()) {
    End(core, request, FinishReason::kStop);
    return;
  }
  std::vector<std::unique_ptr<Sequence>> sources(request.lanes.size());
  for (const uint32_t parent : parents) {
    if (!sources[parent]) sources[parent] = std::move(request.lanes[parent].sequence);
  }
  request.lanes.clear();  // beams without children give their pages back here
  request.lanes.resize(parents.size());
  for (size_t i = 0; i < parents.size(); ++i) {
    request.lanes[i].source = static_cast<int>(parents[i]);
  }
  request.sources = std::move(sources);
}

}  // namespace kvlink::engine
