// Sample: the logits of this step become tokens.
#include <algorithm>

#include "engine/core.h"
#include "engine/logprobs.h"

namespace kvlink::engine {
namespace {

std::span<const float> LogitsOf(const Core& core, uint32_t output) {
  return {core.batch.logits + size_t{output} * core.vocab_size, core.vocab_size};
}

// Row p predicts token p + 1. Entry 0 is that token, then come the alternatives.
void AddPromptLogprobs(Core& core, Request& request, const BatchUnit& unit) {
  const std::vector<TokenId>& prompt = request.params.prompt;
  if (request.prompt_logprobs.empty()) request.prompt_logprobs.emplace_back();
  for (uint32_t i = 0; i < unit.num_outputs; ++i) {
    const uint32_t position = unit.first_position + i;
    if (position + 1 >= prompt.size()) return;
    const std::span<const float> logits = LogitsOf(core, unit.first_output + i);
    const double log_sum = LogSumExp(logits);
    const TokenId token = prompt[position + 1];
    const double own = double{logits[static_cast<size_t>(token)]} - log_sum;
    std::vector<TokenLogprob> entry = {{token, static_cast<float>(own)}};
    const auto top = TopLogprobs(logits, log_sum, request.params.prompt_logprobs);
    entry.insert(entry.end(), top.begin(), top.end());
    request.prompt_logprobs.push_back(std::move(entry));
  }
}

void SampleTrunk(Core& core, const BatchUnit& unit) {
  Request& request = *unit.request;
  if (request.trunk.first && request.params.prompt_logprobs >= 0) {
    AddPromptLogprobs(core, request, unit);
  }
  Trunk& trunk = request.trunk;
  if (trunk.first && unit.num_outputs > 0 && trunk.tail.has_tail()) {
    trunk.tail.AddLogits(trunk.tokens, unit.first_position + unit.num_rows, unit.num_outputs,
                         LogitsOf(core, unit.first_output).data(), core.vocab_size);
  }
  // A prompt on a donor's rows has several units in a batch; the last one ends it.
  if (unit.first_position + unit.num_rows < request.trunk.tokens.size()) return;
  if (request.trunk.first) {
    const std::span<const float> logits = LogitsOf(core, unit.first_output + unit.num_outputs - 1);
    if (trunk.tail.has_tail()) trunk.sequence->RecordTail(trunk.tail.tail(), logits);
    if (request.shadow) return EndShadow(core, request, logits);
    if (request.borrows() && !PassesCheck(core, request, logits)) return;
    if (request.trial) EndTrial(core, request, logits);
  }
  const bool first = request.trunk.first;
  const float* logits =
      first ? LogitsOf(core, unit.first_output + unit.num_outputs - 1).data() : nullptr;
  LeaveTrunk(core, request, logits);
}

}  // namespace

void LeaveTrunk(Core& core, Request& request, const float* logits) {
  request.sources.push_back(std::move(request.trunk.sequence));
  const bool first = request.trunk.first;
  request.trunk = Trunk{};
  if (first) return BeginBranches(core, request, logits);
  for (Lane& lane : request.lanes) {
    if (request.is_live(lane)) lane.source = 0;
  }
}

void Sample(Core& core) {
  for (const BatchUnit& unit : core.batch.units) {
    if (unit.request->ending) continue;
    if (unit.lane == nullptr) {
      SampleTrunk(core, unit);
    } else if (unit.num_outputs > 0) {
      SampleLane(core, *unit.request, *unit.lane, LogitsOf(core, unit.first_output).data());
    }
  }
  for (const std::unique_ptr<Request>& request : core.running) {
    if (request->beam && request->branched && !request->ending) StepBeams(core, *request);
  }
}

}  // namespace kvlink::engine
