// BlockStyle: an answer of one choice that is told block by block: reasoning, text and calls, one
// after the other. What two protocols have in common that differ in every name.
//
//   Begin  { TellOpen  TellDelta...  TellClose }...  Finish  End
//
// A part of another kind closes the block before it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/answer_style.h"

namespace kvlink::server {

class BlockStyle : public AnswerStyle {
 public:
  std::string Token(uint32_t index, const engine::TokenEvent& event,
                    const std::vector<MessagePart>& parts, size_t* text_offset) final;

 protected:
  enum class Block : uint8_t { kNone, kReasoning, kText, kCall };

  // Events of the block that open_ names. `part` is its first, or for a call its name.
  virtual std::string TellOpen(const MessagePart& part) = 0;
  virtual std::string TellDelta(const std::string& text) = 0;
  // `complete`: it was not cut short.
  virtual std::string TellClose(bool complete) = 0;
  // A call's arguments have ended; the block may stay open until it is known what follows.
  virtual std::string EndCall() { return ""; }

  std::string Open(Block block, const MessagePart& part);
  std::string Close(bool complete);  // "" where none is open

  // What the whole answer says: of its one choice.
  static ParsedMessage MessageOf(const std::vector<PromptOutcome>& prompts);
  static const engine::BranchResult& BranchOf(const std::vector<PromptOutcome>& prompts) {
    return prompts.front().report->branches.front();
  }
  static void AddDetails(const std::vector<PromptOutcome>& prompts, nlohmann::ordered_json* answer);
  // Requires: event["type"].
  static std::string EventText(const nlohmann::ordered_json& event);
  // "1a2b" of "msg_1a2b": what ids of parts are made from.
  static std::string Stem(const std::string& id) { return id.substr(id.find('_') + 1); }

  Block open_ = Block::kNone;
};

}  // namespace kvlink::server
