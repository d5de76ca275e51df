// `kvlink doctor`: why hits are low and why quality fell, from a running server or from a log of
// prompts, each with the setting to change. docs/operations.md explains the findings.
//
// Exit codes: 0 nothing to change, 1 findings, 2 bad input (also: nobody answers).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/byte_size.h"
#include "cli/command.h"
#include "cli/doctor_prompts.h"
#include "cli/doctor_report.h"
#include "cli/doctor_server.h"
#include "cli/kv_budget.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "cli/progress.h"
#include "cli/similar_setup.h"

namespace kvlink::cli {
namespace {

constexpr int kHealthy = 0, kFindings = 1;
constexpr const char* kDefaultUrl = "http://127.0.0.1:8080";

struct DoctorFlags {
  std::string url, api_key, tls_ca, prompts, model, kv_memory, similar = "off", calibration, json;
  double timeout_s = 30;
  bool quiet = false;
};

void AddOptions(CLI::App& app, DoctorFlags& flags) {
  app.add_option("--url", flags.url,
                 std::string("A running kvlink serve; default, without --prompts: ") + kDefaultUrl)
      ->type_name("URL");
  app.add_option("--api-key", flags.api_key, "With --url: whose requests to look at")
      ->envname("KVLINK_API_KEY");
  app.add_option("--tls-ca", flags.tls_ca, kTlsCaHelp)->type_name("FILE");
  app.add_option("--timeout", flags.timeout_s, "With --url: seconds an answer may take")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  app.add_option("--prompts", flags.prompts,
                 "JSON lines with conversations (as of bench --workload), replayed without "
                 "computing anything")
      ->type_name("FILE");
  app.add_option("--model", flags.model,
                 "With --prompts: GGUF file; default: the model that the set-up fetched")
      ->type_name("FILE");
  app.add_option("--kv-memory", flags.kv_memory,
                 "With --prompts: RAM for KV; default: as kvlink serve takes it")
      ->check(IsByteSize());
  app.add_option("--similar", flags.similar, "With --prompts: off, or on")
      ->check(CLI::IsMember({"off", "on"}))
      ->capture_default_str();
  app.add_option("--calibration", flags.calibration, kCalibrationHelp)->type_name("FILE");
  app.add_option("--json", flags.json, "Write the diagnosis there as JSON; -: instead of the text")
      ->type_name("FILE");
  app.add_flag("--quiet", flags.quiet, "No progress");
  AddConfigOption(app);
}

// Whatever is wrong is bad input: 1 says that there are findings.
int Refuse(const Status& status) {
  Fail(status);
  return kExitBadOption;
}

Status Bad(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

Status CheckFlags(const DoctorFlags& flags) {
  if (!flags.url.empty() && !flags.prompts.empty()) return Bad("give --url or --prompts, not both");
  if (!flags.prompts.empty()) {
    const char* variable = std::getenv("KVLINK_API_KEY");  // it may be set for other commands
    if (!flags.api_key.empty() && (variable == nullptr || flags.api_key != variable)) {
      return Bad("--api-key: only with --url");
    }
    if (!flags.tls_ca.empty()) return Bad("--tls-ca: only with --url");
    return Status::Ok();
  }
  for (const auto& [given, name] : {std::pair{!flags.model.empty(), "--model"},
                                    {!flags.kv_memory.empty(), "--kv-memory"},
                                    {flags.similar != "off", "--similar"},
                                    {!flags.calibration.empty(), "--calibration"}}) {
    if (given) return Bad(std::string(name) + ": only with --prompts; the server knows its own");
  }
  return Status::Ok();
}

// The model's vocabulary and shape are wanted, its weights are not.
Result<std::unique_ptr<model::Model>> OpenVocabulary(const std::string& given) {
  const auto path = FindModelFile(given, std::getenv("KVLINK_MODEL"), ExecutableFolder());
  if (!path.ok()) return path.status();
  model::LoadOptions options;
  options.path = *path;
  options.pack_weights = false;
  auto model = model::Model::Load(options);
  if (!model.ok()) return Status(model.status().code(), "--model: " + model.status().message());
  return model;
}

// What is replayed with: the model's calibration where there is one, else the defaults.
Status ChooseReplay(const DoctorFlags& flags, const model::Model& model, ReplayOptions* options) {
  const auto bytes = ChooseKvBytes(flags.kv_memory, AvailableMemory(), TotalMemory(),
                                   model.info().file_bytes, model.kv_shape());
  if (!bytes.ok()) return bytes.status();
  options->kv_bytes = *bytes;
  options->similar_is_on = flags.similar == "on";
  CacheOptions cache;
  const Status status = SetUpSimilar(SimilarPolicy::kOn, flags.calibration, model, &cache);
  const bool is_wanted = options->similar_is_on || !flags.calibration.empty();
  if (!status.ok() && is_wanted) return status;
  if (!status.ok()) cache.similar_model = DescribeForSimilar(model);
  options->similar = cache.similar;
  options->similar_model = std::move(cache.similar_model);
  return Status::Ok();
}

Result<DoctorFacts> FactsOfPrompts(const DoctorFlags& flags) {
  auto workload = ReadWorkloadFile(flags.prompts, 0);
  if (!workload.ok()) {
    std::string message = workload.status().message();
    constexpr std::string_view kOther = "--workload: ";
    if (message.starts_with(kOther)) message.replace(0, kOther.size(), "--prompts: ");
    return Status(workload.status().code(), message);
  }
  const auto model = OpenVocabulary(flags.model);
  if (!model.ok()) return model.status();
  ReplayOptions options;
  if (const Status status = ChooseReplay(flags, **model, &options); !status.ok()) return status;
  std::unique_ptr<Progress> progress;
  if (!flags.quiet) progress = std::make_unique<Progress>(stderr, "replaying");
  auto facts = ReplayPrompts(**model, *workload, options, [&](double share) {
    if (progress) progress->Update(share);
  });
  progress.reset();
  if (!facts.ok()) return facts.status();
  facts->source = flags.prompts;
  CacheOptions known;
  known.similar = options.similar;
  known.budget_bytes = options.kv_bytes;
  for (const auto& [name, value] : SettingsOf(known)) facts->settings[name] = value;
  return facts;
}

Result<DoctorFacts> FactsOfServer(const DoctorFlags& flags) {
  const auto url = ParseUrl(flags.url.empty() ? kDefaultUrl : flags.url);
  if (!url.ok()) return url.status();
  const auto client = HttpClient::Create({*url, flags.api_key, flags.tls_ca, flags.timeout_s});
  return client.ok() ? ReadServer(*client) : client.status();
}

int Doctor(const DoctorFlags& flags) {
  if (const Status status = CheckFlags(flags); !status.ok()) return Refuse(status);
  const auto facts = flags.prompts.empty() ? FactsOfServer(flags) : FactsOfPrompts(flags);
  if (!facts.ok()) return Refuse(facts.status());
  const Diagnosis diagnosis = Diagnose(*facts);
  const std::string json =
      DiagnosisJson(*facts, diagnosis)
          .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
      "\n";
  if (flags.json == "-") {
    std::fputs(json.c_str(), stdout);
  } else {
    std::fputs(DiagnosisText(*facts, diagnosis).c_str(), stdout);
  }
  if (!flags.json.empty() && flags.json != "-") {
    std::ofstream file(flags.json, std::ios::binary);
    file << json;
    file.close();
    if (!file) return Refuse(Bad("--json: cannot write '" + flags.json + "'"));
  }
  return diagnosis.findings.empty() ? kHealthy : kFindings;
}

}  // namespace

Command AddDoctor(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand(
      "doctor", "Say why hits are low and why quality fell, and what to change");
  const auto flags = std::make_shared<DoctorFlags>();
  AddOptions(*app, *flags);
  return {app, [flags] { return Doctor(*flags); }};
}

}  // namespace kvlink::cli
