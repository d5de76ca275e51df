#include "server/block_style.h"

#include <nlohmann/json.hpp>

#include "server/answer.h"
#include "server/dump.h"

namespace kvlink::server {

std::string BlockStyle::Token(uint32_t, const engine::TokenEvent&,
                              const std::vector<MessagePart>& parts, size_t*) {
  std::string out;
  const auto continue_or_open = [&](Block block, const MessagePart& part) {
    if (open_ != block) out += Open(block, part);
    out += TellDelta(part.text);
  };
  for (const MessagePart& part : parts) {
    switch (part.kind) {
      case MessagePart::Kind::kReasoning:
        continue_or_open(Block::kReasoning, part);
        break;
      case MessagePart::Kind::kContent:
        continue_or_open(Block::kText, part);
        break;
      case MessagePart::Kind::kCallBegin:
        out += Open(Block::kCall, part);
        break;
      case MessagePart::Kind::kCallArguments:
        out += TellDelta(part.text);
        break;
      case MessagePart::Kind::kCallEnd:
        out += EndCall();
        break;
    }
  }
  return out;
}

std::string BlockStyle::Open(Block block, const MessagePart& part) {
  std::string out = Close(/*complete=*/true);
  open_ = block;
  return out += TellOpen(part);
}

std::string BlockStyle::Close(bool complete) {
  if (open_ == Block::kNone) return "";
  std::string out = TellClose(complete);
  open_ = Block::kNone;
  return out;
}

ParsedMessage BlockStyle::MessageOf(const std::vector<PromptOutcome>& prompts) {
  if (!prompts.front().messages.empty()) return prompts.front().messages.front();
  ParsedMessage message;
  message.content = BranchOf(prompts).text;
  return message;
}

void BlockStyle::AddDetails(const std::vector<PromptOutcome>& prompts,
                            nlohmann::ordered_json* answer) {
  (*answer)["timings"] = nlohmann::ordered_json::parse(TimingsText(prompts));
  (*answer)["kvlink"] = nlohmann::ordered_json::parse(ReuseText(prompts));
}

std::string BlockStyle::EventText(const nlohmann::ordered_json& event) {
  return "event: " + event["type"].get<std::string>() + "\ndata: " + Dump(event) + "\n\n";
}

}  // namespace kvlink::server
