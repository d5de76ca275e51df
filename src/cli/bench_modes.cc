#include "cli/bench_modes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_output.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/bench_similar.h"
#include "cli/byte_size.h"
#include "cli/command.h"
#include "cli/kv_budget.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "cli/similar_setup.h"
#include "kernel/paged_attention.h"

namespace kvlink::cli {
namespace {

constexpr size_t kComparedAnswers = 30;  // of mode similar, with their exact runs

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
    return FinishBench(flags_, std::filesystem::path(model_.info().path).filename().string(),
                       threads(), figures_, equal);
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

}  // namespace

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

}  // namespace kvlink::cli
