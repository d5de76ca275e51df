// RequestPrompts: a parsed request -> its prompts as token ids, none longer than the context.
//
// Megabytes of text take seconds, and a hundred times their memory, to become tokens: what must be
// too many is seen before, by the bytes that a token spells at most. Thread-safe if the builder is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api_request.h"
#include "server/prompt_builder.h"

namespace kvlink::server {

class RequestPrompts {
 public:
  // `context`: most tokens of prompt and answer.
  RequestPrompts(const model::Tokenizer& tokenizer, const PromptBuilder& builder, uint32_t context);

  // Errors name the field at fault.
  Parsed<std::vector<BuiltPrompt>> Build(const ApiRequest& request) const;
  // Of messages, of any length.
  Parsed<BuiltPrompt> OfMessages(const Namespace& ns,
                                 const std::vector<model::ChatMessage>& messages,
                                 const std::string& tools_json, bool add_generation_prompt) const;

 private:
  Parsed<BuiltPrompt> OfInput(const ApiRequest& request, const PromptInput& input) const;
  // What lies between both.
  Parsed<BuiltPrompt> Fill(const PromptInput& prefix, const std::string& suffix) const;
  // So many bytes of text must be more tokens than there is room for.
  std::optional<ApiError> CheckBytes(size_t bytes, const char* param) const;
  std::optional<ApiError> CheckTokens(size_t tokens, const char* param) const;

  const model::Tokenizer& tokenizer_;
  const PromptBuilder& builder_;
  const uint32_t context_;
  const size_t longest_piece_;  // bytes that a token spells at most
};

}  // namespace kvlink::server
