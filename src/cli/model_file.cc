#include "cli/model_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/byte_size.h"
#include "cli/progress.h"

namespace kvlink::cli {

namespace fs = std::filesystem;

std::string ExecutableFolder() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  return error ? "." : executable.parent_path().string();
}

Result<std::string> FindModelFile(const std::string& given, const char* environment,
                                  const std::string& folder) {
  std::error_code error;
  const bool from_environment = given.empty() && environment != nullptr && *environment != '\0';
  const std::string named = from_environment ? environment : given;
  if (!named.empty()) {
    const char* source = from_environment ? "KVLINK_MODEL" : "--model";
    if (!fs::exists(named, error)) {
      return Status(StatusCode::kNotFound, std::string(source) + ": no file '" + named + "'");
    }
    if (!fs::is_regular_file(named, error)) {
      return Status(StatusCode::kInvalidArgument,
                    std::string(source) + ": '" + named + "' is not a file");
    }
    return named;
  }
  for (fs::path at = fs::absolute(folder, error); !at.empty(); at = at.parent_path()) {
    const fs::path candidate = at / ".deps" / "models" / kDefaultModelFile;
    if (fs::is_regular_file(candidate, error)) return candidate.string();
    if (at == at.root_path()) break;
  }
  return Status(StatusCode::kNotFound,
                std::string("--model was not given, and there is no .deps/models/") +
                    kDefaultModelFile + " in '" + folder +
                    "' or above it; name a GGUF file (in a source tree, scripts/setup.sh fetches "
                    "the default one)");
}

std::vector<std::string> KvTypeNames() {
  std::vector<std::string> names;
  for (KvType type : kKvTypes) names.push_back(KvTypeName(type));
  return names;
}

std::string CheckKvType(const std::string& name) {
  std::string names = "auto";
  if (name == names) return "";
  for (const std::string& known : KvTypeNames()) {
    if (name == known) return "";
    names += ", " + known;
  }
  if (name.starts_with("q4")) {
    return "'" + name + "': four bits change answers too much (KL 0.15 on SmolLM2-135M, " +
           "docs/performance.md); one of " + names;
  }
  return "'" + name + "' is none of " + names;
}

Result<std::unique_ptr<model::Model>> OpenModel(const std::string& given,
                                                const std::string& kv_type, bool quiet,
                                                uint32_t context) {
  const auto path = FindModelFile(given, std::getenv("KVLINK_MODEL"), ExecutableFolder());
  if (!path.ok()) return path.status();
  std::unique_ptr<Progress> progress;
  if (!quiet) {
    progress = std::make_unique<Progress>(stderr, "loading " + fs::path(*path).filename().string());
  }
  model::LoadOptions options;
  options.path = *path;
  options.context = context;
  for (KvType type : kKvTypes) {
    if (kv_type == KvTypeName(type)) options.kv_type = type;
  }
  options.progress = [&](double fraction) {
    // The last line is Finish's, with what was loaded.
    if (progress) progress->Update(std::min(fraction, 0.99));
  };
  auto model = model::Model::Load(options);
  if (!model.ok()) {
    // What no try will read is a wrong value of the option: a service need not be started again.
    StatusCode code = model.status().code();
    if (code == StatusCode::kDataLoss || code == StatusCode::kUnimplemented) {
      code = StatusCode::kInvalidArgument;
    }
    return Status(code, "--model: " + model.status().message());
  }
  if (progress) {
    const model::ModelInfo& info = (*model)->info();
    progress->Finish(info.architecture + ", " + info.weight_type + ", " +
                     FormatByteSize(info.file_bytes));
  }
  return model;
}

}  // namespace kvlink::cli
