// The routes of Api that speak other protocols than OpenAI's completions: /v1/messages,
// /v1/responses, and those that only say what is not here.
#include <nlohmann/json.hpp>
#include <utility>

#include "server/anthropic.h"
#include "server/api.h"
#include "server/openapi.h"
#include "server/responses.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kResponsePrefix = "/v1/responses/";

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void Api::Messages(Call call) {
  Parsed<ChatTranslation> translated = TranslateMessagesRequest(call.request.body);
  if (const ApiError* error = std::get_if<ApiError>(&translated)) return Refuse(call, *error);
  const ChatTranslation& chat = std::get<ChatTranslation>(translated);
  auto parsed = ParseChatRequest(chat.body, options_.limits, tokenizer_.vocab_size());
  if (auto* request = std::get_if<ApiRequest>(&parsed))
    request->style = ApiRequest::Style::kMessages;
  MessagesHead head{"msg_" + call.id, model_ids_.front(), chat.wants_cache_told};
  Generate(std::move(call), std::move(parsed), MakeMessagesStyle(std::move(head)));
}

void Api::CountMessageTokens(Call call) {
  Parsed<ChatTranslation> translated = TranslateMessagesRequest(call.request.body, false);
  if (const ApiError* error = std::get_if<ApiError>(&translated)) return Refuse(call, *error);
  auto parsed = ParseChatRequest(std::get<ChatTranslation>(translated).body, options_.limits,
                                 tokenizer_.vocab_size());
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  ApiRequest request = std::get<ApiRequest>(std::move(parsed));
  if (!CheckModel(call, request.model)) return;
  ShowTools(tool_template_, &request.tools_json, &request.messages);
  const Result<BuiltPrompt> built =
      builder_.FromChat({call.caller.scope, ""}, request.messages, request.tools_json, true);
  if (!built.ok()) return Refuse(call, FromStatus(built.status()));
  Answer(call, Json({{"input_tokens", built->tokens.size()}}).dump());
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
  head.model = model_ids_.front();
  head.created = Now();
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
  Generate(std::move(call), std::move(parsed), MakeResponsesStyle(std::move(head)));
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
  Answer(call, Json({{"id", id}, {"object", "response"}, {"deleted", true}}).dump());
}

void Api::RefuseEmbeddings(Call call) {
  Refuse(call,
         {501,
          "embeddings are not supported: the model served here generates text, and its hidden "
          "states are no embeddings that anything was trained for",
          "", "unsupported"});
}

// As llama-server's clients read it.
void Api::Props(Call call) {
  const auto piece = [&](TokenId token) { return token < 0 ? "" : tokenizer_.Piece(token, true); };
  Json json = {{"default_generation_settings",
                {{"n_ctx", context_tokens()},
                 {"params", {{"temperature", 1.0}, {"top_k", 0}, {"top_p", 1.0}, {"min_p", 0.0}}}}},
               {"total_slots", engine_.options().max_sequences},
               {"model_alias", model_ids_.front()},
               {"modalities", {{"vision", false}, {"audio", false}}},
               {"bos_token", piece(tokenizer_.bos())},
               {"eos_token", piece(tokenizer_.eos())},
               {"chat_template_caps", {{"supports_tools", tool_template_.native}}},
               {"build_info", "kvlink " + options_.version}};
  Answer(call, json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Api::OpenApi(Call call) { Answer(call, OpenApiDocument(options_.version)); }

}  // namespace kvlink::server
