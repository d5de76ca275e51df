#include "server/api.h"

#include <chrono>
#include <string_view>
#include <utility>

namespace kvlink::server {
namespace {

// Of what a client wrote.
constexpr size_t kShownMethod = 32, kShownPath = 200;

engine::Clock ClockOf(const engine::Engine& engine) {
  return engine.options().clock ? engine.options().clock
                                : [] { return std::chrono::steady_clock::now(); };
}

}  // namespace

Api::Api(engine::Engine& engine, const ServerOptions& options, ApiKeys keys,
         std::shared_ptr<Log> log)
    : engine_(engine),
      tokenizer_(engine.model().tokenizer()),
      options_(options),
      models_(engine, options),
      keys_(engine.cache(), std::move(keys)),
      metrics_(Metrics::Create(models_.id())),
      recent_(std::make_shared<RecentRequests>(options.recent_requests)),
      calls_(metrics_, std::move(log), ClockOf(engine), options.seed_source),
      responses_(std::make_shared<ResponseStore>()),
      http_figures_([] { return HttpServer::Figures(); }),
      generations_(engine_, options_, models_, keys_, calls_, metrics_, recent_) {}

const std::vector<Api::Route>& Api::Routes() {
  static const std::vector<Route> routes = {
      {"/v1/chat/completions", "POST", Right::kInference, &Api::Chat},
      {"/v1/completions", "POST", Right::kInference, &Api::Complete},
      {"/v1/responses", "POST", Right::kInference, &Api::Responses},
      {"/v1/responses/", "GET", Right::kInference, &Api::ShowResponse},
      {"/v1/responses/", "DELETE", Right::kInference, &Api::DeleteResponse},
      {"/v1/messages", "POST", Right::kInference, &Api::Messages},
      {"/v1/messages/count_tokens", "POST", Right::kInference, &Api::CountMessageTokens},
      {"/v1/embeddings", "POST", Right::kInference, &Api::RefuseEmbeddings},
      {"/v1/models", "GET", Right::kInference, &Api::ListModels},
      {"/v1/models/", "GET", Right::kInference, &Api::ShowModel},
      {"/props", "GET", Right::kInference, &Api::Props},
      {"/tokenize", "POST", Right::kInference, &Api::Tokenize},
      {"/detokenize", "POST", Right::kInference, &Api::Detokenize},
      {"/kvlink/requests", "GET", Right::kInference, &Api::ListRequests},
      {"/kvlink/pin", "POST", Right::kAdmin, &Api::Pin},
      {"/kvlink/unpin", "POST", Right::kAdmin, &Api::Unpin},
      {"/kvlink/warm", "POST", Right::kAdmin, &Api::Warm},
      {"/kvlink/flush", "POST", Right::kAdmin, &Api::Flush},
      {"/kvlink/blocks", "GET", Right::kInference, &Api::ListBlocks},
      {"/kvlink/blocks/", "GET", Right::kInference, &Api::ShowBlock},
      {"/", "GET", Right::kNone, &Api::Dashboard},
      {"/health", "GET", Right::kNone, &Api::Health},
      {"/metrics", "GET", Right::kMetrics, &Api::MetricsText},
      {"/version", "GET", Right::kNone, &Api::Version},
      {"/openapi.json", "GET", Right::kNone, &Api::OpenApi},
  };
  return routes;
}

bool Api::Matches(const Route& route, std::string_view path) {
  const std::string_view own = route.path;
  // A path that ends in a slash stands for everything below; "/" for itself.
  const bool below = own != "/" && own.ends_with('/') && path.starts_with(own);
  return path == own || (below && path.size() > own.size());
}

// Clients are given a base URL and append the rest: the commonest mistake is one without /v1.
ApiError Api::UnknownPath(const std::string& path) {
  std::string message = "there is no " + path.substr(0, kShownPath) + " here";
  const std::string versioned = "/v1" + path;
  for (const Route& route : Routes()) {
    if (!Matches(route, versioned)) continue;
    message += "; the path is " + versioned.substr(0, kShownPath) +
               ": does the client's base URL lack the /v1 at its end?";
    break;
  }
  return {404, std::move(message), "", "unknown_path"};
}

const Api::Route* Api::FindRoute(const HttpRequest& request, ApiError* error) {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string taken, allow;
  for (const Route& route : Routes()) {
    if (!Matches(route, request.path)) continue;
    if (method == route.method) return &route;
    taken += (taken.empty() ? "" : " and ") + std::string(route.method);
    allow += (allow.empty() ? "" : ", ") + std::string(route.method);
    if (std::string_view(route.method) == "GET") allow += ", HEAD";
  }
  if (!taken.empty()) {
    *error = {405,
              request.path.substr(0, kShownPath) + " takes " + taken + ", not " +
                  request.method.substr(0, kShownMethod),
              "", "method_not_allowed"};
    error->allow = allow;
    return nullptr;
  }
  *error = UnknownPath(request.path);
  return nullptr;
}

void Api::Handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  Call call = calls_.Begin(std::move(request), std::move(responder));
  ApiError error;
  const Route* route = FindRoute(call.request, &error);
  call.route = route != nullptr ? route->path : "other";
  // Before anything is told about paths: who has no key learns nothing.
  auto caller =
      Authorize(*keys_.Get(), call.request, route != nullptr ? route->right : Right::kInference);
  if (const ApiError* refused = std::get_if<ApiError>(&caller)) {
    call.caller.tenant.clear();  // nobody's: the log must not say otherwise
    return Refuse(call, *refused);
  }
  call.caller = std::get<Caller>(std::move(caller));
  if (route == nullptr) return Refuse(call, error);
  (this->*route->handler)(std::move(call));
}

HttpResponse Api::AnswerFailure(HttpFailure failure) {
  Call call = calls_.Begin(std::move(failure.request), nullptr, failure.taken);
  call.caller.tenant.clear();  // nobody has looked at its key
  ApiError unknown;
  const Route* route = FindRoute(call.request, &unknown);
  call.route = route != nullptr ? route->path : "other";
  const ApiError error{failure.status, std::move(failure.message), "", std::move(failure.code),
                       failure.retry_after_s};
  HttpResponse response = calls_.ErrorAnswer(call, error);
  calls_.Finish(call, error.status, {}, error.code);
  return response;
}

bool Api::CheckModel(const Call& call, const std::string& model) {
  const auto error = models_.CheckServed(model);
  if (error) Refuse(call, *error);
  return !error;
}

void Api::Chat(Call call) {
  auto parsed = ParseChatRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  generations_.Start(std::move(call), std::move(parsed));
}

void Api::Complete(Call call) {
  auto parsed = ParseCompletionRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  generations_.Start(std::move(call), std::move(parsed));
}

}  // namespace kvlink::server
