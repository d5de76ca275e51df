// `kvlink calibrate`: measures on this model how similar reuse answers, chooses its parameters, and
// writes the file without which `serve --similar` does not start. docs/similar.md explains it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/calibrate_experiments.h"
#include "cli/calibrate_plots.h"
#include "cli/calibrate_run.h"
#include "cli/command.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/similar_setup.h"

namespace kvlink::cli {
namespace {

constexpr uint32_t kQuickPairs = 2;

struct CalibrateFlags {
  std::string model, kv_type = "auto", out, report, prompts, similar_mode = "seam";
  std::vector<std::string> classes;
  int threads = 0;
  uint32_t pairs = CalibrationOptions{}.accepts, ctx = CalibrationOptions{}.context;
  uint64_t seed = 1;
  uint32_t decisive = CalibrationOptions{}.decisive;
  uint32_t experiment_pairs = CalibrationOptions{}.experiment_pairs;
  bool quick = false, no_noise = false, quiet = false, experiments = false,
       experiments_only = false;
};

std::vector<std::string> ClassNames() {
  std::vector<std::string> names;
  for (size_t i = 0; i < CalibrationOptions{}.classes.size(); ++i) {
    names.push_back(EditClassName(static_cast<EditClass>(i)));
  }
  return names;
}

void AddOptions(CLI::App& app, CalibrateFlags& flags) {
  flags.classes = ClassNames();
  AddModelOption(app, flags.model);
  AddKvTypeOption(app, flags.kv_type);
  AddThreadsOption(app, flags.threads);
  app.add_option("--pairs", flags.pairs,
                 "Accepted pairs of prompts per class of edits; 60 without a failure bound wrong "
                 "accepts by 5 %")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--classes", flags.classes, "Classes of edits to measure; others stay closed")
      ->delimiter(',')
      ->check(CLI::IsMember(ClassNames()))
      ->capture_default_str();
  app.add_option("--decisive", flags.decisive,
                 "Further pairs with an edit that decides, in which the exact answer holds the "
                 "new fact; not with --quick")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  app.add_flag("--experiments", flags.experiments,
               "Also measure windows against prompt lengths, and modes of reuse against quality, "
               "time and memory");
  app.add_flag("--experiments-only", flags.experiments_only,
               "Measure these alone, with the loosest setting: no calibration is written");
  app.add_option("--experiment-pairs", flags.experiment_pairs,
                 "Pairs on which modes and distances are compared; beside them --decisive")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "Of the pairs")->capture_default_str();
  app.add_option("--similar-mode", flags.similar_mode,
                 "Which rows run: the mode that is measured, and written")
      ->check(CLI::IsMember(SimilarModeNames()))
      ->capture_default_str();
  app.add_option("--ctx", flags.ctx, "Longest prompt; longer ones are left out")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  app.add_option("--prompts", flags.prompts,
                 "JSON lines with prompts of your own (as of bench --workload), tried first")
      ->type_name("FILE");
  app.add_option("--out", flags.out,
                 "Where to write; default: share/kvlink/<model digest>.json in this folder")
      ->type_name("FILE");
  app.add_option("--report", flags.report,
                 "Write a report there, as Markdown, and its charts beside it as PNG")
      ->type_name("FILE");
  app.add_flag("--quick", flags.quick, "A few pairs, to see it work; opens no class");
  app.add_flag("--no-noise", flags.no_noise, "Leave the noise floor out");
  app.add_flag("--quiet", flags.quiet, "No progress");
  AddConfigOption(app);
}

Status WriteText(const std::string& option, const std::string& path, const std::string& text) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return Status::Ok();
  return {StatusCode::kInvalidArgument, option + ": cannot write '" + path + "'"};
}

std::string CommandOf(const CalibrateFlags& flags, uint32_t pairs) {
  std::string command = "kvlink calibrate --pairs " + std::to_string(pairs) + " --seed " +
                        std::to_string(flags.seed) + " --ctx " + std::to_string(flags.ctx);
  if (flags.similar_mode != "seam") command += " --similar-mode " + flags.similar_mode;
  if (flags.classes.size() < ClassNames().size()) {
    for (size_t i = 0; i < flags.classes.size(); ++i) {
      command += (i == 0 ? " --classes " : ",") + flags.classes[i];
    }
  }
  if (flags.kv_type != "auto") command += " --kv-type " + flags.kv_type;
  if (flags.decisive != CalibrationOptions{}.decisive) {
    command += " --decisive " + std::to_string(flags.decisive);
  }
  if (flags.experiments_only) {
    command += " --experiments-only";
  } else if (flags.experiments) {
    command += " --experiments";
  }
  if (flags.experiment_pairs != CalibrationOptions{}.experiment_pairs) {
    command += " --experiment-pairs " + std::to_string(flags.experiment_pairs);
  }
  if (!flags.prompts.empty()) command += " --prompts FILE";
  return command;
}

// What the cache will say to this model is better known before anything is measured.
Status CheckModel(const model::Model& model, ReuseMode mode) {
  CacheOptions options;
  options.shape = model.kv_shape();
  options.similar = CalibrationLadder(model.info().num_layers, mode).front().options;
  options.similar_model = DescribeForSimilar(model);
  return CreateCache(options).status();
}

Status AddExperiments(const CalibrateFlags& flags, const model::Model& model,
                      const CalibrationOptions& options, CalibrationFigures* figures) {
  auto experiments = RunExperiments(model, options, *figures, [&](const std::string& what) {
    if (!flags.quiet) std::fprintf(stderr, "experiments: %s\n", what.c_str());
  });
  if (!experiments.ok()) return experiments.status();
  figures->experiments = std::move(experiments->section);
  figures->memory = std::move(experiments->memory);
  return Status::Ok();
}

Status WriteReport(const CalibrateFlags& flags, const model::ModelInfo& info,
                   const CalibrationFigures& figures) {
  const auto images = WriteCalibrationPlots(flags.report, figures);
  if (!images.ok()) return images.status();
  return WriteText("--report", flags.report,
                   flags.experiments_only ? ExperimentReport(info, figures, *images)
                                          : CalibrationReport(info, figures, *images));
}

int ExperimentAlone(const CalibrateFlags& flags, const model::Model& model,
                    const CalibrationOptions& options) {
  if (flags.report.empty()) {
    return Fail({StatusCode::kInvalidArgument, "--experiments-only: --report does not say where"});
  }
  CalibrationFigures figures;
  figures.seed = options.seed;
  figures.command = CommandOf(flags, options.accepts);
  figures.ladder = CalibrationLadder(model.info().num_layers, options.mode);
  figures.choice.setting = figures.ladder.size() - 1;
  const double cpu_start = ProcessCpuSeconds();
  if (const Status status = AddExperiments(flags, model, options, &figures); !status.ok()) {
    return Fail(status);
  }
  figures.cpu_s = ProcessCpuSeconds() - cpu_start;
  if (const Status status = WriteReport(flags, model.info(), figures); !status.ok()) {
    return Fail(status);
  }
  std::printf("written: %s\n", flags.report.c_str());
  return 0;
}

int Calibrate(const CalibrateFlags& flags) {
  CalibrationOptions options;
  options.threads = ChooseThreads(flags.threads);
  options.seed = flags.seed;
  options.mode = ParseSimilarMode(flags.similar_mode);
  options.context = flags.ctx;
  options.decisive = flags.quick ? 0 : flags.decisive;
  options.accepts = flags.quick ? std::min(flags.pairs, kQuickPairs) : flags.pairs;
  options.experiment_pairs =
      flags.quick ? std::min(flags.experiment_pairs, kQuickPairs) : flags.experiment_pairs;
  for (size_t i = 0; i < options.classes.size(); ++i) {
    options.classes[i] = std::ranges::count(flags.classes, ClassNames()[i]) > 0;
  }
  if (!flags.prompts.empty()) {
    auto own = ReadWorkloadFile(flags.prompts, 0);
    if (!own.ok()) return Fail(own.status());
    options.own = *std::move(own);
  }
  auto model = OpenModel(flags.model, flags.kv_type, flags.quiet);
  if (!model.ok()) return Fail(model.status());
  if (const Status status = CheckModel(**model, options.mode); !status.ok()) return Fail(status);
  if (flags.experiments_only) return ExperimentAlone(flags, **model, options);
  CalibrationFigures figures;
  std::unique_ptr<model::Model> other;
  if (!flags.no_noise && !flags.quick) {
    const KvType type = (*model)->kv_shape().type;
    const std::string other_type = KvTypeName(type == KvType::kF16 ? KvType::kBF16 : KvType::kF16);
    figures.noise_name = std::string("the same prompts with ") + KvTypeName(type) + " and with " +
                         other_type + " K and V";
    auto opened = OpenModel(flags.model, other_type, /*quiet=*/true);
    if (!opened.ok()) return Fail(opened.status());
    other = *std::move(opened);
    options.other_kv = other.get();
  }

  figures.command = CommandOf(flags, options.accepts);
  const double cpu_start = ProcessCpuSeconds();
  std::unique_ptr<Progress> progress;
  if (!flags.quiet) progress = std::make_unique<Progress>(stderr, "calibrating");
  const Status measured = MeasureCalibration(
      **model, options,
      [&](double share, const std::string& note) {
        if (progress) progress->Update(share, note);
      },
      &figures);
  progress.reset();
  if (!measured.ok()) return Fail(measured);
  if (flags.experiments) {
    const Status status = AddExperiments(flags, **model, options, &figures);
    if (!status.ok()) return Fail(status);
  }
  figures.cpu_s = ProcessCpuSeconds() - cpu_start;

  const model::ModelInfo& info = (*model)->info();
  SimilarModel similar_model;
  similar_model.prefill_us_per_row = figures.prefill_us_per_row;
  similar_model.calibrated = figures.choice.trials;
  const std::string text =
      CalibrationText(info, figures.ladder[figures.choice.setting].options, similar_model);
  const std::string out = flags.out.empty() ? "share/kvlink/" + info.digest + ".json" : flags.out;
  if (const Status status = WriteText("--out", out, text); !status.ok()) return Fail(status);
  if (!flags.report.empty()) {
    const Status status = WriteReport(flags, info, figures);
    if (!status.ok()) return Fail(status);
  }
  std::printf("%swritten: %s\n", CalibrationTable(figures).c_str(), out.c_str());
  return 0;
}

}  // namespace

Command AddCalibrate(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand(
      "calibrate", "Measure on this model how similar reuse answers, and choose its parameters");
  const auto flags = std::make_shared<CalibrateFlags>();
  AddOptions(*app, *flags);
  return {app, [flags] { return Calibrate(*flags); }};
}

}  // namespace kvlink::cli
