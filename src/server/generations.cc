#include "server/generations.h"

#include <algorithm>
#include <string>
#include <string_view>
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

CacheMemory MemoryOf(engine::Engine& engine) {
  return {engine.Stats().cache.budget_bytes,
          [&engine] {
            const CacheStats cache = engine.Stats().cache;
            return cache.free_pages * cache.page_bytes;
          },
          [&engine](uint64_t bytes) { engine.Withhold(bytes); }};
}

}  // namespace

Generations::Generations(engine::Engine& engine, const ServerOptions& options,
                         const ServedModels& models, const KeysInForce& keys, ApiCalls& calls,
                         std::shared_ptr<Metrics> metrics, std::shared_ptr<RecentRequests> recent)
    : engine_(engine),
      options_(options),
      models_(models),
      keys_(keys),
      calls_(calls),
      gate_(size_t{engine.options().max_queue} + engine.options().max_sequences, calls.clock()),
      builder_(engine.model().tokenizer(), engine.cache()),
      prompts_(engine.model().tokenizer(), builder_, models.context_tokens),
      tools_(ToolTemplate::Probe(engine.model().tokenizer())),
      context_{engine,
               builder_,
               std::move(metrics),
               calls.clock(),
               options.limits.max_pending_events,
               std::move(recent),
               [this](uint32_t prompts) { return gate_.RetryAfter(prompts); }},
      memory_(options.memory, MemoryOf(engine)) {}

void Generations::Start(ApiCall call, Parsed<ApiRequest> parsed,
                        std::unique_ptr<AnswerStyle> style) {
  if (auto error = CheckMemory()) return calls_.Refuse(call, *error);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return calls_.Refuse(call, *error);
  ApiRequest request = std::get<ApiRequest>(std::move(parsed));
  if (auto error = models_.CheckServed(request.model)) return calls_.Refuse(call, *error);
  if (auto error = CheckBeams(request.generation)) return calls_.Refuse(call, *error);
  std::vector<BuiltPrompt> prompts;
  if (auto error = SetUp(call.caller, &request, &prompts)) return calls_.Refuse(call, *error);
  const auto num_prompts = static_cast<uint32_t>(prompts.size());
  auto place = gate_.Enter(call.caller.tenant, call.caller.settings, num_prompts,
                           call.caller.several_tenants);
  if (const ApiError* error = std::get_if<ApiError>(&place)) return calls_.Refuse(call, *error);
  if (style == nullptr) style = CompletionStyle(call, request);
  std::string tenant = call.caller.tenant;
  call.request.body.clear();  // parsed; it may be large, and the answer long in coming
  call.request.body.shrink_to_fit();
  auto responder = call.responder;
  auto headers = calls_.HeadersOf(call);
  auto on_end = [this, num_prompts, call = std::move(call)](const Generation::Summary& summary) {
    if (summary.status != 429) gate_.Served(call.caller.tenant, num_prompts);
    calls_.Finish(call, summary.status,
                  {{"prompt_tokens", static_cast<int64_t>(summary.prompt_tokens)},
                   {"cached_tokens", static_cast<int64_t>(summary.cached_tokens)},
                   {"generated_tokens", static_cast<int64_t>(summary.generated_tokens)}},
                  summary.error);
  };
  auto generation = std::make_shared<Generation>(context_, std::move(request), std::move(prompts),
                                                 std::move(style), std::move(headers),
                                                 std::move(responder), std::move(on_end));
  generation->Keep(std::get<TenantGate::Place>(std::move(place)), std::move(tenant));
  generation->Start();
}

std::optional<ApiError> Generations::SetUp(const Caller& caller, ApiRequest* request,
                                           std::vector<BuiltPrompt>* prompts) {
  const TenantSettings& tenant = caller.settings;
  request->generation.ns.tenant = caller.scope;
  request->generation.own_scopes = caller.own_scopes;
  request->generation.weight = tenant.weight;
  request->generation.max_kv_tokens = keys_.QuotaTokens(tenant);
  request->generation.similar =
      tenant.sensitive ? SimilarPolicy::kOff : Narrower(options_.similar, request->similar);
  if (tenant.sharing == TenantSharing::kNone) {
    request->generation.reuse = request->generation.store = false;
  }
  if (!request->has_seed) request->generation.sampling.seed = options_.seed_source();
  bool message_in_front = false;
  if (request->chat) {
    if (auto error =
            SetUpChat(tools_, options_.sort_tool_keys, &tool_orders_, request, &message_in_front)) {
      return error;
    }
  }
  Parsed<std::vector<BuiltPrompt>> built = prompts_.Build(*request);
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

std::optional<ApiError> Generations::CheckMemory() {
  if (!memory_.refuses()) return std::nullopt;
  memory_refusals_ += 1;
  const MemoryWatch::Figures figures = memory_.figures();
  return ApiError{503,
                  "the server is short of memory: " + std::to_string(figures.available_bytes) +
                      " bytes are available, and " + std::to_string(figures.reserve_bytes) +
                      " are to be left; new requests are refused until there is more",
                  "", "memory_pressure", gate_.RetryAfter(1)};
}

std::optional<ApiError> Generations::CheckBeams(const engine::GenerationRequest& request) const {
  const uint32_t width = std::max(request.n, request.best_of);
  const uint32_t most = engine_.options().max_sequences;
  if (!request.beam_search || width <= most) return std::nullopt;
  return ApiError{400,
                  "n or best_of is " + std::to_string(width) +
                      " beams, which all advance together; at most " + std::to_string(most) +
                      " sequences run at once here",
                  request.best_of > 0 ? "best_of" : "n", ""};
}

std::unique_ptr<AnswerStyle> Generations::CompletionStyle(const ApiCall& call,
                                                          const ApiRequest& request) const {
  AnswerFormat::Head head;
  head.id = (request.chat ? "chatcmpl-" : "cmpl-") + call.id;
  head.model = models_.id();
  head.fingerprint = models_.fingerprint;
  head.created = CreatedNow();
  head.chat = request.chat;
  head.echo = request.echo;
  head.include_usage = request.include_usage;
  head.logprobs = request.generation.logprobs;
  head.prompt_logprobs = request.generation.prompt_logprobs;
  return std::make_unique<AnswerFormat>(std::move(head), engine_.model().tokenizer());
}

}  // namespace kvlink::server
