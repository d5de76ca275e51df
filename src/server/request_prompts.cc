#include "server/request_prompts.h"

#include <algorithm>
#include <utility>

namespace kvlink::server {
namespace {

size_t LongestPiece(const model::Tokenizer& tokenizer) {
  size_t longest = 1;
  for (uint32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    longest = std::max(longest, tokenizer.Piece(static_cast<TokenId>(token), true).size());
  }
  return longest;
}

// Bytes that every template shows: of what people and tools wrote, without white space around it.
size_t ShownBytes(const std::vector<model::ChatMessage>& messages) {
  constexpr const char* kSpace = " \t\r\n";
  size_t bytes = 0;
  for (const model::ChatMessage& message : messages) {
    if (message.role == "assistant") continue;  // reasoning of earlier turns is left out by some
    const size_t first = message.content.find_first_not_of(kSpace);
    if (first == std::string::npos) continue;
    bytes += message.content.find_last_not_of(kSpace) + 1 - first;
  }
  return bytes;
}

ApiError BeyondContext(uint32_t context, const std::string& tokens, const char* param) {
  return ApiError{400,
                  "this model's maximum context length is " + std::to_string(context) +
                      " tokens, and the prompt has " + tokens +
                      "; at least one is needed for the answer",
                  param, "context_length_exceeded"};
}

}  // namespace

RequestPrompts::RequestPrompts(const model::Tokenizer& tokenizer, const PromptBuilder& builder,
                               uint32_t context)
    : tokenizer_(tokenizer),
      builder_(builder),
      context_(context),
      longest_piece_(LongestPiece(tokenizer)) {}

Parsed<std::vector<BuiltPrompt>> RequestPrompts::Build(const ApiRequest& request) const {
  std::vector<BuiltPrompt> prompts;
  if (request.chat) {
    if (auto error = CheckBytes(ShownBytes(request.messages), "messages")) return *error;
    auto built = OfMessages(request.generation.ns, request.messages, request.tools_json,
                            request.add_generation_prompt);
    if (const ApiError* error = std::get_if<ApiError>(&built)) return *error;
    prompts.push_back(std::get<BuiltPrompt>(std::move(built)));
  }
  for (const PromptInput& input : request.prompts) {
    Parsed<BuiltPrompt> built = OfInput(request, input);
    if (const ApiError* error = std::get_if<ApiError>(&built)) return *error;
    prompts.push_back(std::get<BuiltPrompt>(std::move(built)));
  }
  for (const BuiltPrompt& prompt : prompts) {
    if (auto error = CheckTokens(prompt.tokens.size(), request.chat ? "messages" : "prompt")) {
      return *error;
    }
  }
  return prompts;
}

Parsed<BuiltPrompt> RequestPrompts::OfMessages(const Namespace& ns,
                                               const std::vector<model::ChatMessage>& messages,
                                               const std::string& tools_json,
                                               bool add_generation_prompt) const {
  Result<BuiltPrompt> built = builder_.FromChat(ns, messages, tools_json, add_generation_prompt);
  if (built.ok()) return *std::move(built);
  ApiError error = FromStatus(built.status());
  error.param = "messages";
  return error;
}

Parsed<BuiltPrompt> RequestPrompts::OfInput(const ApiRequest& request,
                                            const PromptInput& input) const {
  const auto* const text = std::get_if<std::string>(&input);
  if (text != nullptr) {
    if (auto error = CheckBytes(text->size(), "prompt")) return *error;
  }
  if (request.suffix) {
    if (auto error = CheckBytes(request.suffix->size(), "suffix")) return *error;
    return Fill(input, *request.suffix);
  }
  if (text != nullptr) {
    return builder_.FromText(request.generation.ns, *text, request.add_special_tokens);
  }
  BuiltPrompt prompt = PromptBuilder::FromTokens(std::get<std::vector<TokenId>>(input));
  if (request.echo) prompt.text = tokenizer_.Decode(prompt.tokens, true);
  return prompt;
}

Parsed<BuiltPrompt> RequestPrompts::Fill(const PromptInput& prefix,
                                         const std::string& suffix) const {
  const model::FillTokens fill = tokenizer_.fill_tokens();
  if (fill.prefix < 0 || fill.suffix < 0 || fill.middle < 0) {
    return ApiError{
        400,
        "suffix: this model has no tokens for filling in the middle, so that nothing can "
        "be generated in front of a suffix",
        "suffix", "unsupported"};
  }
  std::vector<TokenId> tokens;
  const auto append = [&](const std::vector<TokenId>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  if (tokenizer_.AddsBos() && tokenizer_.bos() >= 0) tokens.push_back(tokenizer_.bos());
  tokens.push_back(fill.prefix);
  if (const auto* text = std::get_if<std::string>(&prefix)) {
    append(tokenizer_.Encode(*text, false, false));
  } else {
    append(std::get<std::vector<TokenId>>(prefix));
  }
  tokens.push_back(fill.suffix);
  append(tokenizer_.Encode(suffix, false, false));
  tokens.push_back(fill.middle);
  return PromptBuilder::FromTokens(std::move(tokens));
}

std::optional<ApiError> RequestPrompts::CheckBytes(size_t bytes, const char* param) const {
  const size_t least_tokens = bytes / longest_piece_;
  if (least_tokens <= context_) return std::nullopt;
  return BeyondContext(context_, "at least " + std::to_string(least_tokens), param);
}

std::optional<ApiError> RequestPrompts::CheckTokens(size_t tokens, const char* param) const {
  if (tokens == 0)
    return ApiError{400, std::string(param) + ": the prompt has no tokens", param, ""};
  if (tokens + 1 <= context_) return std::nullopt;
  return BeyondContext(context_, std::to_string(tokens), param);
}

}  // namespace kvlink::server
