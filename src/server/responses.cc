// How an answer of /v1/responses is told.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/block_style.h"
#include "server/dump.h"
#include "server/responses.h"

namespace kvlink::server {
namespace {

using Ordered = nlohmann::ordered_json;

class ResponsesStyle : public BlockStyle {
 public:
  explicit ResponsesStyle(ResponsesHead head) : head_(std::move(head)) {}

  std::string Whole(const std::vector<PromptOutcome>& prompts) override {
    const ParsedMessage message = MessageOf(prompts);
    const char* status = StatusOf(BranchOf(prompts));
    if (!message.reasoning.empty()) AddItem(ReasoningItem(message.reasoning));
    if (!message.content.empty() || message.calls.empty())
      AddItem(MessageItem(message.content, status));
    for (const ToolCall& call : message.calls) AddItem(CallItem(call.name, call.arguments, status));
    return Dump(Finished(prompts));
  }

  std::string Begin(uint32_t, const std::string&, const engine::RequestReport*) override {
    const Ordered response = Response("in_progress");
    std::string out = Event("response.created", {{"response", response}});  // in order: numbered
    return out += Event("response.in_progress", {{"response", response}});
  }

  std::string Finish(uint32_t, const engine::BranchResult& branch, uint32_t calls,
                     const std::vector<PromptOutcome>*) override {
    std::string out = Close(IsComplete(branch));
    if (items_.empty() || (calls == 0 && items_.back()["type"] == "reasoning")) {
      out += Open(Block::kText, {});  // an empty answer is one, too
      out += Close(IsComplete(branch));
    }
    return out;
  }

  std::string End(const std::vector<PromptOutcome>& prompts) override {
    const Ordered response = Finished(prompts);
    const bool whole = response["status"] == "completed";
    return Event(whole ? "response.completed" : "response.incomplete", {{"response", response}});
  }

  std::string StreamError(const ApiError& error) override {
    Ordered response = Response("failed");
    response["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                         {"message", error.message}};
    return Event("response.failed", {{"response", std::move(response)}});
  }

 private:
  static bool IsComplete(const engine::BranchResult& branch) {
    return branch.reason != engine::FinishReason::kLength;
  }
  static const char* StatusOf(bool complete) { return complete ? "completed" : "incomplete"; }
  static const char* StatusOf(const engine::BranchResult& branch) {
    return StatusOf(IsComplete(branch));
  }
  std::string ItemId(const char* prefix) const {
    return prefix + Stem(head_.id) + "_" + std::to_string(items_.size());
  }

  Ordered ReasoningItem(const std::string& text) const {
    return {{"id", ItemId("rs_")},
            {"type", "reasoning"},
            {"summary", Ordered::array()},
            {"content", Ordered::array({{{"type", "reasoning_text"}, {"text", text}}})},
            {"status", "completed"}};
  }
  Ordered MessageItem(const std::string& text, const char* status) const {
    return {{"id", ItemId("msg_")},
            {"type", "message"},
            {"role", "assistant"},
            {"status", status},
            {"content", Ordered::array({TextPart(text)})}};
  }
  static Ordered TextPart(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Ordered::array()},
            {"logprobs", Ordered::array()}};
  }
  Ordered CallItem(const std::string& name, const std::string& arguments,
                   const char* status) const {
    return {{"id", ItemId("fc_")}, {"type", "function_call"}, {"call_id", ItemId("call_")},
            {"name", name},        {"arguments", arguments},  {"status", status}};
  }
  void AddItem(Ordered item) { items_.push_back(std::move(item)); }

  Ordered Response(const char* status) const {
    Ordered response = {{"id", head_.id},
                        {"object", "response"},
                        {"created_at", head_.created},
                        {"status", status},
                        {"model", head_.model},
                        {"error", nullptr},
                        {"incomplete_details", nullptr},
                        {"output", items_},
                        {"usage", nullptr}};
    response.update(Ordered::parse(head_.echo));
    return response;
  }

  Ordered Finished(const std::vector<PromptOutcome>& prompts) {
    const engine::BranchResult& branch = BranchOf(prompts);
    const AnswerTotals totals = TotalsOf(prompts);
    Ordered response = Response(StatusOf(branch));
    if (branch.reason == engine::FinishReason::kLength)
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response["usage"] = {{"input_tokens", totals.prompt},
                         {"input_tokens_details", {{"cached_tokens", totals.cached}}},
                         {"output_tokens", totals.generated},
                         {"output_tokens_details", {{"reasoning_tokens", 0}}},
                         {"total_tokens", totals.prompt + totals.generated}};
    AddDetails(prompts, &response);
    if (head_.keep) head_.keep(Dump(response), Dump(Conversation()));
    return response;
  }

  Ordered Conversation() const {
    Ordered messages = Ordered::parse(head_.messages);
    Ordered answer = {{"role", "assistant"}, {"content", ""}};
    Ordered calls = Ordered::array();
    for (const Ordered& item : items_) {
      if (item["type"] == "message") answer["content"] = item["content"][0]["text"];
      if (item["type"] != "function_call") continue;
      calls.push_back({{"id", item["call_id"]},
                       {"type", "function"},
                       {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
    }
    if (!calls.empty()) answer["tool_calls"] = std::move(calls);
    messages.push_back(std::move(answer));
    return messages;
  }

  // --- events ---

  std::string Event(const char* type, Ordered fields) {
    Ordered event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    return EventText(event);
  }
  // Fields that say where an event belongs.
  Ordered At(const std::string& id) const {
    return {{"item_id", id}, {"output_index", items_.size()}};
  }

  std::string TellOpen(const MessagePart& part) override {
    text_.clear();
    name_ = open_ == Block::kCall ? part.text : "";
    Ordered item = Item("in_progress");
    if (open_ != Block::kCall) item["content"] = Ordered::array();
    item["status"] = "in_progress";
    const std::string id = item["id"].get<std::string>();
    std::string out =
        Event("response.output_item.added", {{"output_index", items_.size()}, {"item", item}});
    if (open_ == Block::kText) {
      Ordered first = At(id);
      first["content_index"] = 0;
      first["part"] = TextPart("");
      out += Event("response.content_part.added", std::move(first));
    }
    return out;
  }

  std::string TellClose(bool complete) override {
    Ordered item = Item(StatusOf(complete));
    Ordered done = At(item["id"].get<std::string>());
    std::string out;
    if (open_ == Block::kCall) {
      done["name"] = name_;
      done["arguments"] = text_;
      out = Event("response.function_call_arguments.done", std::move(done));
    } else {
      done["content_index"] = 0;
      Ordered text = done;
      text["text"] = text_;
      if (open_ == Block::kReasoning) {
        out = Event("response.reasoning_text.done", std::move(text));
      } else {
        text["logprobs"] = Ordered::array();
        out = Event("response.output_text.done", std::move(text));
        done["part"] = TextPart(text_);
        out += Event("response.content_part.done", std::move(done));
      }
    }
    out += Event("response.output_item.done", {{"output_index", items_.size()}, {"item", item}});
    AddItem(std::move(item));
    return out;
  }

  std::string TellDelta(const std::string& delta) override {
    text_ += delta;
    const bool call = open_ == Block::kCall, text = open_ == Block::kText;
    Ordered fields = At(ItemId(call ? "fc_" : text ? "msg_" : "rs_"));
    if (!call) fields["content_index"] = 0;
    fields["delta"] = delta;
    if (text) fields["logprobs"] = Ordered::array();
    return Event(call   ? "response.function_call_arguments.delta"
                 : text ? "response.output_text.delta"
                        : "response.reasoning_text.delta",
                 std::move(fields));
  }

  // The item that is being told, as far as it has come.
  Ordered Item(const char* status) const {
    return open_ == Block::kReasoning ? ReasoningItem(text_)
           : open_ == Block::kText    ? MessageItem(text_, status)
                                      : CallItem(name_, text_, status);
  }

  const ResponsesHead head_;
  Ordered items_ = Ordered::array();
  std::string text_, name_;  // of the item that is being told
  uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<AnswerStyle> MakeResponsesStyle(ResponsesHead head) {
  return std::make_unique<ResponsesStyle>(std::move(head));
}

}  // namespace kvlink::server
