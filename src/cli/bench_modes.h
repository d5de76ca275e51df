// The modes of `kvlink bench`: the same model in one process runs the same workload once a mode,
// each with an empty cache of its own.
#pragma once

#include "cli/bench_flags.h"
#include "cli/workload.h"

namespace kvlink::cli {

// All of --modes, then the report; answers the exit code.
int RunModes(const BenchFlags& flags, const Workload& workload);

}  // namespace kvlink::cli
