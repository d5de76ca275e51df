// RunBands: prompts on a donor's rows whose mode runs layers apart. A band is a batch of its own,
// so in each step up to `chunk_tokens` rows of bands run beside the others.
#include <algorithm>
#include <span>
#include <utility>

#include "engine/core.h"

namespace kvlink::engine {
namespace {

// Rows that ran some of their layers count as the rows that would have run as many.
void CountLayerRows(Core& core, Request& request, uint64_t layer_rows) {
  const uint64_t num_layers = core.model.info().num_layers;
  const uint64_t before = request.trunk.layer_rows / num_layers;
  request.trunk.layer_rows += layer_rows;
  const auto rows = static_cast<uint32_t>(request.trunk.layer_rows / num_layers - before);
  if (request.on_trial) {
    core.stats.shadow_tokens += rows;
    return;
  }
  request.report.computed_tokens += rows;
  core.stats.computed_tokens += rows;
}

void EndOfBands(Core& core, Request& request, const float* logits) {
  Trunk& trunk = request.trunk;
  trunk.bands.reset();
  trunk.sequence->Commit(trunk.tokens.subspan(trunk.sequence->num_ready()));
  trunk.next = static_cast<uint32_t>(trunk.tokens.size());
  ++core.epoch;
  const std::span<const float> last(logits, core.vocab_size);
  if (trunk.tail.has_tail()) trunk.sequence->RecordTail(trunk.tail.tail(), last);
  if (PassesCheck(core, request, last)) LeaveTrunk(core, request, logits);
}

// Returns the rows taken: some, unless the request has ended.
uint32_t RunSome(Core& core, Request& request, uint32_t room) {
  Trunk& trunk = request.trunk;
  if (trunk.bands == nullptr) {
    trunk.bands = std::make_unique<BandRun>(*trunk.sequence, trunk.tokens, core.model.info());
    trunk.tail.Begin(*trunk.sequence, static_cast<uint32_t>(trunk.tokens.size()));
  }
  const auto progress = trunk.bands->Run(*core.runner, room, &trunk.tail);
  if (!progress.ok()) {
    End(core, request, FinishReason::kError, progress.status());
    return 0;
  }
  CountLayerRows(core, request, progress->layer_rows);
  if (progress->logits != nullptr) EndOfBands(core, request, progress->logits);
  return progress->rows;
}

}  // namespace

void RunBands(Core& core) {
  uint32_t room = core.options.chunk_tokens;
  const auto next = [&]() -> Request* {
    for (const std::unique_ptr<Request>& request : core.running) {
      if (!request->ending && request->runs_in_bands()) return request.get();
    }
    return nullptr;
  };
  // The oldest request first; who falls back leaves `running`.
  for (Request* request = next(); request != nullptr && room > 0; request = next()) {
    room -= std::min(room, RunSome(core, *request, room));
  }
}

}  // namespace kvlink::engine
