// An Answerer on a model, a cache and an engine in this process: a conversation's blocks stay in
// the cache between its turns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/chat_answerer.h"
#include "cli/tier_setup.h"
#include "engine/engine.h"

namespace kvlink::cli {

struct ChatEngineOptions {
  std::string model, kv_memory, kv_type = "auto";
  uint32_t context = 0;  // 0: the model's
  uint32_t chunk = 128;  // prompt tokens a step: how finely progress shows
  int threads = 0;       // 0: as ChooseThreads
  TierFlags tiers;
  bool quiet = false;
};

// Loads the model, with progress on stderr.
Result<std::unique_ptr<Answerer>> OpenChatEngine(const ChatEngineOptions& options);

// On an engine of somebody else's, which must outlive it.
std::unique_ptr<Answerer> MakeEngineAnswerer(engine::Engine& engine, std::string name);

}  // namespace kvlink::cli
