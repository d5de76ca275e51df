// How an answer of /v1/messages is told.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/anthropic.h"
#include "server/block_style.h"
#include "server/dump.h"

namespace kvlink::server {
namespace {

using Ordered = nlohmann::ordered_json;

const char* StopReason(const engine::BranchResult& branch, bool called) {
  if (branch.reason == engine::FinishReason::kLength) return "max_tokens";
  if (called) return "tool_use";
  return branch.stop_text.empty() ? "end_turn" : "stop_sequence";
}

Ordered StopSequence(const engine::BranchResult& branch) {
  return branch.stop_text.empty() ? Ordered(nullptr) : Ordered(branch.stop_text);
}

class MessagesStyle : public BlockStyle {
 public:
  explicit MessagesStyle(MessagesHead head) : head_(std::move(head)) {}

  std::string Whole(const std::vector<PromptOutcome>& prompts) override {
    const engine::BranchResult& branch = BranchOf(prompts);
    const ParsedMessage message = MessageOf(prompts);
    Ordered answer = Envelope();
    if (!message.reasoning.empty()) {
      answer["content"].push_back(
          {{"type", "thinking"}, {"thinking", message.reasoning}, {"signature", ""}});
    }
    if (!message.content.empty())
      answer["content"].push_back({{"type", "text"}, {"text", message.content}});
    for (uint32_t i = 0; i < message.calls.size(); ++i) {
      Ordered input = Ordered::parse(message.calls[i].arguments, nullptr, false);
      if (!input.is_object()) input = Ordered::object();  // cut short by max_tokens
      answer["content"].push_back({{"type", "tool_use"},
                                   {"id", CallId(i)},
                                   {"name", message.calls[i].name},
                                   {"input", std::move(input)}});
    }
    answer["stop_reason"] = StopReason(branch, !message.calls.empty());
    answer["stop_sequence"] = StopSequence(branch);
    answer["usage"] = Usage(prompts);
    AddDetails(prompts, &answer);
    return Dump(answer);
  }

  std::string Begin(uint32_t, const std::string&, const engine::RequestReport* started) override {
    Ordered message = Envelope();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    uint64_t prompt = 0, cached = 0;
    if (started != nullptr) {
      prompt = started->prompt_tokens;
      cached = started->cached_tokens;
    }
    message["usage"] = Usage(prompt, cached, prompt - cached, 0);
    return Event("message_start", {{"message", std::move(message)}});
  }

  std::string Finish(uint32_t, const engine::BranchResult& branch, uint32_t calls,
                     const std::vector<PromptOutcome>*) override {
    delta_ = {{"stop_reason", StopReason(branch, calls > 0)},
              {"stop_sequence", StopSequence(branch)}};
    return Close(/*complete=*/true);
  }

  std::string End(const std::vector<PromptOutcome>& prompts) override {
    Ordered last = {{"delta", delta_}, {"usage", Usage(prompts)}};
    AddDetails(prompts, &last);
    return Event("message_delta", std::move(last)) + Event("message_stop", Ordered::object());
  }

  std::string StreamError(const ApiError& error) override {
    return "event: error\ndata: " + MessagesErrorBody(error) + "\n\n";
  }
  HttpResponse ErrorAnswer(const ApiError& error) const override {
    return MessagesErrorResponse(error);
  }

 private:
  Ordered Envelope() const {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", Ordered::array()}};
  }

  Ordered Usage(uint64_t prompt, uint64_t cached, uint64_t computed, uint64_t generated) const {
    const uint64_t created = head_.cache_told ? computed : 0;
    return {{"input_tokens", prompt - std::min(prompt, cached + created)},
            {"cache_creation_input_tokens", created},
            {"cache_read_input_tokens", cached},
            {"output_tokens", generated}};
  }
  Ordered Usage(const std::vector<PromptOutcome>& prompts) const {
    const AnswerTotals totals = TotalsOf(prompts);
    return Usage(totals.prompt, totals.cached,
                 totals.prompt - std::min(totals.prompt, totals.cached), totals.generated);
  }
  std::string CallId(uint32_t call) const {
    return "toolu_" + Stem(head_.id) + "_" + std::to_string(call);
  }

  static std::string Event(const char* type, Ordered fields) {
    Ordered event = {{"type", type}};
    event.update(fields);
    return EventText(event);
  }

  std::string TellOpen(const MessagePart& part) override {
    return Event("content_block_start", {{"index", block_}, {"content_block", Empty(part)}});
  }
  std::string TellDelta(const std::string& text) override {
    return Event("content_block_delta", {{"index", block_}, {"delta", Delta(text)}});
  }
  std::string TellClose(bool) override {
    return Event("content_block_stop", {{"index", block_++}});
  }
  std::string EndCall() override { return Close(/*complete=*/true); }

  Ordered Empty(const MessagePart& part) const {
    if (open_ == Block::kReasoning)
      return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    if (open_ == Block::kText) return {{"type", "text"}, {"text", ""}};
    return {{"type", "tool_use"},
            {"id", CallId(part.call)},
            {"name", part.text},
            {"input", Ordered::object()}};
  }
  Ordered Delta(const std::string& text) const {
    if (open_ == Block::kReasoning) return {{"type", "thinking_delta"}, {"thinking", text}};
    if (open_ == Block::kText) return {{"type", "text_delta"}, {"text", text}};
    return {{"type", "input_json_delta"}, {"partial_json", text}};
  }

  const MessagesHead head_;
  uint32_t block_ = 0;
  Ordered delta_;
};

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string MessagesErrorBody(const ApiError& error) {
  return Dump({{"type", "error"},
               {"error", {{"type", ErrorType(error.status)}, {"message", error.message}}}});
}

HttpResponse MessagesErrorResponse(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);  // for the headers
  response.body = MessagesErrorBody(error);
  return response;
}

std::unique_ptr<AnswerStyle> MakeMessagesStyle(MessagesHead head) {
  return std::make_unique<MessagesStyle>(std::move(head));
}

}  // namespace kvlink::server
