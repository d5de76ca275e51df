// `kvlink bench`: replays a workload, once per mode in one run, or against a server behind a URL;
// or measures the engine's raw operations. docs/bench.md has the formats and what each figure
// means.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_http.h"
#include "cli/bench_ops.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/bench_shape.h"
#include "cli/bench_similar.h"
#include "cli/byte_size.h"
#include "cli/command.h"
#include "cli/kv_budget.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "cli/progress.h"
#include "cli/similar_setup.h"
#include "cli/tier_setup.h"
#include "cli/workload.h"
#include "kernel/paged_attention.h"

namespace kvlink::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kComparedAnswers = 30;  // of mode similar, with their exact runs

struct BenchFlags {
  std::string model, workload, json, kv_memory, kv_type = "auto", url, model_name, api_key, tls_ca,
                                                synthetic;
  std::string endpoint = "chat", similar = "on", similar_mode, calibration;
  std::vector<std::string> shapes;
  std::vector<std::string> modes = {"off", "exact"};
  uint32_t concurrency = 10, ctx = 0, chunk = 512, rounds = 7, decode_tokens = 64;
  size_t limit = 0;
  int threads = 0;
  double timeout_s = 600;
  TierFlags tiers;
  bool ignore_eos = false, quiet = false, foreign_calibration = false;
};

void AddOptions(CLI::App& app, BenchFlags& flags) {
  app.add_option("--model", flags.model, "GGUF file; default: the model that the set-up fetched")
      ->type_name("FILE");
  app.add_option("--workload", flags.workload, "JSON lines file with conversations to replay")
      ->type_name("FILE");
  app.add_option("--concurrency", flags.concurrency, "Users at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--limit", flags.limit, "Take the first N lines of the workload; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "Threads that compute; default: physical cores that this process may use")
      ->check(CLI::Range(1, 1024));
  app.add_option("--modes", flags.modes,
                 "Modes to run, in this order: off, exact, tiered (exact, with blocks on disk and "
                 "in Redis), similar")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "exact", "tiered", "similar"}))
      ->capture_default_str();
  app.add_option("--similar-mode", flags.similar_mode, kSimilarModeHelp)
      ->check(CLI::IsMember(SimilarModeNames()));
  app.add_option("--similar", flags.similar,
                 "Policy of mode similar: on, or strict: accepted only when computing more changes "
                 "nothing")
      ->check(CLI::IsMember({"on", "strict"}))
      ->capture_default_str();
  app.add_option("--calibration", flags.calibration, kCalibrationHelp)->type_name("FILE");
  app.add_flag("--foreign-calibration", flags.foreign_calibration,
               "Take --calibration although it is another model's (the same weights in another "
               "type, for one): to measure, not to serve");
  AddTierOptions(app, flags.tiers);
  app.add_option("--json", flags.json, "Write the figures there as JSON")->type_name("FILE");
  app.add_option("--chunk", flags.chunk, "Prompt tokens computed in a step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--kv-memory", flags.kv_memory,
                 "RAM for KV; default: enough to run all users at once without sharing")
      ->check(IsByteSize());
  app.add_option("--kv-type", flags.kv_type, kKvTypeHelp)
      ->check(CheckKvType, "{auto,f16,bf16,q8_0}")
      ->capture_default_str();
  app.add_option("--ctx", flags.ctx, "Most tokens of prompt and answer; default: the model's")
      ->check(CLI::Range(16, 1 << 24));
  app.add_flag("--ignore-eos", flags.ignore_eos, "Generate max_tokens always");
  app.add_option("--url", flags.url, "Run against this OpenAI-compatible server instead")
      ->type_name("URL");
  app.add_option("--model-name", flags.model_name, "With --url: default is the server's first");
  app.add_option("--api-key", flags.api_key, "With --url: sent as a bearer token");
  app.add_option("--tls-ca", flags.tls_ca, kTlsCaHelp)->type_name("FILE");
  app.add_option("--endpoint", flags.endpoint, "With --url: chat, or completions")
      ->check(CLI::IsMember({"chat", "completions"}))
      ->capture_default_str();
  app.add_option("--timeout", flags.timeout_s, "With --url: seconds a request may take")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--synthetic", flags.synthetic,
                 "Measure raw operations instead: prefill:N,decode:N,shared:BxN,distinct:BxN")
      ->type_name("LIST");
  app.add_option("--rounds", flags.rounds, "With --synthetic: repetitions, of which the median")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--decode-tokens", flags.decode_tokens, "With --synthetic: tokens per sequence")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--shape", flags.shapes,
                 "Measure instead what KV a model of this shape holds, without weights: llama2-7b, "
                 "llama2-13b, llama3-8b, ... or LAYERSxHEADSxDIM; of --workload, or of three "
                 "scenarios")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_flag("--quiet", flags.quiet, "No progress");
  AddConfigOption(app);
}

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

// A path that cannot be written is better known before an hour of measuring than after.
Status CheckWritable(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "--json: cannot write '" + path + "'");
}

// The first errors of a run, so that a failed benchmark says why.
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

int Finish(const BenchFlags& flags, const std::string& model, const ordered_json& machine,
           const std::vector<ModeFigures>& modes, std::optional<bool> equal) {
  std::printf("%s", ReportTable(modes).c_str());
  if (equal) std::printf("outputs equal: %s\n", *equal ? "yes" : "NO");
  const Status written = WriteJson(flags.json, ReportJson(model, machine, modes, equal));
  if (!written.ok()) return Fail(written);
  const bool errors = std::any_of(modes.begin(), modes.end(),
                                  [](const ModeFigures& figures) { return figures.errors > 0; });
  return errors || equal == false ? kExitFailed : 0;
}

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
  return Finish(flags, (*target)->model(), MachineJson(0), {figures}, std::nullopt);
}

// A folder of its own, removed with all in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = std::filesystem::temp_directory_path() / "kvlink-bench-XXXXXX";
    const char* made = mkdtemp(name.data());
    path_ = made != nullptr ? made : name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The same model in one process, a mode after the other.
class ModeRuns {
 public:
  ModeRuns(const BenchFlags& flags, const Workload& workload, const model::Model& model)
      : flags_(flags), workload_(workload), model_(model) {
    options_.max_branches = flags.concurrency * workload.max_n();
    options_.ignore_eos = flags.ignore_eos;
    options_.engine.num_threads = ChooseThreads(flags.threads);
    options_.engine.context = flags.ctx;
    options_.engine.chunk_tokens = flags.chunk;
    options_.engine.max_queue = std::max(options_.engine.max_queue, flags.concurrency);
  }

  int threads() const { return options_.engine.num_threads; }

  Status ChooseMemory() {
    const uint32_t context = flags_.ctx != 0 ? flags_.ctx : model_.info().context_train;
    const KvShape& shape = model_.kv_shape();
    const uint64_t available = AvailableMemory();
    if (flags_.kv_memory.empty()) {
      options_.kv_bytes =
          KvBytesWithoutSharing(workload_, model_.tokenizer(), shape, flags_.concurrency, context);
      if (available != 0 && options_.kv_bytes > available) {
        return Status(StatusCode::kInvalidArgument,
                      "--concurrency " + std::to_string(flags_.concurrency) + " needs " +
                          FormatByteSize(options_.kv_bytes) + " of KV without sharing, and " +
                          FormatByteSize(available) +
                          " is free; lower it, or set --kv-memory (fewer may then run at once)");
      }
    } else {
      const auto bytes = ChooseKvBytes(flags_.kv_memory, available, TotalMemory(),
                                       model_.info().file_bytes, shape);
      if (!bytes.ok()) return bytes.status();
      options_.kv_bytes = *bytes;
    }
    if (!flags_.quiet) {
      std::fprintf(stderr, "KV %s, %d threads, %s kernels\n",
                   FormatByteSize(options_.kv_bytes).c_str(), threads(),
                   kernel::NumericPath().c_str());
    }
    return Status::Ok();
  }

  // Before anything is measured: a calibration that is missing ends the run.
  Status PrepareSimilar() {
    if (std::ranges::find(flags_.modes, "similar") == flags_.modes.end()) return Status::Ok();
    if (flags_.foreign_calibration && flags_.calibration.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    "--foreign-calibration: --calibration does not say whose");
    }
    const Status set_up = SetUpSimilar(ParseSimilarPolicy(flags_.similar), flags_.calibration,
                                       model_, &similar_, flags_.foreign_calibration);
    if (set_up.ok() && !flags_.similar_mode.empty()) {
      UseSimilarMode(ParseSimilarMode(flags_.similar_mode), model_.info().num_layers,
                     &similar_.similar);
    }
    return set_up;
  }

  // Mode tiered without tiers of its own gets an empty cold one, gone at the end.
  Status PrepareTiers() {
    const bool wanted = std::ranges::find(flags_.modes, "tiered") != flags_.modes.end();
    auto tiers = ReadTierFlags(flags_.tiers, /*cold_by_default=*/false);
    if (!tiers.ok()) return tiers.status();
    if (tiers->any() && !wanted) {
      return Status(StatusCode::kInvalidArgument,
                    "--cold-dir, --cold-size and --remote are for mode tiered: see --modes");
    }
    if (wanted && !tiers->any()) {
      scratch_ = std::make_unique<ScratchFolder>();
      tiers->cold_dir = scratch_->path();
    }
    tiers_ = *std::move(tiers);
    return Status::Ok();
  }

  // Faults the weights in, so that the first mode does not pay for all.
  Status WarmUp() {
    BenchEngineOptions options = options_;
    options.sharing = Sharing::kOff;
    auto target = BenchEngine::Create(model_, options);
    if (!target.ok()) return target.status();
    TurnRequest hello;
    hello.messages = {{"user", "Hello", ""}};
    hello.max_tokens = 2;
    hello.n = 1;
    const TurnOutcome outcome = (*target)->Answer(hello);
    return outcome.error.empty() ? Status::Ok() : Status(StatusCode::kInternal, outcome.error);
  }

  Status Run(const std::string& mode) {
    ResetPeakResident();
    BenchEngineOptions options = options_;
    options.sharing = mode == "off" ? Sharing::kOff : Sharing::kExact;
    if (mode == "similar") {
      options.similar = similar_.similar;
      options.similar_model = similar_.similar_model;
    }
    if (mode == "tiered") options.tiers = tiers_;
    auto target = BenchEngine::Create(model_, options);
    if (!target.ok()) return target.status();
    runs_.push_back(RunWithProgress(flags_, workload_, mode, **target));
    PrintErrors(mode, runs_.back());
    figures_.push_back(Summarise(mode, runs_.back()));
    figures_.back().engine = (*target)->Figures(runs_.back().wall_s);
    figures_.back().engine->rss_bytes = PeakResidentBytes();
    const engine::EngineStats stats = (*target)->stats();
    figures_.back().deadline_missed = stats.deadline_missed;
    if (mode == "tiered") {
      figures_.back().loads =
          LoadFigures{stats.cache.loads, stats.cache.failed_loads, stats.cache.loaded_tokens,
                      stats.cache.unwritten_blocks, stats.tiers};
    }
    if (mode != "similar") return Status::Ok();
    figures_.back().similar = SimilarFiguresOf(stats);
    SimilarFigures& similar = *figures_.back().similar;
    similar.foreign_calibration = flags_.foreign_calibration;
    AddShadows(**target, &similar);
    target->reset();  // its memory is the next one's
    return AddDistances(model_, workload_, options, kComparedAnswers, &similar);
  }

  int Report() {
    // The deadline is twice the median without sharing.
    for (const ModeFigures& off : figures_) {
      if (off.mode != "off") continue;
      const double deadline_s = 2 * off.latency_p50;
      for (size_t i = 0; i < figures_.size(); ++i) {
        figures_[i].deadline_missed = CountLate(runs_[i], deadline_s);
      }
      break;
    }
    std::optional<bool> equal;
    // Answers from similar rows are not equal by design; how far they are is among their figures.
    const WorkloadRun* first = nullptr;
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (figures_[i].mode == "similar") continue;
      if (first != nullptr) equal = equal.value_or(true) && SameOutputs(*first, runs_[i]);
      if (first == nullptr) first = &runs_[i];
    }
    return Finish(flags_, std::filesystem::path(model_.info().path).filename().string(),
                  MachineJson(threads()), figures_, equal);
  }

 private:
  const BenchFlags& flags_;
  const Workload& workload_;
  const model::Model& model_;
  BenchEngineOptions options_;
  CacheOptions similar_;  // of which mode similar takes what is about similar reuse
  std::unique_ptr<ScratchFolder> scratch_;
  TierOptions tiers_;
  std::vector<WorkloadRun> runs_;
  std::vector<ModeFigures> figures_;
};

int RunModes(const BenchFlags& flags, const Workload& workload) {
  auto model = OpenModel(flags.model, flags.kv_type, flags.quiet, flags.ctx);
  if (!model.ok()) return Fail(model.status());
  ModeRuns modes(flags, workload, **model);
  if (const Status status = modes.PrepareTiers(); !status.ok()) return Fail(status);
  if (const Status status = modes.PrepareSimilar(); !status.ok()) return Fail(status);
  if (const Status status = modes.ChooseMemory(); !status.ok()) return Fail(status);
  if (const Status status = modes.WarmUp(); !status.ok()) return Fail(status);
  for (const std::string& mode : flags.modes) {
    if (const Status status = modes.Run(mode); !status.ok()) return Fail(status);
  }
  return modes.Report();
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
  AddOptions(*app, *flags);
  return {app, [flags] { return Bench(*flags); }};
}

}  // namespace kvlink::cli
