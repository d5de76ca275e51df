// The JSON bodies of requests, read by every parser that the server has: any bytes are a request
// within its ranges or a 4xx with a message; what was translated from another protocol is JSON that
// the chat parser takes or refuses; a grammar made from a schema can be read.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fuzz_input.h"
#include "grammar/gbnf.h"
#include "grammar/program.h"
#include "server/admin.h"
#include "server/anthropic.h"
#include "server/api_request.h"
#include "server/blocks.h"
#include "server/responses.h"

namespace kvlink::server {
namespace {

constexpr uint32_t kVocabulary = 1000;
constexpr size_t kSmallGrammar = 64 << 10;  // far below every limit of grammars

bool Within(double value, double min, double max) { return value >= min && value <= max; }

void CheckError(const ApiError& error) {
  KVLINK_CHECK(error.status >= 400 && error.status < 500) << error.status << " " << error.message;
  KVLINK_CHECK(!error.message.empty());
  for (const HttpResponse& response : {ErrorResponse(error), MessagesErrorResponse(error)}) {
    KVLINK_CHECK(response.status == error.status) << response.status;
    KVLINK_CHECK(nlohmann::json::parse(response.body).contains("error")) << response.body;
  }
}

void CheckTokens(const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    KVLINK_CHECK(token >= 0 && static_cast<uint32_t>(token) < kVocabulary) << token;
  }
}

void CheckJson(const std::string& text) {
  KVLINK_CHECK(text.empty() || nlohmann::json::accept(text)) << text;
}

// `own`: the client wrote the grammar, so that it may be wrong.
void CheckGrammar(const std::string& grammar, bool own) {
  if (grammar.empty()) return;
  const auto rules = grammar::ParseGbnf(grammar);
  KVLINK_CHECK(rules.ok() || own || grammar.size() > kSmallGrammar)
      << rules.status().message() << "\n"
      << grammar;
  // Left recursion, or too much once written out.
  if (rules.ok()) (void)grammar::Program::Create(*rules);
}

void CheckRequest(const ApiRequest& request, bool own_grammar) {
  const engine::GenerationRequest& generation = request.generation;
  const model::SamplingParams& sampling = generation.sampling;
  const Limits limits;
  KVLINK_CHECK(Within(sampling.temperature, 0, 2) && Within(sampling.top_p, 0, 1) &&
               Within(sampling.min_p, 0, 1) && sampling.top_k >= 0);
  KVLINK_CHECK(Within(sampling.frequency_penalty, -2, 2) &&
               Within(sampling.presence_penalty, -2, 2) &&
               Within(sampling.repetition_penalty, 0.0099, 100.1));
  KVLINK_CHECK(generation.n >= 1 && generation.n <= limits.max_choices &&
               generation.best_of <= limits.max_choices)
      << generation.n << " of " << generation.best_of;
  KVLINK_CHECK(request.prompts.size() <= limits.max_prompts) << request.prompts.size();
  KVLINK_CHECK(request.chat ? !request.messages.empty() : !request.prompts.empty());
  for (const auto& [token, bias] : sampling.logit_bias) {
    CheckTokens({token});
    KVLINK_CHECK(Within(bias, -100, 100)) << bias;
  }
  for (const std::string& stop : generation.stop) KVLINK_CHECK(!stop.empty());
  for (const PromptInput& prompt : request.prompts) {
    if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) CheckTokens(*tokens);
  }
  for (const model::ChatMessage& message : request.messages) CheckJson(message.extra_json);
  CheckJson(request.tools_json);
  CheckGrammar(sampling.grammar, own_grammar);
}

template <typename T>
const T* Taken(const Parsed<T>& parsed) {
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    CheckError(*error);
    return nullptr;
  }
  return &std::get<T>(parsed);
}

void Chat(const std::string& body, bool own_grammar) {
  const auto parsed = ParseChatRequest(body, Limits(), kVocabulary);
  if (const ApiRequest* request = Taken(parsed)) CheckRequest(*request, own_grammar);
}

void Translated(const std::string& body, bool generates) {
  const auto translated = TranslateMessagesRequest(body, generates);
  const ChatTranslation* chat = Taken(translated);
  if (chat == nullptr) return;
  KVLINK_CHECK(nlohmann::json::accept(chat->body)) << chat->body;
  Chat(chat->body, false);
}

void TranslatedResponses(const std::string& body) {
  const auto stored = [](const std::string& id) -> std::optional<std::string> {
    if (id != "resp_1") return std::nullopt;
    return R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])";
  };
  const auto translated = TranslateResponsesRequest(body, stored);
  const ResponsesTranslation* chat = Taken(translated);
  if (chat == nullptr) return;
  for (const std::string* json : {&chat->body, &chat->messages, &chat->echo}) {
    KVLINK_CHECK(nlohmann::json::accept(*json)) << *json;
  }
  Chat(chat->body, false);
}

// Not JSON, but asked of the same routes: "ID?QUERY".
void Queries(const std::string& target) {
  const size_t question = std::min(target.find('?'), target.size());
  const std::string query = target.substr(std::min(question + 1, target.size()));
  const auto blocks = ParseBlocksQuery(query);
  if (const BlocksQuery* asked = Taken(blocks)) {
    KVLINK_CHECK(asked->limit >= 1 && asked->limit <= BlocksQuery::kMostLimit) << asked->limit;
  }
  const auto block = ParseShowBlock(target.substr(0, question), query);
  if (const ShowBlockQuery* asked = Taken(block)) {
    KVLINK_CHECK(asked->last >= 1 && asked->last <= ShowBlockQuery::kMostLast) << asked->last;
  }
}

void Parse(uint64_t parser, const std::string& body) {
  // A key can be written with escapes, so that looking for "grammar" would not tell.
  const bool own_grammar = true;
  switch (parser) {
    case 0:
      return Chat(body, own_grammar);
    case 1: {
      const auto parsed = ParseCompletionRequest(body, Limits(), kVocabulary);
      if (const ApiRequest* request = Taken(parsed)) CheckRequest(*request, own_grammar);
      return;
    }
    case 2:
      (void)Taken(ParseTokenizeRequest(body));
      return;
    case 3: {
      const auto parsed = ParseDetokenizeRequest(body, kVocabulary);
      if (const DetokenizeRequest* request = Taken(parsed)) CheckTokens(request->tokens);
      return;
    }
    case 4: {
      const auto parsed = ParsePinRequest(body, Limits(), kVocabulary);
      const PinRequest* pin = Taken(parsed);
      if (pin == nullptr) return;
      KVLINK_CHECK(pin->ttl.count() > 0 && pin->prompt.prompts.size() <= 1) << pin->ttl.count();
      return CheckRequest(pin->prompt, own_grammar);
    }
    case 5: {
      const auto parsed = ParseWarmRequest(body, Limits(), kVocabulary);
      if (const ApiRequest* request = Taken(parsed)) CheckRequest(*request, own_grammar);
      return;
    }
    case 6:
      if (const auto error = CheckFlushRequest(body)) CheckError(*error);
      return;
    case 7:
      return Translated(body, /*generates=*/true);
    case 8:
      return Translated(body, /*generates=*/false);
    case 9:
      return TranslatedResponses(body);
    case 10: {
      // A schema on its own, so that its grammar is nobody's but ours.
      const nlohmann::json schema = nlohmann::json::parse(body, nullptr, false);
      if (schema.is_discarded()) return;
      return Chat(R"({"messages":[{"role":"user","content":"a"}],"json_schema":)" + body + "}",
                  /*own_grammar=*/false);
    }
    case 11: {
      const auto parsed = ParseUnpinRequest(body, Limits(), kVocabulary);
      if (const ApiRequest* request = Taken(parsed)) CheckRequest(*request, own_grammar);
      return;
    }
    default:
      return Queries(body);
  }
}

}  // namespace
}  // namespace kvlink::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  kvlink::fuzz::FuzzInput input(bytes, size);
  const uint64_t parser = input.Below(13);
  kvlink::server::Parse(parser, std::string(input.Rest()));
  return 0;
}
