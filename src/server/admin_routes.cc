// The routes of Api that administer the cache, and the dashboard.
#include <optional>
#include <utility>

#include "server/admin.h"
#include "server/api.h"
#include "server/dashboard.h"

namespace kvlink::server {
namespace {

// Where nothing of a prompt stays there is nothing to warm or pin.
std::optional<ApiError> CheckShares(const Caller& caller) {
  if (caller.settings.sharing != TenantSharing::kNone) return std::nullopt;
  return ApiError{400,
                  "the tenant \"" + caller.tenant +
                      "\" shares nothing (\"sharing\": \"none\"): its prompts do not stay in "
                      "the cache",
                  "", "tenant_shares_nothing"};
}

}  // namespace

void Api::Pin(Call call) {
  if (auto error = CheckShares(call.caller)) return Refuse(call, *error);
  auto parsed = ParsePinRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  PinRequest& pin = std::get<PinRequest>(parsed);
  if (!CheckModel(call, pin.prompt.model)) return;
  std::vector<BuiltPrompt> prompts;
  if (auto error = SetUp(call, &pin.prompt, &prompts)) return Refuse(call, *error);
  LookupRequest request;
  request.tokens = prompts.front().tokens;
  request.ns = pin.prompt.generation.ns;
  Cache& cache = engine_.cache();
  const Result<uint32_t> pinned = cache.Pin(request, pin.ttl);
  if (!pinned.ok()) return Refuse(call, PinError(pinned.status()));
  if (*pinned == 0) {
    return Refuse(call, {404,
                         "none of the prompt's " + std::to_string(request.tokens.size()) +
                             " tokens is in memory: send it to /kvlink/warm first",
                         pin.prompt.chat ? "messages" : "prompt", "not_cached"});
  }
  Answer(call, PinAnswer(static_cast<uint32_t>(request.tokens.size()), *pinned, pin.ttl,
                         cache.Stats().pinned_bytes));
}

void Api::Warm(Call call) {
  if (auto error = CheckShares(call.caller)) return Refuse(call, *error);
  auto parsed = ParseWarmRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  Generate(std::move(call), std::move(parsed), MakeWarmStyle());
}

// Any thread may clear: the cache locks, and what a sequence uses stays.
void Api::Flush(Call call) {
  if (auto error = CheckFlushRequest(call.request.body)) return Refuse(call, *error);
  Cache& cache = engine_.cache();
  const CacheStats before = cache.Stats();
  cache.Clear();
  Answer(call, FlushAnswer(before, cache.Stats()));
}

void Api::Dashboard(Call call) {
  HttpResponse response = DashboardPage();
  for (auto& header : HeadersOf(call)) response.headers.push_back(std::move(header));
  call.responder->Send(std::move(response));
  Finish(call, 200);
}

}  // namespace kvlink::server
