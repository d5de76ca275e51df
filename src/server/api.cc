#include "server/api.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/answer.h"

namespace kvlink::server {
namespace {

// A request can ask for less than the server permits, not for more.
SimilarPolicy Narrower(SimilarPolicy server, const std::optional<SimilarPolicy>& request) {
  const SimilarPolicy wanted = request.value_or(server);
  if (server == SimilarPolicy::kOff || wanted == SimilarPolicy::kOff) return SimilarPolicy::kOff;
  const bool strict = server == SimilarPolicy::kStrict || wanted == SimilarPolicy::kStrict;
  return strict ? SimilarPolicy::kStrict : SimilarPolicy::kOn;
}

using Json = nlohmann::ordered_json;

constexpr const char* kModelPrefix = "/v1/models/";
constexpr size_t kShownMethod = 32;  // of what a client wrote

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> ModelIds(const ServerOptions& options, const model::ModelInfo& info) {
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

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

size_t LongestPiece(const model::Tokenizer& tokenizer) {
  size_t longest = 1;
  for (uint32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    longest = std::max(longest, tokenizer.Piece(static_cast<TokenId>(token), true).size());
  }
  return longest;
}

// Bytes that every template shows: of what people and tools wrote, without white space around it.
size_t ShownBytes(const std::vector<model::ChatMessage>& messages) {
  constexpr const char* kSpace = " \t\r\n";
  size_t bytes = 0;
  for (const model::ChatMessage& message : messages) {
    if (message.role == "assistant") continue;  // reasoning of earlier turns is left out by some
    const size_t first = message.content.find_first_not_of(kSpace);
    if (first == std::string::npos) continue;
    bytes += message.content.find_last_not_of(kSpace) + 1 - first;
  }
  return bytes;
}

ApiError BeyondContext(uint32_t context, const std::string& tokens, const char* param) {
  return ApiError{400,
                  "this model's maximum context length is " + std::to_string(context) +
                      " tokens, and the prompt has " + tokens +
                      "; at least one is needed for the answer",
                  param, "context_length_exceeded"};
}

engine::Clock ClockOf(const engine::Engine& engine) {
  return engine.options().clock ? engine.options().clock
                                : [] { return std::chrono::steady_clock::now(); };
}

CacheMemory MemoryOf(engine::Engine& engine) {
  return {engine.Stats().cache.budget_bytes,
          [&engine] {
            const CacheStats cache = engine.Stats().cache;
            return cache.free_pages * cache.page_bytes;
          },
          [&engine](uint64_t bytes) { engine.Withhold(bytes); }};
}

}  // namespace

Api::Api(engine::Engine& engine, const ServerOptions& options, ApiKeys keys,
         std::shared_ptr<Log> log)
    : engine_(engine),
      tokenizer_(engine.model().tokenizer()),
      options_(options),
      keys_(std::make_shared<const ApiKeys>(std::move(keys))),
      gate_(size_t{engine.options().max_queue} + engine.options().max_sequences, ClockOf(engine)),
      log_(std::move(log)),
      model_ids_(ModelIds(options, engine.model().info())),
      fingerprint_(Fingerprint(engine.model().fingerprint())),
      created_(Now()),
      metrics_(Metrics::Create(model_ids_.front())),
      recent_(std::make_shared<RecentRequests>(options.recent_requests)),
      builder_(tokenizer_, engine.cache()),
      longest_piece_(LongestPiece(tokenizer_)),
      tool_template_(ToolTemplate::Probe(tokenizer_)),
      responses_(std::make_shared<ResponseStore>()),
      generation_context_{engine,
                          builder_,
                          metrics_,
                          ClockOf(engine),
                          options.limits.max_pending_events,
                          recent_,
                          [this](uint32_t prompts) { return gate_.RetryAfter(prompts); }},
      http_figures_([] { return HttpServer::Figures(); }),
      id_prefix_(options_.seed_source()),
      memory_(options.memory, MemoryOf(engine)) {
  SetQuotas(*keys_);
}

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
      {kModelPrefix, "GET", Right::kInference, &Api::ShowModel},
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

const Api::Route* Api::FindRoute(const HttpRequest& request, ApiError* error) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string taken, allow;
  for (const Route& route : Routes()) {
    const std::string_view path = route.path;
    // A path that ends in a slash stands for everything below; "/" for itself.
    const bool below = path != "/" && path.ends_with('/') && request.path.starts_with(path) &&
                       request.path.size() > path.size();
    if (!below && request.path != path) continue;
    if (method == route.method) return &route;
    taken += (taken.empty() ? "" : " and ") + std::string(route.method);
    allow += (allow.empty() ? "" : ", ") + std::string(route.method);
    if (std::string_view(route.method) == "GET") allow += ", HEAD";
  }
  if (!taken.empty()) {
    *error = {405,
              request.path.substr(0, 200) + " takes " + taken + ", not " +
                  request.method.substr(0, kShownMethod),
              "", "method_not_allowed"};
    error->allow = allow;
    return nullptr;
  }
  *error = {404, "there is no " + request.path.substr(0, 200) + " here", "", "unknown_path"};
  return nullptr;
}

void Api::Handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  Call call{std::move(request),         std::move(responder), NewId(), Caller{}, "",
            generation_context_.clock()};
  Name(&call);
  ApiError error;
  const Route* route = FindRoute(call.request, &error);
  call.route = route != nullptr ? route->path : "other";
  // Before anything is told about paths: who has no key learns nothing.
  std::shared_ptr<const ApiKeys> keys;
  {
    const std::lock_guard lock(keys_mutex_);
    keys = keys_;
  }
  auto caller = Authorize(*keys, call.request, route != nullptr ? route->right : Right::kInference);
  if (const ApiError* refused = std::get_if<ApiError>(&caller)) {
    call.caller.tenant.clear();  // nobody's: the log must not say otherwise
    return Refuse(call, *refused);
  }
  call.caller = std::get<Caller>(std::move(caller));
  if (route == nullptr) return Refuse(call, error);
  (this->*route->handler)(std::move(call));
}

void Api::ReplaceKeys(ApiKeys keys) {
  auto replaced = std::make_shared<const ApiKeys>(std::move(keys));
  SetQuotas(*replaced);
  const std::lock_guard lock(keys_mutex_);
  keys_.swap(replaced);
}

void Api::SetQuotas(const ApiKeys& keys) {
  std::map<std::string, uint64_t> quotas = keys.CacheQuotas();
  const std::lock_guard lock(keys_mutex_);
  for (const auto& [scope, bytes] : quotas_) {
    if (!quotas.contains(scope)) engine_.cache().SetQuota(scope, 0);
  }
  for (const auto& [scope, bytes] : quotas) engine_.cache().SetQuota(scope, bytes);
  quotas_.swap(quotas);
}

uint32_t Api::QuotaTokens(const Caller& caller) const {
  const uint64_t quota = caller.settings.cache_bytes;
  if (quota == 0) return 0;
  const KvShape& shape = engine_.cache().shape();
  const uint64_t tokens = quota / shape.page_bytes() * shape.tokens_per_block;
  return static_cast<uint32_t>(std::clamp<uint64_t>(tokens, 1, UINT32_MAX));
}

// --- small routes ---

void Api::Health(Call call) { Answer(call, Dump({{"status", "ok"}})); }

void Api::MetricsText(Call call) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      metrics_->Text(engine_.Stats(), {http_figures_(), memory_.figures(), memory_refusals_});
  response.headers = HeadersOf(call);
  call.responder->Send(std::move(response));
  metrics_->CountHttp(call.route, 200);  // not logged: it is asked every few seconds
}

void Api::Version(Call call) {
  Answer(call, Dump({{"name", "kvlink"}, {"version", options_.version}}));
}

void Api::ListRequests(Call call) {
  if (recent_->capacity() == 0) {
    return Refuse(call, {404, "recent requests are not kept here", "", "unknown_path"});
  }
  size_t limit = recent_->capacity();
  if (!call.request.query.empty()) {
    const std::string_view query = call.request.query;
    constexpr std::string_view kLimit = "limit=";
    const std::string_view value = query.starts_with(kLimit) ? query.substr(kLimit.size()) : "";
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
    if (value.empty() || error != std::errc() || end != value.data() + value.size()) {
      return Refuse(
          call,
          {400, "limit must be a whole number, not '" + std::string(query.substr(0, 80)) + "'",
           "limit", ""});
    }
  }
  constexpr const char* kPolicies[] = {"off", "on", "strict"};
  Json json = {{"object", "list"},
               {"capacity", recent_->capacity()},
               {"similar", kPolicies[static_cast<size_t>(options_.similar)]},
               {"settings", Json::object()}};
  for (const auto& [name, value] : options_.settings) json["settings"][name] = value;
  recent_->Write(call.caller.tenant, limit, &json);
  Answer(call, Dump(json));
}

void Api::ListModels(Call call) {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& id : model_ids_) {
    list["data"].push_back({{"id", id},
                            {"object", "model"},
                            {"created", created_},
                            {"owned_by", "kvlink"},
                            {"max_model_len", context_tokens()}});
  }
  Answer(call, Dump(list));
}

void Api::ShowModel(Call call) {
  const std::string id = call.request.path.substr(std::string_view(kModelPrefix).size());
  if (!CheckModel(call, id)) return;
  const model::ModelInfo& info = engine_.model().info();
  Answer(call, Dump({{"id", id},
                     {"object", "model"},
                     {"created", created_},
                     {"owned_by", "kvlink"},
                     {"max_model_len", context_tokens()},
                     {"architecture", info.architecture},
                     {"weight_type", info.weight_type},
                     {"parameters", info.num_parameters}}));
}

void Api::Tokenize(Call call) {
  Parsed<TokenizeRequest> parsed = ParseTokenizeRequest(call.request.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  TokenizeRequest& request = std::get<TokenizeRequest>(parsed);
  if (!CheckModel(call, request.model)) return;
  std::vector<TokenId> tokens;
  if (request.text) {
    tokens = tokenizer_.Encode(*request.text, request.add_special, request.parse_special);
  } else {
    const Namespace ns{call.caller.scope, ""};
    ShowTools(tool_template_, &request.tools_json, &request.messages);
    Result<BuiltPrompt> built =
        builder_.FromChat(ns, request.messages, request.tools_json, request.add_generation_prompt);
    if (!built.ok()) {
      ApiError error = FromStatus(built.status());
      error.param = "messages";
      return Refuse(call, error);
    }
    tokens = std::move(built->tokens);
  }
  Json json = {{"count", tokens.size()}, {"max_model_len", context_tokens()}, {"tokens", tokens}};
  if (request.with_pieces) {
    json["token_strs"] = Json::array();
    for (const TokenId token : tokens)
      json["token_strs"].push_back(TokenText(tokenizer_.Piece(token, true)));
  }
  Answer(call, Dump(json));
}

void Api::Detokenize(Call call) {
  Parsed<DetokenizeRequest> parsed =
      ParseDetokenizeRequest(call.request.body, tokenizer_.vocab_size());
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  const DetokenizeRequest& request = std::get<DetokenizeRequest>(parsed);
  if (!CheckModel(call, request.model)) return;
  const std::string text = tokenizer_.Decode(request.tokens, true);
  // vLLM's name and llama.cpp's.
  Answer(call, Dump({{"prompt", text}, {"content", text}}));
}

// --- generation ---

void Api::Chat(Call call) {
  auto parsed = ParseChatRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  Generate(std::move(call), std::move(parsed));
}

void Api::Complete(Call call) {
  auto parsed = ParseCompletionRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  Generate(std::move(call), std::move(parsed));
}

Parsed<std::vector<BuiltPrompt>> Api::BuildPrompts(const ApiRequest& request) const {
  const Namespace& ns = request.generation.ns;
  const uint32_t context = context_tokens();
  // Megabytes of text take seconds, and a hundred times their memory, to become tokens: what must
  // be too many is seen before.
  const auto least_tokens = [&](size_t bytes) { return bytes / longest_piece_; };
  const auto beyond = [&](size_t bytes, const char* param) {
    return BeyondContext(context, "at least " + std::to_string(least_tokens(bytes)), param);
  };
  std::vector<BuiltPrompt> prompts;
  if (request.chat) {
    if (const size_t bytes = ShownBytes(request.messages); least_tokens(bytes) > context) {
      return beyond(bytes, "messages");
    }
    Result<BuiltPrompt> built =
        builder_.FromChat(ns, request.messages, request.tools_json, request.add_generation_prompt);
    if (!built.ok()) {
      ApiError error = FromStatus(built.status());
      error.param = "messages";
      return error;
    }
    prompts.push_back(*std::move(built));
  }
  for (const PromptInput& input : request.prompts) {
    const auto* const given = std::get_if<std::string>(&input);
    const size_t bytes = given != nullptr ? given->size() : 0;
    if (least_tokens(bytes) > context) return beyond(bytes, "prompt");
    if (request.suffix) {
      if (least_tokens(request.suffix->size()) > context) {
        return beyond(request.suffix->size(), "suffix");
      }
      Parsed<BuiltPrompt> fill = BuildFill(input, *request.suffix);
      if (const ApiError* error = std::get_if<ApiError>(&fill)) return *error;
      prompts.push_back(std::get<BuiltPrompt>(std::move(fill)));
      continue;
    }
    if (const auto* text = std::get_if<std::string>(&input)) {
      prompts.push_back(builder_.FromText(ns, *text, request.add_special_tokens));
      continue;
    }
    prompts.push_back(PromptBuilder::FromTokens(std::get<std::vector<TokenId>>(input)));
    if (request.echo) prompts.back().text = tokenizer_.Decode(prompts.back().tokens, true);
  }
  for (const BuiltPrompt& prompt : prompts) {
    const char* param = request.chat ? "messages" : "prompt";
    if (prompt.tokens.empty())
      return ApiError{400, std::string(param) + ": the prompt has no tokens", param, ""};
    if (prompt.tokens.size() + 1 > context) {
      return BeyondContext(context, std::to_string(prompt.tokens.size()), param);
    }
  }
  return prompts;
}

Parsed<BuiltPrompt> Api::BuildFill(const PromptInput& prefix, const std::string& suffix) const {
  const model::FillTokens fill = tokenizer_.fill_tokens();
  if (fill.prefix < 0 || fill.suffix < 0 || fill.middle < 0) {
    return ApiError{
        400,
        "suffix: this model has no tokens for filling in the middle, so that nothing can "
        "be generated in front of a suffix",
        "suffix", "unsupported"};
  }
  std::vector<TokenId> tokens;
  const auto append = [&](const std::vector<TokenId>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  if (tokenizer_.AddsBos() && tokenizer_.bos() >= 0) tokens.push_back(tokenizer_.bos());
  tokens.push_back(fill.prefix);
  if (const auto* text = std::get_if<std::string>(&prefix)) {
    append(tokenizer_.Encode(*text, false, false));
  } else {
    append(std::get<std::vector<TokenId>>(prefix));
  }
  tokens.push_back(fill.suffix);
  append(tokenizer_.Encode(suffix, false, false));
  tokens.push_back(fill.middle);
  return PromptBuilder::FromTokens(std::move(tokens));
}

std::optional<ApiError> Api::SetUp(const Call& call, ApiRequest* request,
                                   std::vector<BuiltPrompt>* prompts) {
  const TenantSettings& tenant = call.caller.settings;
  request->generation.ns.tenant = call.caller.scope;
  request->generation.own_scopes = call.caller.own_scopes;
  request->generation.weight = tenant.weight;
  request->generation.max_kv_tokens = QuotaTokens(call.caller);
  request->generation.similar =
      tenant.sensitive ? SimilarPolicy::kOff : Narrower(options_.similar, request->similar);
  if (tenant.sharing == TenantSharing::kNone) {
    request->generation.reuse = request->generation.store = false;
  }
  if (!request->has_seed) request->generation.sampling.seed = options_.seed_source();
  bool message_in_front = false;
  if (request->chat) {
    if (auto error = SetUpChat(tool_template_, options_.sort_tool_keys, &tool_orders_, request,
                               &message_in_front)) {
      return error;
    }
  }
  Parsed<std::vector<BuiltPrompt>> built = BuildPrompts(*request);
  if (const ApiError* error = std::get_if<ApiError>(&built)) return *error;
  *prompts = std::get<std::vector<BuiltPrompt>>(std::move(built));
  if (!request->chat) return std::nullopt;
  BuiltPrompt& prompt = prompts->front();
  // Messages are counted as the client has them.
  if (message_in_front && !prompt.message_end.empty())
    prompt.message_end.erase(prompt.message_end.begin());
  const std::string_view text = prompt.text;
  request->syntax.reasoning_open =
      request->syntax.reasoning &&
      text.substr(0, text.find_last_not_of(" \n") + 1).ends_with("<think>");
  return std::nullopt;
}

std::unique_ptr<AnswerStyle> Api::CompletionStyle(const Call& call,
                                                  const ApiRequest& request) const {
  AnswerFormat::Head head;
  head.id = (request.chat ? "chatcmpl-" : "cmpl-") + call.id;
  head.model = model_ids_.front();
  head.fingerprint = fingerprint_;
  head.created = Now();
  head.chat = request.chat;
  head.echo = request.echo;
  head.include_usage = request.include_usage;
  head.logprobs = request.generation.logprobs;
  head.prompt_logprobs = request.generation.prompt_logprobs;
  return std::make_unique<AnswerFormat>(std::move(head), tokenizer_);
}

void Api::Generate(Call call, Parsed<ApiRequest> parsed, std::unique_ptr<AnswerStyle> style) {
  if (memory_.refuses()) {
    memory_refusals_ += 1;
    return Refuse(
        call,
        {503,
         "the server is short of memory: " + std::to_string(memory_.figures().available_bytes) +
             " bytes are available, and " + std::to_string(memory_.figures().reserve_bytes) +
             " are to be left; new requests are refused until there is more",
         "", "memory_pressure", gate_.RetryAfter(1)});
  }
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  ApiRequest request = std::get<ApiRequest>(std::move(parsed));
  if (!CheckModel(call, request.model)) return;
  const uint32_t width = std::max(request.generation.n, request.generation.best_of);
  if (request.generation.beam_search && width > engine_.options().max_sequences) {
    return Refuse(
        call, {400,
               "n or best_of is " + std::to_string(width) + " beams, which all advance together; " +
                   "at most " + std::to_string(engine_.options().max_sequences) +
                   " sequences run at once here",
               request.generation.best_of > 0 ? "best_of" : "n", ""});
  }
  std::vector<BuiltPrompt> prompts;
  if (auto error = SetUp(call, &request, &prompts)) return Refuse(call, *error);
  auto place = gate_.Enter(call.caller.tenant, call.caller.settings,
                           static_cast<uint32_t>(prompts.size()), call.caller.several_tenants);
  if (const ApiError* error = std::get_if<ApiError>(&place)) return Refuse(call, *error);
  if (style == nullptr) style = CompletionStyle(call, request);
  std::string tenant = call.caller.tenant;
  call.request.body.clear();  // parsed; it may be large, and the answer long in coming
  call.request.body.shrink_to_fit();
  auto responder = call.responder;
  auto headers = HeadersOf(call);
  const auto num_prompts = static_cast<uint32_t>(prompts.size());
  auto on_end = [this, num_prompts, call = std::move(call)](const Generation::Summary& summary) {
    if (summary.status != 429) gate_.Served(call.caller.tenant, num_prompts);
    Finish(call, summary.status,
           {{"prompt_tokens", static_cast<int64_t>(summary.prompt_tokens)},
            {"cached_tokens", static_cast<int64_t>(summary.cached_tokens)},
            {"generated_tokens", static_cast<int64_t>(summary.generated_tokens)}},
           summary.error);
  };
  auto generation = std::make_shared<Generation>(
      generation_context_, std::move(request), std::move(prompts), std::move(style),
      std::move(headers), std::move(responder), std::move(on_end));
  generation->Keep(std::get<TenantGate::Place>(std::move(place)), std::move(tenant));
  generation->Start();
}

uint32_t Api::context_tokens() const {
  const uint32_t limit = engine_.options().context;
  return limit > 0 ? limit : engine_.model().info().context_train;
}

}  // namespace kvlink::server
