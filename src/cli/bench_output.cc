#include "cli/bench_output.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "kernel/paged_attention.h"

namespace kvlink::cli {

using nlohmann::ordered_json;

ordered_json MachineJson(int threads) {
  ordered_json machine = {
      {"cpu", CpuName()}, {"cores", UsableCores(AffinityCpus())}, {"memory_bytes", TotalMemory()}};
  if (threads > 0) {
    machine["threads"] = threads;
    machine["numeric_path"] = kernel::NumericPath();
  }
  return machine;
}

Status WriteJson(const std::string& path, const ordered_json& json) {
  if (path.empty()) return Status::Ok();
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) return Status(StatusCode::kInvalidArgument, "--json: cannot write '" + path + "'");
  return Status::Ok();
}

Status CheckWritable(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "--json: cannot write '" + path + "'");
}

void PrintErrors(const std::string& mode, const WorkloadRun& run) {
  constexpr int kShown = 5;
  int shown = 0;
  for (size_t i = 0; i < run.outcomes.size(); ++i) {
    for (size_t turn = 0; turn < run.outcomes[i].size() && shown < kShown; ++turn) {
      const std::string& error = run.outcomes[i][turn].error;
      if (error.empty()) continue;
      std::fprintf(stderr, "kvlink: %s: conversation %zu, turn %zu: %s\n", mode.c_str(), i, turn,
                   error.c_str());
      ++shown;
    }
  }
}

WorkloadRun RunWithProgress(const BenchFlags& flags, const Workload& workload,
                            const std::string& label, BenchTarget& target) {
  std::unique_ptr<Progress> progress;
  if (!flags.quiet) progress = std::make_unique<Progress>(stderr, label);
  const size_t total = workload.num_turns();
  WorkloadRun run = RunWorkload(workload, target, flags.concurrency, [&](size_t done) {
    if (!progress) return;
    progress->Update(static_cast<double>(done) / static_cast<double>(total),
                     std::to_string(done) + "/" + std::to_string(total) + " requests");
  });
  return run;
}

int FinishBench(const BenchFlags& flags, const std::string& model, int threads,
                const std::vector<ModeFigures>& modes, std::optional<bool> equal) {
  std::printf("%s", ReportTable(modes).c_str());
  if (equal) std::printf("outputs equal: %s\n", *equal ? "yes" : "NO");
  const Status written =
      WriteJson(flags.json, ReportJson(model, MachineJson(threads), modes, equal));
  if (!written.ok()) return Fail(written);
  const bool errors = std::any_of(modes.begin(), modes.end(),
                                  [](const ModeFigures& figures) { return figures.errors > 0; });
  return errors || equal == false ? kExitFailed : 0;
}

}  // namespace kvlink::cli
