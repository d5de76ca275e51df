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
  if (request.shadow) {
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
  const Result<const float*> logits =
      core.runner->Run({batch.tokens, batch.rows, batch.tables, batch.outputs});
  if (!logits.ok()) {
    for (const BatchUnit& unit : batch.units) {
      End(core, *unit.request, FinishReason::kError, logits.status());
    }
    batch.Clear();
    return;
  }
  batch.logits = *logits;
  const std::span<const TokenId> tokens = batch.tokens;
  size_t first = 0;
  for (const BatchUnit& unit : batch.units) {
    CommitUnit(core, unit, tokens.subspan(first, unit.num_rows));
    first += unit.num_rows;
  }
}

}  // namespace kvlink::engine
