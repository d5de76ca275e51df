// Conversation: what was said so far, and its file.
//
//   {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
//                 {"role": "assistant", "content": "Hello."}]}
//
// Invariant: behind the system message, questions and answers take turns, and every question but
// the one under way has its answer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

class Conversation {
 public:
  // Empty: no system message.
  void SetSystem(const std::string& text);
  std::string System() const;

  void Ask(const std::string& text);
  // Ends the turn. With nothing said the question is taken back.
  void Answered(const std::string& text);
  // Forgets all turns, not the system message.
  void Reset();

  std::span<const model::ChatMessage> messages() const { return messages_; }
  size_t turns() const;

  std::string ToJson() const;
  // kInvalidArgument: not such a file (`where` names it in the message).
  static Result<Conversation> FromJson(const std::string& text, const std::string& where);

 private:
  bool HasSystem() const { return !messages_.empty() && messages_.front().role == "system"; }

  std::vector<model::ChatMessage> messages_;
};

// For a terminal: what could command it (control characters, but line breaks and tabs) as U+FFFD.
// `text`: whole UTF-8 characters.
std::string PrintableText(std::string_view text);

}  // namespace kvlink::cli
