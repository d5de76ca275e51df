// `kvlink bench`: replays a workload, once per mode in one run, or against a server behind a URL;
// or measures the engine's raw operations. docs/bench.md has the formats and what each figure
// means.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_flags.h"
#include "cli/bench_http.h"
#include "cli/bench_modes.h"
#include "cli/bench_ops.h"
#include "cli/bench_output.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/command.h"
#include "cli/model_file.h"
#include "cli/progress.h"
#include "cli/workload.h"

namespace kvlink::cli {
namespace {

using nlohmann::ordered_json;

int RunUrl(const BenchFlags& flags, const Workload& workload) {
  const auto url = ParseUrl(flags.url);
  if (!url.ok()) return Fail(url.status());
  auto target = HttpTarget::Create(
      {*url, flags.model_name, flags.api_key, flags.ignore_eos, flags.timeout_s,
       flags.endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions, flags.tls_ca});
  if (!target.ok()) return Fail(target.status());
  const WorkloadRun run = RunWithProgress(flags, workload, "url", **target);
  PrintErrors("url", run);
  ModeFigures figures = Summarise("url", run);
  figures.deadline_missed = CountLate(run, flags.timeout_s);
  if (run.wall_s > 0) figures.client_cpu_share = run.cpu_s / run.wall_s;
  return FinishBench(flags, (*target)->model(), 0, {figures}, std::nullopt);
}

int RunSynthetic(const BenchFlags& flags) {
  const auto ops = ParseOps(flags.synthetic);
  if (!ops.ok()) return Fail(ops.status());
  auto model = OpenModel(flags.model, flags.kv_type, flags.quiet, flags.ctx);
  if (!model.ok()) return Fail(model.status());
  const OpsOptions options{ChooseThreads(flags.threads), flags.chunk, flags.decode_tokens,
                           flags.rounds};
  std::unique_ptr<Progress> progress;
  if (!flags.quiet) progress = std::make_unique<Progress>(stderr, "measuring");
  const auto total = static_cast<double>(ops->size() * options.rounds);
  const auto figures = MeasureOps(**model, *ops, options, [&](size_t done) {
    if (progress) progress->Update(static_cast<double>(done) / total);
  });
  progress.reset();
  if (!figures.ok()) return Fail(figures.status());

  ordered_json by_op = ordered_json::object();
  std::printf("%-20s%14s%14s%14s\n", "operation", "tokens/s", "lowest", "highest");
  for (const OpFigures& op : *figures) {
    const double median = Percentile(op.tok_per_s, 0.5);
    const auto [low, high] = std::minmax_element(op.tok_per_s.begin(), op.tok_per_s.end());
    std::printf("%-20s%14.1f%14.1f%14.1f\n", op.name.c_str(), median, *low, *high);
    by_op[op.name] = {{"tok_per_s", median},
                      {"cpu_us_per_tok", Percentile(op.cpu_us_per_tok, 0.5)},
                      {"rounds", op.tok_per_s}};
  }
  const ordered_json json = {
      {"model", std::filesystem::path((*model)->info().path).filename().string()},
      {"machine", MachineJson(options.threads)},
      {"ops", by_op}};
  const Status written = WriteJson(flags.json, json);
  return written.ok() ? 0 : Fail(written);
}

// The default model gives the vocabulary, the type and the rows of a page.
int RunShapes(const BenchFlags& flags) {
  for (const std::string& name : flags.shapes) {  // before a model is loaded
    const auto shape = FindShape(name, KvType::kF16, kMinTokensPerBlock);
    if (!shape.ok()) return Fail(shape.status());
  }
  std::vector<Scenario> scenarios;
  if (flags.workload.empty()) {
    scenarios = BuiltInScenarios();
  } else {
    auto workload = ReadWorkloadFile(flags.workload, flags.limit);
    if (!workload.ok()) return Fail(workload.status());
    scenarios.push_back({std::filesystem::path(flags.workload).stem(), *std::move(workload)});
  }
  auto model = OpenModel(flags.model, flags.kv_type, flags.quiet, flags.ctx);
  if (!model.ok()) return Fail(model.status());
  const KvShape& pages = (*model)->kv_shape();
  ordered_json json = ordered_json::object();
  for (const std::string& name : flags.shapes) {
    const auto shape = FindShape(name, pages.type, pages.tokens_per_block);
    if (!shape.ok()) return Fail(shape.status());
    std::vector<ScenarioFigures> all;
    for (const Scenario& scenario : scenarios) {
      all.push_back({scenario.name, {}});
      for (const std::string& mode : flags.modes) {
        const auto figures =
            ReplayShape(scenario.workload, (*model)->tokenizer(), shape->shape,
                        mode == "off" ? Sharing::kOff : Sharing::kExact, flags.concurrency);
        if (!figures.ok()) return Fail(figures.status());
        all.back().modes.push_back(*figures);
      }
    }
    std::printf("%s\n", ShapeTable(*shape, all).c_str());
    json[name] = ShapeJson(*shape, all);
  }
  const Status written = WriteJson(
      flags.json, {{"users", flags.concurrency}, {"machine", MachineJson(0)}, {"shapes", json}});
  return written.ok() ? 0 : Fail(written);
}

int Bench(const BenchFlags& flags) {
  const auto bad = [](const std::string& message) {
    return Fail(Status(StatusCode::kInvalidArgument, message));
  };
  if (flags.shapes.empty() && flags.synthetic.empty() == flags.workload.empty()) {
    return bad("give --workload FILE, --synthetic LIST or --shape NAME");
  }
  if (!flags.shapes.empty() && !(flags.synthetic.empty() && flags.url.empty())) {
    return bad("--shape: not with --synthetic or --url");
  }
  for (size_t i = 0; i < flags.modes.size(); ++i) {
    if (std::count(flags.modes.begin(), flags.modes.end(), flags.modes[i]) > 1) {
      return bad("--modes: '" + flags.modes[i] + "' is there twice");
    }
  }
  if (!flags.shapes.empty() && std::ranges::find(flags.modes, "similar") != flags.modes.end()) {
    return bad("--shape: mode similar needs the weights");
  }
  if (!flags.shapes.empty() && std::ranges::find(flags.modes, "tiered") != flags.modes.end()) {
    return bad("--shape: mode tiered needs an engine");
  }
  if (const Status status = CheckWritable(flags.json); !status.ok()) return Fail(status);
  if (!flags.shapes.empty()) return RunShapes(flags);
  if (!flags.synthetic.empty()) {
    if (!flags.url.empty()) return bad("--synthetic: not with --url");
    return RunSynthetic(flags);
  }
  const auto workload = ReadWorkloadFile(flags.workload, flags.limit);
  if (!workload.ok()) return Fail(workload.status());
  return flags.url.empty() ? RunModes(flags, *workload) : RunUrl(flags, *workload);
}

}  // namespace

Command AddBench(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("bench", "Measure workloads and raw operations");
  const auto flags = std::make_shared<BenchFlags>();
  AddBenchOptions(*app, *flags);
  return {app, [flags] { return Bench(*flags); }};
}

}  // namespace kvlink::cli
