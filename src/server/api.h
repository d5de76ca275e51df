// Api: the routes. Authenticates, finds the route, parses, and has the call answered: by itself, or
// by a Generation.
//
// Threads: Handle runs on the strand of the request's connection, so that of several at once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/api_calls.h"
#include "server/api_keys.h"
#include "server/blocks.h"
#include "server/generations.h"
#include "server/http.h"
#include "server/http_server.h"
#include "server/keys_in_force.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/recent_requests.h"
#include "server/response_store.h"
#include "server/served_models.h"
#include "server/server.h"

namespace kvlink::server {

class Api {
 public:
  Api(engine::Engine& engine, const ServerOptions& options, ApiKeys keys, std::shared_ptr<Log> log);

  // Of HttpServer; read for /metrics.
  void set_http_figures(std::function<HttpServer::Figures()> figures) {
    http_figures_ = std::move(figures);
  }
  // From now on the machine's memory is watched.
  void WatchMemory() { generations_.WatchMemory(); }
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder);
  // The answer to what HttpServer refuses by itself: named, counted and logged as any other. Any
  // thread.
  HttpResponse AnswerFailure(HttpFailure failure);
  // Requests from now on are judged by these; any thread.
  void ReplaceKeys(ApiKeys keys) { keys_.Replace(std::move(keys)); }
  const std::string& model_id() const { return models_.id(); }

 private:
  using Call = ApiCall;
  using Handler = void (Api::*)(Call);
  struct Route {
    const char *path, *method;
    Right right;  // that the caller's key must have
    Handler handler;
  };
  static const std::vector<Route>& Routes();
  static bool Matches(const Route& route, std::string_view path);
  static ApiError UnknownPath(const std::string& path);
  static const Route* FindRoute(const HttpRequest& request, ApiError* error);

  // Refuses the call, unless that model is served.
  bool CheckModel(const Call& call, const std::string& model);
  void Answer(const Call& call, std::string json) { calls_.Answer(call, std::move(json)); }
  void Refuse(const Call& call, const ApiError& error) { calls_.Refuse(call, error); }

  void Chat(Call call);
  void Complete(Call call);
  // In status_routes.cc.
  void Health(Call call);
  void MetricsText(Call call);
  void Version(Call call);
  void ListRequests(Call call);
  void OpenApi(Call call);
  void Dashboard(Call call);
  // In model_routes.cc.
  void ListModels(Call call);
  void ShowModel(Call call);
  void Props(Call call);
  void Tokenize(Call call);
  void Detokenize(Call call);
  void RefuseEmbeddings(Call call);
  // In protocol_routes.cc.
  void Messages(Call call);
  void CountMessageTokens(Call call);
  void Responses(Call call);
  void ShowResponse(Call call);
  void DeleteResponse(Call call);
  // In admin_routes.cc.
  void Pin(Call call);
  void Unpin(Call call);
  void Warm(Call call);
  void Flush(Call call);
  // In block_routes.cc.
  void ListBlocks(Call call);
  void ShowBlock(Call call);

  engine::Engine& engine_;
  const model::Tokenizer& tokenizer_;
  const ServerOptions options_;
  const ServedModels models_;
  KeysInForce keys_;
  const std::shared_ptr<Metrics> metrics_;
  const std::shared_ptr<RecentRequests> recent_;
  ApiCalls calls_;
  const std::shared_ptr<ResponseStore> responses_;
  BlockPages block_pages_;
  std::function<HttpServer::Figures()> http_figures_;
  Generations generations_;
};

}  // namespace kvlink::server
