// ApiRequest: the JSON body of a completion, checked and in our own terms.
//
// Fields of OpenAI, vLLM and llama.cpp are taken where they mean the same; unknown fields are
// ignored; a field of the wrong type or range is refused with its name and the value seen.
// docs/api.md lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/message_parser.h"
#include "server/server.h"
#include "server/tools.h"

namespace kvlink::server {

using PromptInput = std::variant<std::string, std::vector<TokenId>>;

struct ApiRequest {
  // Which protocol asked, and is answered.
  enum class Style : uint8_t { kCompletion, kChat, kResponses, kMessages };
  Style style = Style::kCompletion;
  bool chat = false;
  std::string model;  // empty: not given
  std::vector<model::ChatMessage> messages;
  std::string tools_json;  // "": none, or none that may be called
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  std::optional<bool> sort_tool_keys;  // none: the server's
  bool split_reasoning = true;         // chat: reasoning apart from the content
  bool add_generation_prompt = true;
  std::vector<PromptInput> prompts;   // completions
  std::optional<std::string> suffix;  // completions: what comes behind the middle that is asked for
  bool add_special_tokens = true;     // completions: BOS in front of a text
  bool echo = false;
  bool stream = false, include_usage = false;
  bool has_seed = false;
  // max_tokens 0: the prompt alone is wanted. The engine generates at least one token, which is
  // then hidden.
  bool hide_generated = false;
  std::optional<SimilarPolicy> similar;  // none: the server's
  // Filled in by Api, which knows the model and the requests before this one.
  MessageSyntax syntax;
  bool tool_keys_reordered = false;
  engine::GenerationRequest generation;  // everything but the prompt, the tenant and `similar`
  std::string grammar_field = "tools";   // which field generation.sampling.grammar comes from
};

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> text;
  std::vector<model::ChatMessage> messages;
  std::string tools_json;
  bool add_generation_prompt = true;
  bool add_special = true, parse_special = true, with_pieces = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

template <typename T>
using Parsed = std::variant<T, ApiError>;

Parsed<ApiRequest> ParseChatRequest(const std::string& body, const Limits& limits,
                                    uint32_t vocab_size);
Parsed<ApiRequest> ParseCompletionRequest(const std::string& body, const Limits& limits,
                                          uint32_t vocab_size);
Parsed<TokenizeRequest> ParseTokenizeRequest(const std::string& body);
Parsed<DetokenizeRequest> ParseDetokenizeRequest(const std::string& body, uint32_t vocab_size);

}  // namespace kvlink::server
