// ServedModels: the one model that is served, under the names that clients know it by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/server.h"

namespace kvlink::server {

struct ServedModels {
  ServedModels(const engine::Engine& engine, const ServerOptions& options);

  std::vector<std::string> ids;  // the first is the name in answers, the rest are aliases
  std::string fingerprint;       // of the weights, as OpenAI's clients read it: "fp_..."
  int64_t created;               // seconds since 1970
  uint32_t context_tokens;       // most of prompt and answer

  const std::string& id() const { return ids.front(); }
  // 404, unless it is served; "": whichever is.
  std::optional<ApiError> CheckServed(const std::string& model) const;
};

// Seconds since 1970, as `created` tells them.
int64_t CreatedNow();

}  // namespace kvlink::server
