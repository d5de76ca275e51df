#include "cli/similar_setup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>
#include <vector>

#include "cli/model_file.h"

namespace kvlink::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "kvlink-calibration";
constexpr int kVersion = 1;
constexpr uint64_t kMostTrials = 1'000'000;  // bounds of more take seconds
constexpr size_t kMostShown = 80;            // of a value in a message

// A parameter that calibration may set, and what it may be.
struct Parameter {
  const char* name;
  std::variant<double SimilarOptions::*, uint32_t SimilarOptions::*> member;
  double least, most;
};

const std::vector<Parameter>& Parameters() {
  using O = SimilarOptions;
  static const std::vector<Parameter> parameters = {
      {"fingerprint_window", &O::fingerprint_window, 1, 1024},
      {"short_window", &O::short_window, 1, 1024},
      {"frequent_share", &O::frequent_share, 0, 1},
      {"min_run", &O::min_run, 1, 1 << 20},
      {"max_edit_share", &O::max_edit_share, 0, 1},
      {"mask_similarity", &O::mask_similarity, 0, 1},
      {"span_similarity", &O::span_similarity, 0, 1},
      {"max_moved_share", &O::max_moved_share, 0, 1},
      {"min_reused_rows", &O::min_reused_rows, 1, 1 << 20},
      {"max_compute_share", &O::max_compute_share, 0, 1},
      {"max_reuse_distance", &O::max_reuse_distance, 1, 1024},
      {"seam_rows", &O::seam_rows, 0, 1 << 20},
      {"seam_reach", &O::seam_reach, 1, 1 << 20},
      {"shifted_seam_rows", &O::shifted_seam_rows, 0, 1 << 20},
      {"tail_rows", &O::tail_rows, 1, 1 << 20},
      {"note_share", &O::note_share, 0, 1},
      {"min_notes", &O::min_notes, 0, 1 << 20},
      {"seam_compute_share", &O::seam_compute_share, 0, 1},
      {"compute_share", &O::compute_share, 0, 1},
      {"deviation_exponent", &O::deviation_exponent, 0, 10},
      {"observed_rows", &O::observed_rows, 0, 1024},
      {"max_nll_increase", &O::max_nll_increase, 0, 1e3},
      {"max_entropy_increase", &O::max_entropy_increase, 0, 1e3},
      {"accept_blast_radius", &O::accept_blast_radius, 0, 1e3},
      {"refuse_blast_radius", &O::refuse_blast_radius, 0, 1e3},
      {"converged_js", &O::converged_js, 0, 1},
      {"stale_js", &O::stale_js, 0, 1},
      {"garbled_js", &O::garbled_js, 0, 1},
      {"enlarge_factor", &O::enlarge_factor, 1, 100},
      {"max_score", &O::max_score, 0, 1},
      {"max_false_accepts", &O::max_false_accepts, 0, 1},
      {"confidence", &O::confidence, 0.5, 0.999999},
      {"min_trials", &O::min_trials, 1, 1 << 20},
      {"tie_gap", &O::tie_gap, 0, 100},
      {"always_shadowed", &O::always_shadowed, 0, 1 << 20},
      {"shadow_share", &O::shadow_share, 0, 1},
      {"wasted_compute_share", &O::wasted_compute_share, 0, 1},
  };
  return parameters;
}

constexpr const char* kModes[] = {"seam", "layered", "blend", "anchored"};  // by ReuseMode

Status Bad(const std::string& path, const std::string& what) {
  return {StatusCode::kInvalidArgument, "calibration " + path + ": " + what};
}

std::string Shown(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, kMostShown);
}

Status ReadOptions(const std::string& path, const Json& values, SimilarOptions* options) {
  if (!values.is_object()) return Bad(path, "'options' is not an object");
  for (const auto& [name, value] : values.items()) {
    if (name == "mode") {
      size_t mode = 0;
      while (mode < std::size(kModes) && value != kModes[mode]) ++mode;
      if (mode == std::size(kModes)) return Bad(path, "options.mode is " + Shown(value));
      options->mode = static_cast<ReuseMode>(mode);
      continue;
    }
    const Parameter* parameter = nullptr;
    for (const Parameter& known : Parameters()) {
      if (name == known.name) parameter = &known;
    }
    if (parameter == nullptr) return Bad(path, "options." + name + " is no parameter");
    const double number = value.is_number() ? value.get<double>() : parameter->least - 1;
    if (!(number >= parameter->least && number <= parameter->most)) {
      std::ostringstream message;
      message << "options." << name << " is " << Shown(value) << ", but must be "
              << parameter->least << " to " << parameter->most;
      return Bad(path, message.str());
    }
    std::visit(
        [&](auto member) {
          options->*member = static_cast<std::decay_t<decltype(options->*member)>>(number);
        },
        parameter->member);
  }
  return Status::Ok();
}

Status ReadClasses(const std::string& path, const Json& values, SimilarModel* model) {
  if (!values.is_object()) return Bad(path, "'classes' is not an object");
  for (const auto& [name, value] : values.items()) {
    size_t index = 0;
    while (index < model->calibrated.size() &&
           name != EditClassName(static_cast<EditClass>(index))) {
      ++index;
    }
    if (index == model->calibrated.size()) return Bad(path, "classes." + name + " is no class");
    SimilarTrials& trials = model->calibrated[index];
    for (const auto& [key, number] :
         {std::pair{"trials", &trials.trials}, {"failures", &trials.failures}}) {
      if (!value.is_object() || !value.contains(key) || !value[key].is_number_unsigned()) {
        return Bad(path, "classes." + name + "." + key + " is not a count");
      }
      *number = value[key].get<uint64_t>();
      if (*number > kMostTrials) {
        return Bad(path, "classes." + name + "." + key + " is " + Shown(value[key]) +
                             ", but must be at most " + std::to_string(kMostTrials));
      }
    }
    if (trials.failures > trials.trials) {
      return Bad(path, "classes." + name + " has more failures than trials");
    }
  }
  return Status::Ok();
}

Status ReadCalibration(const std::string& path, const model::ModelInfo& info, bool any_model,
                       CacheOptions* options) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return {StatusCode::kNotFound, "--calibration: cannot read '" + path + "', or it is empty"};
  }
  const Json json = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    return Bad(path, "is not a file that `kvlink calibrate` wrote");
  }
  if (const Json version = json.value("version", Json()); version != kVersion) {
    return Bad(
        path, "has version " + Shown(version) + ", this program reads " + std::to_string(kVersion));
  }
  const Json digest = json.value("model_digest", Json());
  const std::string seen = digest.is_string() ? digest.get<std::string>() : Shown(digest);
  if (!digest.is_string() || (seen != info.digest && !any_model)) {
    return Bad(path, "is of model " + seen.substr(0, kMostShown) + ", not of " + info.path +
                         ", which is " + info.digest);
  }
  const Json us = json.value("prefill_us_per_row", Json(1000.0));
  if (!us.is_number() || !(us.get<double>() > 0)) {
    return Bad(path, "prefill_us_per_row is " + Shown(us) + ", but must be above 0");
  }
  options->similar_model.prefill_us_per_row = us.get<double>();
  if (Status status = ReadOptions(path, json.value("options", Json::object()), &options->similar);
      !status.ok()) {
    return status;
  }
  return ReadClasses(path, json.value("classes", Json::object()), &options->similar_model);
}

// In the executable's folder or one of its parents, as the default model is found.
Result<std::string> FindCalibration(const model::ModelInfo& info) {
  const std::filesystem::path name =
      std::filesystem::path("share") / "kvlink" / (info.digest + ".json");
  std::error_code error;
  for (std::filesystem::path folder = ExecutableFolder();; folder = folder.parent_path()) {
    if (std::filesystem::is_regular_file(folder / name, error)) return (folder / name).string();
    if (folder == folder.parent_path()) break;
  }
  if (info.sliding_window > 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--similar: " + info.path +
                      " has sliding windows: a moved row would see another window, so rows of "
                      "similar prompts cannot stand in. Start with --similar off");
  }
  return Status(StatusCode::kNotFound,
                "no calibration of " + info.path + ": no " + name.string() + " in " +
                    ExecutableFolder() +
                    " or above. Similar reuse needs one: run `kvlink calibrate --model " +
                    info.path + "`, or start with --similar off");
}

}  // namespace

std::vector<std::string> SimilarModeNames() { return {std::begin(kModes), std::end(kModes)}; }

ReuseMode ParseSimilarMode(const std::string& name) {
  return static_cast<ReuseMode>(std::find(std::begin(kModes), std::end(kModes), name) - kModes);
}

void UseSimilarMode(ReuseMode mode, uint32_t num_layers, SimilarOptions* options) {
  const bool reaches_through = mode == ReuseMode::kSeam || mode == ReuseMode::kBlend;
  options->mode = mode;
  options->max_reuse_distance = reaches_through ? num_layers : SimilarOptions{}.max_reuse_distance;
}

SimilarPolicy ParseSimilarPolicy(const std::string& name) {
  if (name == "on") return SimilarPolicy::kOn;
  return name == "strict" ? SimilarPolicy::kStrict : SimilarPolicy::kOff;
}

SimilarModel DescribeForSimilar(const model::Model& model) {
  SimilarModel similar;
  similar.attention.sliding_window = model.info().sliding_window;
  similar.embedding = model.info().embedding;
  const model::Tokenizer& tokenizer = model.tokenizer();
  const uint32_t size = tokenizer.vocab_size();
  similar.token_texts.reserve(size);
  similar.special_tokens.reserve(size);
  for (uint32_t id = 0; id < size; ++id) {
    const auto token = static_cast<TokenId>(id);
    std::string text = tokenizer.Piece(token, false);
    // A special token has no text unless it is asked for by name.
    const bool is_special = text.empty() && !tokenizer.Piece(token, true).empty();
    similar.token_texts.push_back(is_special ? tokenizer.Piece(token, true) : std::move(text));
    similar.special_tokens.push_back(is_special ? 1 : 0);
  }
  return similar;
}

Status SetUpSimilar(SimilarPolicy policy, const std::string& calibration_file,
                    const model::Model& model, CacheOptions* options, bool any_model) {
  if (policy == SimilarPolicy::kOff) return Status::Ok();
  std::string path = calibration_file;
  if (path.empty()) {
    auto found = FindCalibration(model.info());
    if (!found.ok()) return found.status();
    path = *std::move(found);
  }
  options->similar_model = DescribeForSimilar(model);
  if (Status status = ReadCalibration(path, model.info(), any_model, options); !status.ok()) {
    return status;
  }
  options->similar.policy = policy;
  return Status::Ok();
}

std::string CalibrationText(const model::ModelInfo& info, const SimilarOptions& options,
                            const SimilarModel& similar_model) {
  Json values = {{"mode", kModes[static_cast<size_t>(options.mode)]}};
  for (const Parameter& parameter : Parameters()) {
    std::visit([&](auto member) { values[parameter.name] = options.*member; }, parameter.member);
  }
  Json classes = Json::object();
  for (size_t i = 0; i < similar_model.calibrated.size(); ++i) {
    const SimilarTrials& trials = similar_model.calibrated[i];
    if (trials.trials == 0) continue;
    classes[EditClassName(static_cast<EditClass>(i))] = {{"trials", trials.trials},
                                                         {"failures", trials.failures}};
  }
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"model_digest", info.digest},
                     {"model_name", info.name},
                     {"prefill_us_per_row", similar_model.prefill_us_per_row},
                     {"options", values},
                     {"classes", classes}};
  return json.dump(2) + "\n";
}

}  // namespace kvlink::cli
