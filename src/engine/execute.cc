// Execute: runs the batch, then commits its rows, which makes full blocks findable.
#include <algorithm>

#include "engine/core.h"

namespace kvlink::engine {
namespace {

// Prompt rows that this run computed for the first time.
void CountComputed(Core& core, Request& request, uint32_t end_position) {
  const uint32_t end = std::min(end_position, request.prompt_size());
  if (end <= request.counted_rows) return;
  const uint32_t computed = end - request.counted_rows;
  request.counted_rows = end;
  request.report.computed_tokens += computed;
  core.stats.computed_tokens += computed;
}

// Rows of an attempt count each time they run; what is borrowed counts when it is accepted.
void CountAttempt(Core& core, Request& request, uint32_t rows) {
  request.report.computed_tokens += rows;
  core.stats.computed_tokens += rows;
}

// Tells the cache what computing takes, which is what loading competes with: by the row where
// nearly all of them are prompts'.
void ObserveTime(Core& core, std::chrono::steady_clock::duration took) {
  uint32_t prefill = 0;
  for (const BatchUnit& unit : core.batch.units) prefill += unit.num_rows > 1 ? unit.num_rows : 0;
  const bool is_prefill = 10 * size_t{prefill} >= 9 * core.batch.rows.size();
  core.cache.ObserveCompute(is_prefill ? static_cast<uint32_t>(core.batch.rows.size()) : 0,
                            std::chrono::duration<double, std::micro>(took).count(),
                            core.options.num_threads);
}

void CommitUnit(Core& core, const BatchUnit& unit, std::span<const TokenId> tokens) {
  const uint32_t end = unit.first_position + unit.num_rows;
  const uint32_t ready = unit.sequence->num_ready();
  Request& request = *unit.request;
  if (unit.lane != nullptr) {
    if (end > ready) unit.sequence->Commit(tokens.subspan(ready - unit.first_position));
    return;
  }
  // Borrowed rows before the unit's go with them.
  if (end > ready) unit.sequence->Commit(request.trunk.tokens.subspan(ready, end - ready));
  request.trunk.next = end;
  if (request.shadow || request.on_trial) {
    core.stats.shadow_tokens += unit.num_rows;
  } else if (request.borrows()) {
    CountAttempt(core, request, unit.num_rows);
  } else {
    CountComputed(core, request, end);
  }
  if (end == request.trunk.tokens.size()) ++core.epoch;  // the whole prompt can be found now
}

}  // namespace

void Execute(Core& core) {
  StepBatch& batch = core.batch;
  if (batch.units.empty()) return;
  core.stats.steps += 1;
  const base::TimePoint start = core.Now();
  const Result<const float*> logits = core.runner->Run(
      {batch.tokens, batch.rows, batch.tables, batch.outputs, batch.observed, batch.checkpoints});
  if (!logits.ok()) {
    for (const BatchUnit& unit : batch.units) {
      End(core, *unit.request, FinishReason::kError, logits.status());
    }
    batch.Clear();
    return;
  }
  ObserveTime(core, core.Now() - start);
  batch.logits = *logits;
  const std::span<const TokenId> tokens = batch.tokens;
  size_t first = 0;
  for (const BatchUnit& unit : batch.units) {
    CommitUnit(core, unit, tokens.subspan(first, unit.num_rows));
    first += unit.num_rows;
  }
}

}  // namespace kvlink::engine
