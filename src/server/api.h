// Api: the routes. Authenticates, finds the route, parses, builds prompts and hands over to a
// Generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/access.h"
#include "server/answer_style.h"
#include "server/api_keys.h"
#include "server/api_request.h"
#include "server/blocks.h"
#include "server/chat_setup.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/http_server.h"
#include "server/log.h"
#include "server/memory_watch.h"
#include "server/metrics.h"
#include "server/prompt_builder.h"
#include "server/recent_requests.h"
#include "server/request_trace.h"
#include "server/response_store.h"
#include "server/server.h"
#include "server/tenants.h"

namespace kvlink::server {

class Api {
 public:
  Api(engine::Engine& engine, const ServerOptions& options, ApiKeys keys, std::shared_ptr<Log> log);

  // Of HttpServer; read for /metrics.
  void set_http_figures(std::function<HttpServer::Figures()> figures) {
    http_figures_ = std::move(figures);
  }
  // From now on the machine's memory is watched.
  void WatchMemory() { memory_.Start(); }
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder);
  // The answer to what HttpServer refuses by itself: named, counted and logged as any other. Any
  // thread.
  HttpResponse AnswerFailure(HttpFailure failure);
  // Requests from now on are judged by these; any thread.
  void ReplaceKeys(ApiKeys keys);
  Metrics& metrics() { return *metrics_; }
  const std::string& model_id() const { return model_ids_.front(); }

 private:
  struct Call {
    HttpRequest request;
    std::shared_ptr<Responder> responder;
    std::string id;  // ours, unique: of what the request makes
    Caller caller;
    const char* route = "";
    std::chrono::steady_clock::time_point start;
    std::string request_id;  // in headers and the log: the client's if it gave one, else `id`
    std::optional<TraceContext> trace;  // where the client sent one
  };
  using Handler = void (Api::*)(Call);
  struct Route {
    const char *path, *method;
    Right right;  // that the caller's key must have
    Handler handler;
  };
  static const std::vector<Route>& Routes();
  const Route* FindRoute(const HttpRequest& request, ApiError* error) const;

  void Health(Call call);
  void MetricsText(Call call);
  void Version(Call call);
  void ListRequests(Call call);
  void ListModels(Call call);
  void ShowModel(Call call);
  void Tokenize(Call call);
  void Detokenize(Call call);
  void Chat(Call call);
  void Complete(Call call);
  // In api_protocols.cc.
  void Messages(Call call);
  void CountMessageTokens(Call call);
  void Responses(Call call);
  void ShowResponse(Call call);
  void DeleteResponse(Call call);
  void RefuseEmbeddings(Call call);
  void Props(Call call);
  void OpenApi(Call call);
  // In admin_routes.cc.
  void Pin(Call call);
  void Warm(Call call);
  void Flush(Call call);
  void Dashboard(Call call);
  // In block_routes.cc.
  void Unpin(Call call);
  void ListBlocks(Call call);
  void ShowBlock(Call call);

  // `style` null: OpenAI's.
  void Generate(Call call, Parsed<ApiRequest> parsed, std::unique_ptr<AnswerStyle> style = nullptr);
  // What the model at hand makes of the request; an error, if that cannot be.
  std::optional<ApiError> SetUp(const Call& call, ApiRequest* request,
                                std::vector<BuiltPrompt>* prompts);
  std::unique_ptr<AnswerStyle> CompletionStyle(const Call& call, const ApiRequest& request) const;
  // Prompts as token ids, the length limit checked; or what is wrong.
  Parsed<std::vector<BuiltPrompt>> BuildPrompts(const ApiRequest& request) const;
  Parsed<BuiltPrompt> BuildFill(const PromptInput& prefix, const std::string& suffix) const;
  // In api_answers.cc.
  bool CheckModel(const Call& call, const std::string& model);
  void Name(Call* call);  // its id in headers and the log, and its trace
  void Answer(const Call& call, std::string json);
  void Refuse(const Call& call, const ApiError& error);
  HttpResponse ErrorAnswer(const Call& call, const ApiError& error) const;
  // Headers that every answer to this call has.
  std::vector<std::pair<std::string, std::string>> HeadersOf(const Call& call) const;
  // Counts and logs it. `error`: the code of one.
  void Finish(const Call& call, int status, LogFields details = {}, const std::string& error = "");
  std::string NewId();
  uint32_t context_tokens() const;
  // The cache learns which scopes have quotas, and which have none any more.
  void SetQuotas(const ApiKeys& keys);
  // As many tokens of KV as the caller's quota holds; 0: it has none.
  uint32_t QuotaTokens(const Caller& caller) const;

  engine::Engine& engine_;
  const model::Tokenizer& tokenizer_;
  ServerOptions options_;
  mutable std::mutex keys_mutex_;
  std::shared_ptr<const ApiKeys> keys_;     // guarded by keys_mutex_
  std::map<std::string, uint64_t> quotas_;  // that the cache was told; guarded by keys_mutex_
  TenantGate gate_;
  std::shared_ptr<Log> log_;
  std::vector<std::string> model_ids_;
  std::string fingerprint_;
  int64_t created_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<RecentRequests> recent_;
  PromptBuilder builder_;
  const size_t longest_piece_;  // bytes that a token spells at most
  ToolTemplate tool_template_;
  ToolOrders tool_orders_;
  std::shared_ptr<ResponseStore> responses_;
  BlockPages block_pages_;
  GenerationContext generation_context_;
  std::function<HttpServer::Figures()> http_figures_;
  std::atomic<uint64_t> memory_refusals_{0};
  const uint64_t id_prefix_;
  std::atomic<uint64_t> next_id_{0};
  MemoryWatch memory_;  // its thread uses the engine alone
};

}  // namespace kvlink::server
