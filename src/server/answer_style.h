// AnswerStyle: how one protocol tells an answer: whole, or as the events of a stream.
//
//   Begin(choice)  Token...  Finish(choice)   for each choice, interleaved
//   End                                       once, when every choice is finished
//
// A style may keep state: one object serves one answer, calls come in order on one strand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/message_parser.h"

namespace kvlink::server {

// What became of one prompt.
struct PromptOutcome {
  std::shared_ptr<const engine::RequestReport> report;
  // Per branch; filled where log-probabilities are wanted.
  std::vector<std::vector<engine::TokenEvent>> events;
  std::vector<TokenId> prompt;
  std::string prompt_text;  // for echo
  // Chat: message that the first token without a cached row lies in.
  std::optional<size_t> diverged_message;
  bool hide_generated = false;
  // Chat: the branches' texts taken apart; empty where the text is the content.
  std::vector<ParsedMessage> messages;
  // The same tools came before with their keys in another order.
  bool tool_keys_reordered = false;
};

class AnswerStyle {
 public:
  virtual ~AnswerStyle() = default;
  virtual std::string Whole(const std::vector<PromptOutcome>& prompts) = 0;

  // `started`: the prompt's report so far (counts of prompt and cached tokens); null: not known.
  virtual std::string Begin(uint32_t index, const std::string& echo,
                            const engine::RequestReport* started) = 0;
  // `parts`: what the token's text means. `text_offset`: characters of this choice's text before
  // the token; advanced by the call.
  virtual std::string Token(uint32_t index, const engine::TokenEvent& event,
                            const std::vector<MessagePart>& parts, size_t* text_offset) = 0;
  // `calls`: tools that the choice called. `last`: this is the last choice.
  virtual std::string Finish(uint32_t index, const engine::BranchResult& branch, uint32_t calls,
                             const std::vector<PromptOutcome>* last) = 0;
  virtual std::string End(const std::vector<PromptOutcome>& prompts) = 0;
  // An error in a stream that has begun, and the end of the stream.
  virtual std::string StreamError(const ApiError& error) = 0;
  // An error instead of an answer.
  virtual HttpResponse ErrorAnswer(const ApiError& error) const { return ErrorResponse(error); }
};

}  // namespace kvlink::server
