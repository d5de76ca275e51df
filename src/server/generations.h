// Generations: from a parsed request to a running Generation: what the tenant and the model make of
// the request, its prompts, a place at the tenant's gate; and no new ones when memory is short.
//
// Outlives its generations, and is outlived by the engine. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "server/answer_style.h"
#include "server/api_calls.h"
#include "server/api_request.h"
#include "server/chat_setup.h"
#include "server/generation.h"
#include "server/keys_in_force.h"
#include "server/memory_watch.h"
#include "server/metrics.h"
#include "server/prompt_builder.h"
#include "server/recent_requests.h"
#include "server/request_prompts.h"
#include "server/served_models.h"
#include "server/server.h"
#include "server/tenants.h"

namespace kvlink::server {

class Generations {
 public:
  // What is given by reference outlives this.
  Generations(engine::Engine& engine, const ServerOptions& options, const ServedModels& models,
              const KeysInForce& keys, ApiCalls& calls, std::shared_ptr<Metrics> metrics,
              std::shared_ptr<RecentRequests> recent);

  // Answers the call, sooner or later. `style` null: OpenAI's.
  void Start(ApiCall call, Parsed<ApiRequest> parsed, std::unique_ptr<AnswerStyle> style = nullptr);
  // What the caller's tenant and the model at hand make of the request, and its prompts; an error,
  // if that cannot be.
  std::optional<ApiError> SetUp(const Caller& caller, ApiRequest* request,
                                std::vector<BuiltPrompt>* prompts);

  const RequestPrompts& prompts() const { return prompts_; }
  const ToolTemplate& tools() const { return tools_; }
  // From now on the machine's memory is watched.
  void WatchMemory() { memory_.Start(); }
  MemoryWatch::Figures memory_figures() const { return memory_.figures(); }
  uint64_t memory_refusals() const { return memory_refusals_; }

 private:
  std::optional<ApiError> CheckMemory();
  std::optional<ApiError> CheckBeams(const engine::GenerationRequest& request) const;
  std::unique_ptr<AnswerStyle> CompletionStyle(const ApiCall& call,
                                               const ApiRequest& request) const;

  engine::Engine& engine_;
  const ServerOptions& options_;
  const ServedModels& models_;
  const KeysInForce& keys_;
  ApiCalls& calls_;
  TenantGate gate_;
  const PromptBuilder builder_;
  const RequestPrompts prompts_;
  const ToolTemplate tools_;
  ToolOrders tool_orders_;
  const GenerationContext context_;
  std::atomic<uint64_t> memory_refusals_{0};
  MemoryWatch memory_;  // its thread uses the engine alone
};

}  // namespace kvlink::server
