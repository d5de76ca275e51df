// What similar reuse did in a benchmark, and how far its answers are from exact ones.
//
// After the timed part, first turns are asked again with log-probabilities, in a fresh engine that
// runs no shadows (they would make the prompts exact); the same tokens are forced behind the same
// prompt in a cache of its own, without similar reuse, and the two are compared over the tokens
// that the engine lists. Requests that were answered exactly say nothing and are left out.
#pragma once

#include "cli/bench_engine.h"
#include "cli/bench_report.h"
#include "cli/workload.h"
#include "model/model.h"

namespace kvlink::cli {

// The counters of what ran since the engine was created.
SimilarFigures SimilarFiguresOf(const engine::EngineStats& stats);

// Waits for the shadows of what ran and adds them.
void AddShadows(const BenchEngine& engine, SimilarFigures* figures);

// Adds how far the answers are, of `most_answers` first turns at most. `options`: of the mode.
Status AddDistances(const model::Model& model, const Workload& workload,
                    const BenchEngineOptions& options, size_t most_answers,
                    SimilarFigures* figures);

}  // namespace kvlink::cli
