#include "server/served_models.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "server/api_keys.h"

namespace kvlink::server {
namespace {

std::vector<std::string> IdsOf(const model::ModelInfo& info, const ServerOptions& options) {
  if (!options.model_ids.empty()) return options.model_ids;
  std::string name = std::filesystem::path(info.path).stem().string();
  if (name.empty()) name = info.name.empty() ? "default" : info.name;
  return {name};
}

std::string Fingerprint(const std::string& model) {
  const auto hash = Sha256(model);
  char text[16];
  std::snprintf(text, sizeof(text), "fp_%02x%02x%02x%02x%02x", hash[0], hash[1], hash[2], hash[3],
                hash[4]);
  return text;
}

}  // namespace

ServedModels::ServedModels(const engine::Engine& engine, const ServerOptions& options)
    : ids(IdsOf(engine.model().info(), options)),
      fingerprint(Fingerprint(engine.model().fingerprint())),
      created(CreatedNow()),
      context_tokens(engine.options().context > 0 ? engine.options().context
                                                  : engine.model().info().context_train) {}

std::optional<ApiError> ServedModels::CheckServed(const std::string& model) const {
  if (model.empty() || std::find(ids.begin(), ids.end(), model) != ids.end()) return std::nullopt;
  return ApiError{
      404, "the model \"" + model.substr(0, 200) + "\" is not served here; \"" + id() + "\" is",
      "model", "model_not_found"};
}

int64_t CreatedNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace kvlink::server
