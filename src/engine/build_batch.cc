// BuildBatch: the rows of this step.
//
//   decode rows   the one row that a lane has left to run: all of them, so that every running
//                 answer grows by a token a step
//   prefill rows  trunks, and what lanes compute again after a preemption: at most `chunk_tokens`,
//                 the oldest request first
#include <algorithm>

#include "base/check.h"
#include "engine/core.h"

namespace kvlink::engine {
namespace {

// Rows whose logits become prompt log-probabilities are few a step: a row of logits is as large as
// the vocabulary.
constexpr uint32_t kMaxLogprobRows = 32;

void AddUnit(StepBatch& batch, const BatchUnit& unit, std::span<const TokenId> tokens,
             uint32_t num_ready) {
  const SpanTable* spans = &unit.sequence->table();
  if (batch.tables.empty() || batch.tables.back() != spans) batch.tables.push_back(spans);
  const auto table = static_cast<uint32_t>(batch.tables.size()) - 1;
  const auto first_row = static_cast<uint32_t>(batch.rows.size());
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  for (uint32_t i = 0; i < unit.num_rows; ++i) {
    const uint32_t position = unit.first_position + i;
    batch.rows.push_back({table, position, position >= num_ready});
  }
  if (batch.checkpoints.empty()) batch.checkpoints = unit.sequence->checkpoint_layers();
  batch.units.push_back(unit);
  batch.units.back().first_output = static_cast<uint32_t>(batch.outputs.size());
  for (uint32_t i = unit.num_rows - unit.num_outputs; i < unit.num_rows; ++i) {
    batch.outputs.push_back(first_row + i);
  }
}

// Rows [first, first + count) of the trunk.
void AddTrunkRows(Core& core, Request& request, uint32_t first, uint32_t count) {
  Trunk& trunk = request.trunk;
  const bool every_row = trunk.first && request.params.prompt_logprobs >= 0;
  BatchUnit unit;
  unit.request = &request;
  unit.sequence = trunk.sequence.get();
  unit.first_position = first;
  unit.num_rows = count;
  if (trunk.first) {
    const auto size = static_cast<uint32_t>(trunk.tokens.size());
    if (!trunk.tail.has_begun()) trunk.tail.Begin(*trunk.sequence, size);
    const auto batch_row = static_cast<uint32_t>(core.batch.rows.size());
    const auto observed = trunk.tail.Observe(first, count, batch_row);
    if (observed) core.batch.observed.push_back(*observed);
    unit.num_outputs = every_row ? count : trunk.tail.NumOutputs(first, count);
  }
  AddUnit(core.batch, unit, trunk.tokens.subspan(first, count), trunk.sequence->num_ready());
}

// Of a prompt on a donor's rows only those run that were selected.
uint32_t AddSelectedRows(Core& core, Request& request, uint32_t room) {
  uint32_t taken = 0;
  for (const Selection::Range& range : request.trunk.sequence->computed_rows()) {
    const uint32_t end = range.position + range.num_rows;
    if (end <= request.trunk.next) continue;
    const uint32_t first = std::max(range.position, request.trunk.next);
    const uint32_t count = std::min(room - taken, end - first);
    if (count == 0) break;
    AddTrunkRows(core, request, first, count);
    taken += count;
  }
  return taken;
}

// Returns the rows taken.
uint32_t AddTrunk(Core& core, Request& request, uint32_t room) {
  const Trunk& trunk = request.trunk;
  if (request.runs_in_bands()) return 0;  // RunBands' work
  if (request.borrows()) return AddSelectedRows(core, request, room);
  uint32_t count = std::min(room, static_cast<uint32_t>(trunk.tokens.size()) - trunk.next);
  if (trunk.first && request.params.prompt_logprobs >= 0) count = std::min(count, kMaxLogprobRows);
  if (count > 0) AddTrunkRows(core, request, trunk.next, count);
  return count;
}

uint32_t AddLane(Core& core, Request& request, Lane& lane, uint32_t room) {
  const uint32_t ready = lane.sequence->num_ready();
  const uint32_t left = request.LaneSize(lane) - ready;
  KVLINK_DCHECK(left > 0);
  const uint32_t count = std::min(room, left);
  if (count == 0) return 0;
  BatchUnit unit;
  unit.request = &request;
  unit.lane = &lane;
  unit.sequence = lane.sequence.get();
  unit.first_position = ready;
  unit.num_rows = count;
  unit.num_outputs = count == left ? 1 : 0;
  core.scratch_tokens.clear();
  for (uint32_t i = 0; i < count; ++i) {
    core.scratch_tokens.push_back(request.TokenAt(lane, ready + i));
  }
  AddUnit(core.batch, unit, core.scratch_tokens, ready);
  return count;
}

// Beams wait for each other: one that has its candidates has nothing to run.
bool WantsRows(const Lane& lane) { return lane.sequence != nullptr && !lane.candidates; }

bool IsDecode(const Request& request, const Lane& lane) {
  return request.LaneSize(lane) - lane.sequence->num_ready() == 1;
}

}  // namespace

void StepBatch::Clear() {
  units.clear();
  tokens.clear();
  rows.clear();
  tables.clear();
  outputs.clear();
  observed.clear();
  checkpoints = {};
  logits = nullptr;
}

void BuildBatch(Core& core) {
  core.batch.Clear();
  for (const std::unique_ptr<Request>& request : core.running) {
    if (request->ending) continue;
    for (Lane& lane : request->lanes) {
      if (WantsRows(lane) && IsDecode(*request, lane)) AddLane(core, *request, lane, 1);
    }
  }
  uint32_t room = core.options.chunk_tokens;
  for (const std::unique_ptr<Request>& request : core.running) {
    if (room == 0) break;
    if (request->ending) continue;
    if (request->trunk.sequence != nullptr) {
      room -= AddTrunk(core, *request, room);
      continue;
    }
    for (Lane& lane : request->lanes) {
      if (WantsRows(lane) && !IsDecode(*request, lane)) {
        room -= AddLane(core, *request, lane, room);
      }
    }
  }
}

}  // namespace kvlink::engine
