#include "server/admin.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/fields.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kDefaultTtlS = 3600;
constexpr double kLeastTtlS = 0.001, kMostTtlS = 30.0 * 24 * 3600;

// The parts of a completion's body that say which tokens stand in the cache, and for whom.
ApiRequest PromptOf(ApiRequest parsed) {
  ApiRequest out;
  out.style = parsed.style;
  out.chat = parsed.chat;
  out.model = std::move(parsed.model);
  out.messages = std::move(parsed.messages);
  out.tools_json = std::move(parsed.tools_json);
  out.sort_tool_keys = parsed.sort_tool_keys;
  out.add_generation_prompt = parsed.add_generation_prompt;
  out.prompts = std::move(parsed.prompts);
  out.suffix = std::move(parsed.suffix);
  out.add_special_tokens = parsed.add_special_tokens;
  out.similar = SimilarPolicy::kOff;  // rows of another prompt are no copy of this one
  out.has_seed = true;                // greedy: none is needed
  out.generation.ns = std::move(parsed.generation.ns);
  out.generation.deadline = parsed.generation.deadline;
  return out;
}

Parsed<ApiRequest> ParsePrompt(const std::string& body, const Limits& limits, uint32_t vocab_size,
                               nlohmann::json* json) {
  if (auto error = ParseObject(body, json)) return *error;
  Fields fields(*json);
  const bool chat = fields.Get("messages") != nullptr, text = fields.Get("prompt") != nullptr;
  if (chat == text) {
    fields.Fail(chat ? "prompt" : "messages",
                chat ? "messages and prompt cannot be combined: which of them is meant?"
                     : "one of messages and prompt is needed",
                chat ? "" : "missing_field");
    return *fields.error();
  }
  Parsed<ApiRequest> parsed = chat ? ParseChatRequest(body, limits, vocab_size)
                                   : ParseCompletionRequest(body, limits, vocab_size);
  if (const ApiRequest* request = std::get_if<ApiRequest>(&parsed)) {
    if (!request->generation.store) {
      return ApiError{400, "kvlink.store is false: nothing of the prompt would stay in the cache",
                      "kvlink.store", ""};
    }
  }
  return parsed;
}

std::optional<ApiError> CheckOnePrompt(const ApiRequest& request, const char* what) {
  if (request.prompts.size() <= 1) return std::nullopt;
  return ApiError{400,
                  std::string("prompt: ") + what + " for one prompt, not " +
                      std::to_string(request.prompts.size()) +
                      ", so that it is taken whole or refused",
                  "prompt", ""};
}

Json Describe(const engine::RequestReport& report) {
  return {{"prompt_tokens", report.prompt_tokens},
          {"cached_tokens", report.cached_tokens},
          {"computed_tokens", report.computed_tokens},
          {"miss_reason", MissReasonName(report.miss_reason)},
          {"prompt_ms", report.prompt_ms},
          {"queue_ms", report.queue_ms}};
}

// Whole answers only: the request never asks for a stream.
class WarmStyle : public AnswerStyle {
 public:
  std::string Whole(const std::vector<PromptOutcome>& prompts) override {
    uint64_t tokens = 0, cached = 0, computed = 0;
    Json each = Json::array();
    for (const PromptOutcome& prompt : prompts) {
      tokens += prompt.report->prompt_tokens;
      cached += prompt.report->cached_tokens;
      computed += prompt.report->computed_tokens;
      each.push_back(Describe(*prompt.report));
    }
    return Json({{"object", "kvlink.warm"},
                 {"prompt_tokens", tokens},
                 {"cached_tokens", cached},
                 {"computed_tokens", computed},
                 {"prompts", std::move(each)}})
        .dump();
  }
  std::string Begin(uint32_t, const std::string&, const engine::RequestReport*) override {
    return "";
  }
  std::string Token(uint32_t, const engine::TokenEvent&, const std::vector<MessagePart>&,
                    size_t*) override {
    return "";
  }
  std::string Finish(uint32_t, const engine::BranchResult&, uint32_t,
                     const std::vector<PromptOutcome>*) override {
    return "";
  }
  std::string End(const std::vector<PromptOutcome>&) override { return ""; }
  std::string StreamError(const ApiError& error) override { return ErrorBody(error); }
};

uint64_t Less(uint64_t before, uint64_t after) { return before - std::min(before, after); }

}  // namespace

Parsed<PinRequest> ParsePinRequest(const std::string& body, const Limits& limits,
                                   uint32_t vocab_size) {
  nlohmann::json json;
  Parsed<ApiRequest> parsed = ParsePrompt(body, limits, vocab_size, &json);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  Fields fields(json);
  const double ttl_s = fields.Number("ttl_s", kLeastTtlS, kMostTtlS).value_or(kDefaultTtlS);
  if (fields.error()) return *fields.error();
  PinRequest out{PromptOf(std::get<ApiRequest>(std::move(parsed))),
                 std::chrono::milliseconds(static_cast<int64_t>(ttl_s * 1e3 + 0.5))};
  if (auto error = CheckOnePrompt(out.prompt, "a pin is")) return *error;
  return out;
}

Parsed<ApiRequest> ParseUnpinRequest(const std::string& body, const Limits& limits,
                                     uint32_t vocab_size) {
  nlohmann::json json;
  Parsed<ApiRequest> parsed = ParsePrompt(body, limits, vocab_size, &json);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  ApiRequest out = PromptOf(std::get<ApiRequest>(std::move(parsed)));
  if (auto error = CheckOnePrompt(out, "taking a pin back is")) return *error;
  return out;
}

Parsed<ApiRequest> ParseWarmRequest(const std::string& body, const Limits& limits,
                                    uint32_t vocab_size) {
  nlohmann::json json;
  Parsed<ApiRequest> parsed = ParsePrompt(body, limits, vocab_size, &json);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  ApiRequest out = PromptOf(std::get<ApiRequest>(std::move(parsed)));
  out.hide_generated = true;
  out.generation.sampling.temperature = 0;
  out.generation.max_tokens = 1;  // the engine's least; a prompt is stored when its rows have run
  return out;
}

std::optional<ApiError> CheckFlushRequest(const std::string& body) {
  if (body.empty()) return std::nullopt;
  nlohmann::json json;
  if (auto error = ParseObject(body, &json)) return error;
  if (json.empty()) return std::nullopt;
  return ApiError{400,
                  "flush takes no fields, and drops what all tenants left; " +
                      json.begin().key().substr(0, 80) + " is " + Seen(json.begin().value()),
                  json.begin().key().substr(0, 80), ""};
}

std::string PinAnswer(uint32_t prompt_tokens, uint32_t pinned_tokens, std::chrono::milliseconds ttl,
                      uint64_t pinned_bytes) {
  return Json({{"object", "kvlink.pin"},
               {"prompt_tokens", prompt_tokens},
               {"pinned_tokens", pinned_tokens},
               {"ttl_s", static_cast<double>(ttl.count()) * 1e-3},
               {"pinned_bytes", pinned_bytes}})
      .dump();
}

std::string UnpinAnswer(uint32_t prompt_tokens, uint32_t unpinned_tokens, uint64_t pinned_bytes) {
  return Json({{"object", "kvlink.unpin"},
               {"prompt_tokens", prompt_tokens},
               {"unpinned_tokens", unpinned_tokens},
               {"pinned_bytes", pinned_bytes}})
      .dump();
}

std::string FlushAnswer(const CacheStats& before, const CacheStats& after) {
  return Json({{"object", "kvlink.flush"},
               {"dropped_pages", Less(before.cached_pages, after.cached_pages)},
               {"dropped_bytes", Less(before.cached_bytes, after.cached_bytes)},
               {"in_use_pages", after.in_use_pages}})
      .dump();
}

std::unique_ptr<AnswerStyle> MakeWarmStyle() { return std::make_unique<WarmStyle>(); }

ApiError PinError(const Status& status) {
  if (status.code() == StatusCode::kResourceExhausted) {
    return {409, status.message() + " (--pin-budget)", "", "pin_budget_exhausted"};
  }
  return FromStatus(status);
}

}  // namespace kvlink::server
