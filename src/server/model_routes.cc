// The routes of Api that tell about the model, and use its tokenizer.
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <variant>

#include "server/answer.h"
#include "server/api.h"
#include "server/dump.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kModelPrefix = "/v1/models/";

}  // namespace

void Api::ListModels(Call call) {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& id : models_.ids) {
    list["data"].push_back({{"id", id},
                            {"object", "model"},
                            {"created", models_.created},
                            {"owned_by", "kvlink"},
                            {"max_model_len", models_.context_tokens}});
  }
  Answer(call, Dump(list));
}

void Api::ShowModel(Call call) {
  const std::string id = call.request.path.substr(kModelPrefix.size());
  if (!CheckModel(call, id)) return;
  const model::ModelInfo& info = engine_.model().info();
  Answer(call, Dump({{"id", id},
                     {"object", "model"},
                     {"created", models_.created},
                     {"owned_by", "kvlink"},
                     {"max_model_len", models_.context_tokens},
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
    ShowTools(generations_.tools(), &request.tools_json, &request.messages);
    Parsed<BuiltPrompt> built =
        generations_.prompts().OfMessages({call.caller.scope, ""}, request.messages,
                                          request.tools_json, request.add_generation_prompt);
    if (const ApiError* error = std::get_if<ApiError>(&built)) return Refuse(call, *error);
    tokens = std::move(std::get<BuiltPrompt>(built).tokens);
  }
  Json json = {
      {"count", tokens.size()}, {"max_model_len", models_.context_tokens}, {"tokens", tokens}};
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

// As llama-server's clients read it.
void Api::Props(Call call) {
  const auto piece = [&](TokenId token) { return token < 0 ? "" : tokenizer_.Piece(token, true); };
  Json json = {{"default_generation_settings",
                {{"n_ctx", models_.context_tokens},
                 {"params", {{"temperature", 1.0}, {"top_k", 0}, {"top_p", 1.0}, {"min_p", 0.0}}}}},
               {"total_slots", engine_.options().max_sequences},
               {"model_alias", models_.id()},
               {"modalities", {{"vision", false}, {"audio", false}}},
               {"bos_token", piece(tokenizer_.bos())},
               {"eos_token", piece(tokenizer_.eos())},
               {"chat_template_caps", {{"supports_tools", generations_.tools().native}}},
               {"build_info", "kvlink " + options_.version}};
  Answer(call, Dump(json));
}

void Api::RefuseEmbeddings(Call call) {
  Refuse(call,
         {501,
          "embeddings are not supported: the model served here generates text, and its hidden "
          "states are no embeddings that anything was trained for",
          "", "unsupported"});
}

}  // namespace kvlink::server
