// The routes of Api that administer the cache.
#include <optional>
#include <utility>

#include "server/admin.h"
#include "server/api.h"

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
  if (auto error = generations_.SetUp(call.caller, &pin.prompt, &prompts))
    return Refuse(call, *error);
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

void Api::Unpin(Call call) {
  auto parsed = ParseUnpinRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  ApiRequest& prompt = std::get<ApiRequest>(parsed);
  if (!CheckModel(call, prompt.model)) return;
  std::vector<BuiltPrompt> prompts;
  if (auto error = generations_.SetUp(call.caller, &prompt, &prompts)) return Refuse(call, *error);
  LookupRequest request;
  request.tokens = prompts.front().tokens;
  request.ns = prompt.generation.ns;
  Cache& cache = engine_.cache();
  const Result<uint32_t> unpinned = cache.Unpin(request);
  if (!unpinned.ok()) {
    ApiError error = FromStatus(unpinned.status());
    if (unpinned.status().code() == StatusCode::kNotFound) {
      error = {404, unpinned.status().message(), prompt.chat ? "messages" : "prompt", "not_cached"};
    }
    return Refuse(call, error);
  }
  Answer(call, UnpinAnswer(static_cast<uint32_t>(request.tokens.size()), *unpinned,
                           cache.Stats().pinned_bytes));
}

void Api::Warm(Call call) {
  if (auto error = CheckShares(call.caller)) return Refuse(call, *error);
  auto parsed = ParseWarmRequest(call.request.body, options_.limits, tokenizer_.vocab_size());
  generations_.Start(std::move(call), std::move(parsed), MakeWarmStyle());
}

// Any thread may clear: the cache locks, and what a sequence uses stays.
void Api::Flush(Call call) {
  if (auto error = CheckFlushRequest(call.request.body)) return Refuse(call, *error);
  Cache& cache = engine_.cache();
  const CacheStats before = cache.Stats();
  cache.Clear();
  Answer(call, FlushAnswer(before, cache.Stats()));
}

}  // namespace kvlink::server
