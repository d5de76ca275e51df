// What `kvlink bench` shows while it measures and leaves behind: progress, the first errors, the
// table, and --json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_flags.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/workload.h"
#include "kvlink/status.h"

namespace kvlink::cli {

// `threads` 0: nothing was computed here.
nlohmann::ordered_json MachineJson(int threads);

// Does nothing where `path` is empty.
Status WriteJson(const std::string& path, const nlohmann::ordered_json& json);
// A path that cannot be written is better known before an hour of measuring than after.
Status CheckWritable(const std::string& path);

// The first errors of a run, so that a failed benchmark says why.
void PrintErrors(const std::string& mode, const WorkloadRun& run);

// Runs the workload, with a line of progress unless --quiet.
WorkloadRun RunWithProgress(const BenchFlags& flags, const Workload& workload,
                            const std::string& label, BenchTarget& target);

// Prints the table and writes --json; answers the exit code. `threads` as in MachineJson, `equal`
// as in ReportJson.
int FinishBench(const BenchFlags& flags, const std::string& model, int threads,
                const std::vector<ModeFigures>& modes, std::optional<bool> equal);

}  // namespace kvlink::cli
