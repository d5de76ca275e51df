// What similar reuse did in a benchmark, and how far its answers are from exact ones.
//
// After the timed part, first turns are asked again with log-probabilities; the same tokens are
// forced behind the same prompt in a cache of its own, without similar reuse, and the two are
// compared over the tokens that the engine lists. Requests that were answered exactly say nothing
// and are left out.
#pragma once

#include "cli/bench_engine.h"
#include "cli/bench_report.h"
#include "cli/workload.h"
#include "model/model.h"

namespace kvlink::cli {

// The counters of what ran since the engine was created.
SimilarFigures SimilarFiguresOf(const engine::EngineStats& stats);

struct CompareOptions {
  int threads = 1;
  uint32_t chunk = 512;
  size_t requests = 30;  // at most
  uint32_t context = 0;
};

// Adds to `figures` how far the answers are, and what shadows ran, which it waits for first.
Status CompareWithExact(const model::Model& model, const Workload& workload,
                        const CompareOptions& options, BenchEngine& engine,
                        SimilarFigures* figures);

}  // namespace kvlink::cli
