// The routes of Api that speak other protocols than OpenAI's completions: /v1/messages and
// /v1/responses.
#include <nlohmann/json.hpp>
#include <utility>

#include "server/anthropic.h"
#include "server/api.h"
#include "server/dump.h"
#include "server/responses.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kResponsePrefix = "/v1/responses/";

}  // namespace

void Api::Messages(Call call) {
  Parsed<ChatTranslation> translated = TranslateMessagesRequest(call.request.body);
  if (const ApiError* error = std::get_if<ApiError>(&translated)) return Refuse(call, *error);
  const ChatTranslation& chat = std::get<ChatTranslation>(translated);
  auto parsed = ParseChatRequest(chat.body, options_.limits, tokenizer_.vocab_size());
  if (auto* request = std::get_if<ApiRequest>(&parsed))
    request->style = ApiRequest::Style::kMessages;
  MessagesHead head{"msg_" + call.id, models_.id(), chat.wants_cache_told};
  generations_.Start(std::move(call), std::move(parsed), MakeMessagesStyle(std::move(head)));
}

void Api::CountMessageTokens(Call call) {
  Parsed<ChatTranslation> translated = TranslateMessagesRequest(call.request.body, false);
  if (const ApiError* error = std::get_if<ApiError>(&translated)) return Refuse(call, *error);
  auto parsed = ParseChatRequest(std::get<ChatTranslation>(translated).body, options_.limits,
                                 tokenizer_.vocab_size());
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  ApiRequest request = std::get<ApiRequest>(std::move(parsed));
  if (!CheckModel(call, request.model)) return;
  ShowTools(generations_.tools(), &request.tools_json, &request.messages);
  const auto built = generations_.prompts().OfMessages({call.caller.scope, ""}, request.messages,
                                                       request.tools_json, true);
  if (const ApiError* error = std::get_if<ApiError>(&built)) return Refuse(call, *error);
  Answer(call, Dump({{"input_tokens", std::get<BuiltPrompt>(built).tokens.size()}}));
}

void Api::Responses(Call call) {
  const auto stored = [&](const std::string& id) -> std::optional<std::string> {
    auto entry = responses_->Get(call.caller.tenant, id);
    return entry ? std::optional(std::move(entry->messages)) : std::nullopt;
  };
  Parsed<ResponsesTranslation> translated = TranslateResponsesRequest(call.request.body, stored);
  if (const ApiError* error = std::get_if<ApiError>(&translated)) return Refuse(call, *error);
  ResponsesTranslation& chat = std::get<ResponsesTranslation>(translated);
  auto parsed = ParseChatRequest(chat.body, options_.limits, tokenizer_.vocab_size());
  ResponsesHead head;
  head.id = "resp_" + call.id;
  head.model = models_.id();
  head.created = CreatedNow();
  head.messages = std::move(chat.messages);
  head.echo = std::move(chat.echo);
  if (auto* request = std::get_if<ApiRequest>(&parsed)) {
    request->style = ApiRequest::Style::kResponses;
    // "Do not store" of the cache is a wish not to be kept at all.
    if (chat.store && request->generation.store) {
      head.keep = [store = responses_, tenant = call.caller.tenant, id = head.id](
                      std::string response, std::string messages) {
        store->Put(id, {tenant, std::move(messages), std::move(response)});
      };
    }
  }
  generations_.Start(std::move(call), std::move(parsed), MakeResponsesStyle(std::move(head)));
}

void Api::ShowResponse(Call call) {
  const std::string id = call.request.path.substr(kResponsePrefix.size());
  auto entry = responses_->Get(call.caller.tenant, id);
  if (!entry) {
    return Refuse(call, {404, "there is no response " + id.substr(0, 100) + " here", "response_id",
                         "response_not_found"});
  }
  Answer(call, std::move(entry->response));
}

void Api::DeleteResponse(Call call) {
  const std::string id = call.request.path.substr(kResponsePrefix.size());
  if (!responses_->Remove(call.caller.tenant, id)) {
    return Refuse(call, {404, "there is no response " + id.substr(0, 100) + " here", "response_id",
                         "response_not_found"});
  }
  Answer(call, Dump({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

}  // namespace kvlink::server
