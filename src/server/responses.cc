#include "server/responses.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/fields.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

std::string Dump(const Ordered& json) {
  return json.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

bool Given(const Ordered& object, const char* key) {
  return object.contains(key) && !object[key].is_null();
}

// --- the request ---

class Translator {
 public:
  Translator(const Ordered& request, const StoredConversation& stored)
      : request_(request), stored_(stored) {}

  std::optional<ApiError> Run(ResponsesTranslation* out) {
    Ordered chat = Ordered::object();
    for (const char* same :
         {"model", "temperature", "top_p", "top_k", "stream", "seed", "kvlink", "cache_salt",
          "parallel_tool_calls", "deadline_ms", "timeout", "deterministic", "reasoning_format"}) {
      if (Given(request_, same)) chat[same] = request_[same];
    }
    if (Given(request_, "max_output_tokens"))
      chat["max_completion_tokens"] = request_["max_output_tokens"];
    if (Given(request_, "background") && request_["background"] != false)
      Fail("background", "background is not supported");
    if (Given(request_, "conversation"))
      Fail("conversation", "conversation is not supported; use previous_response_id");
    if (Given(request_, "store")) {
      if (!request_["store"].is_boolean()) Fail("store", "store must be true or false");
      out->store = request_["store"] == true;
    }
    Ordered messages = Previous(out);
    Input(&messages);
    out->messages = Dump(messages);
    chat["messages"] = Ordered::array();
    Instructions(&chat["messages"]);
    for (Ordered& message : messages) chat["messages"].push_back(std::move(message));
    Text(&chat);
    Tools(&chat);
    if (error_) return error_;
    out->body = Dump(chat);
    out->echo = Echo(*out);
    return std::nullopt;
  }

 private:
  void Fail(const std::string& param, const std::string& message) {
    if (!error_) error_ = ApiError{400, message, param, ""};
  }

  Ordered Previous(ResponsesTranslation* out) {
    if (!Given(request_, "previous_response_id")) return Ordered::array();
    const Ordered& id = request_["previous_response_id"];
    if (!id.is_string()) {
      Fail("previous_response_id", "previous_response_id must be a string, got " + Seen(Json(id)));
      return Ordered::array();
    }
    out->previous = id.get<std::string>();
    const std::optional<std::string> stored = stored_(out->previous);
    if (stored) return Ordered::parse(*stored);
    if (!error_) {
      error_ = ApiError{404,
                        "there is no response " + out->previous.substr(0, 100) +
                            " here (any more): it was not stored, or pushed out by newer ones",
                        "previous_response_id", "previous_response_not_found"};
    }
    return Ordered::array();
  }

  void Instructions(Ordered* messages) {
    if (!Given(request_, "instructions")) return;
    if (!request_["instructions"].is_string()) {
      return Fail("instructions",
                  "instructions must be a string, got " + Seen(Json(request_["instructions"])));
    }
    messages->push_back({{"role", "system"}, {"content", request_["instructions"]}});
  }

  void Input(Ordered* messages) {
    if (!Given(request_, "input")) return Fail("input", "input is missing");
    const Ordered& input = request_["input"];
    if (input.is_string()) {
      messages->push_back({{"role", "user"}, {"content", input}});
      return;
    }
    if (!input.is_array() || input.empty())
      return Fail("input", "input must be a string or an array of items, got " + Seen(Json(input)));
    for (size_t i = 0; i < input.size() && !error_; ++i) {
      Item(input[i], "input[" + std::to_string(i) + "]", messages);
    }
  }

  void Item(const Ordered& item, const std::string& at, Ordered* messages) {
    if (!item.is_object()) return Fail(at, at + " must be an object, got " + Seen(Json(item)));
    const Ordered type = item.value("type", Ordered("message"));
    if (type == "message") {
      const Ordered role = item.value("role", Ordered());
      if (!role.is_string()) return Fail(at + ".role", at + ".role is missing");
      if (!item.contains("content")) return Fail(at + ".content", at + ".content is missing");
      messages->push_back({{"role", role}, {"content", Content(item["content"], at + ".content")}});
    } else if (type == "function_call") {
      if (!item.value("name", Ordered()).is_string() ||
          !item.value("arguments", Ordered()).is_string())
        return Fail(at, at + " must have a name and arguments, both strings");
      AddCall({{"id", item.value("call_id", Ordered(""))},
               {"type", "function"},
               {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}},
              messages);
    } else if (type == "function_call_output") {
      if (!item.contains("output")) return Fail(at + ".output", at + ".output is missing");
      messages->push_back({{"role", "tool"},
                           {"tool_call_id", item.value("call_id", Ordered(""))},
                           {"content", Content(item["output"], at + ".output")}});
    } else if (type != "reasoning") {  // of earlier turns: models are not shown it
      Fail(at + ".type", at + ": items of this type are not supported here: " + Seen(Json(item)));
    }
  }

  // Calls in a row belong to one message, after the text that came with them.
  static void AddCall(Ordered call, Ordered* messages) {
    if (messages->empty() || (*messages).back()["role"] != "assistant")
      messages->push_back({{"role", "assistant"}, {"content", ""}});
    Ordered& message = messages->back();
    if (!message.contains("tool_calls")) message["tool_calls"] = Ordered::array();
    message["tool_calls"].push_back(std::move(call));
  }

  std::string Content(const Ordered& content, const std::string& at) {
    if (content.is_string()) return content.get<std::string>();
    std::string text;
    if (!content.is_array()) {
      Fail(at, at + " must be a string or an array of parts, got " + Seen(Json(content)));
      return text;
    }
    for (size_t i = 0; i < content.size(); ++i) {
      const Ordered& part = content[i];
      const Ordered type = part.is_object() ? part.value("type", Ordered()) : Ordered();
      const bool known = type == "input_text" || type == "output_text" || type == "text";
      if (!known || !part.value("text", Ordered()).is_string()) {
        Fail(at, at + "[" + std::to_string(i) + "]: only parts of text are supported here, got " +
                     Seen(Json(part)));
        return text;
      }
      text += part["text"].get<std::string>();
    }
    return text;
  }

  void Text(Ordered* chat) {
    if (!Given(request_, "text")) return;
    const Ordered& text = request_["text"];
    if (!text.is_object()) return Fail("text", "text must be an object, got " + Seen(Json(text)));
    if (!Given(text, "format")) return;
    const Ordered& format = text["format"];
    if (!format.is_object())
      return Fail("text.format", "text.format must be an object, got " + Seen(Json(format)));
    if (format.value("type", Ordered()) == "json_schema") {
      (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", format}};
    } else {
      (*chat)["response_format"] = format;
    }
  }

  void Tools(Ordered* chat) {
    if (Given(request_, "tools")) {
      const Ordered& tools = request_["tools"];
      if (!tools.is_array())
        return Fail("tools", "tools must be an array, got " + Seen(Json(tools)));
      (*chat)["tools"] = Ordered::array();
      for (size_t i = 0; i < tools.size(); ++i) {
        const std::string at = "tools[" + std::to_string(i) + "]";
        if (!tools[i].is_object() || tools[i].value("type", Ordered()) != "function") {
          return Fail(at, at + ": only tools of type \"function\" are supported here, got " +
                              Seen(Json(tools[i])));
        }
        Ordered function = tools[i];
        function.erase("type");
        (*chat)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
      }
    }
    if (!Given(request_, "tool_choice")) return;
    const Ordered& choice = request_["tool_choice"];
    if (choice.is_object() && choice.value("type", Ordered()) == "function") {
      (*chat)["tool_choice"] = {{"type", "function"},
                                {"function", {{"name", choice.value("name", Ordered())}}}};
    } else {
      (*chat)["tool_choice"] = choice;
    }
  }

  // With the defaults that OpenAI's clients expect to find.
  std::string Echo(const ResponsesTranslation& out) const {
    const auto given = [&](const char* key, Ordered fallback) {
      return Given(request_, key) ? request_[key] : fallback;
    };
    return Dump(
        {{"instructions", given("instructions", nullptr)},
         {"max_output_tokens", given("max_output_tokens", nullptr)},
         {"metadata", given("metadata", Ordered::object())},
         {"parallel_tool_calls", given("parallel_tool_calls", true)},
         {"previous_response_id", out.previous.empty() ? Ordered(nullptr) : Ordered(out.previous)},
         {"store", out.store},
         {"temperature", given("temperature", 1.0)},
         {"text", given("text", {{"format", {{"type", "text"}}}})},
         {"tool_choice", given("tool_choice", "auto")},
         {"tools", given("tools", Ordered::array())},
         {"top_p", given("top_p", 1.0)},
         {"truncation", "disabled"},
         {"reasoning", given("reasoning", nullptr)},
         {"user", given("user", nullptr)}});
  }

  const Ordered& request_;
  const StoredConversation& stored_;
  std::optional<ApiError> error_;
};

// --- the answer ---

class ResponsesStyle : public AnswerStyle {
 public:
  explicit ResponsesStyle(ResponsesHead head) : head_(std::move(head)) {}

  std::string Whole(const std::vector<PromptOutcome>& prompts) override {
    const PromptOutcome& outcome = prompts.front();
    const engine::BranchResult& branch = outcome.report->branches.front();
    ParsedMessage message;
    message.content = branch.text;
    if (!outcome.messages.empty()) message = outcome.messages.front();
    const char* status = StatusOf(branch);
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

  std::string Token(uint32_t, const engine::TokenEvent&, const std::vector<MessagePart>& parts,
                    size_t*) override {
    std::string out;
    for (const MessagePart& part : parts) out += Part(part);
    return out;
  }

  std::string Finish(uint32_t, const engine::BranchResult& branch, uint32_t calls,
                     const std::vector<PromptOutcome>*) override {
    std::string out = Close(StatusOf(branch));
    if (items_.empty() || (calls == 0 && items_.back()["type"] == "reasoning")) {
      out += Open(Kind::kMessage, "");  // an empty answer is one, too
      out += Close(StatusOf(branch));
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
  enum class Kind : uint8_t { kNone, kReasoning, kMessage, kCall };

  static const char* StatusOf(const engine::BranchResult& branch) {
    return branch.reason == engine::FinishReason::kLength ? "incomplete" : "completed";
  }
  std::string Suffix() const { return head_.id.substr(head_.id.find('_') + 1); }
  std::string ItemId(const char* prefix) const {
    return prefix + Suffix() + "_" + std::to_string(items_.size());
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
    const engine::BranchResult& branch = prompts.front().report->branches.front();
    const AnswerTotals totals = TotalsOf(prompts);
    Ordered response = Response(StatusOf(branch));
    if (branch.reason == engine::FinishReason::kLength)
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response["usage"] = {{"input_tokens", totals.prompt},
                         {"input_tokens_details", {{"cached_tokens", totals.cached}}},
                         {"output_tokens", totals.generated},
                         {"output_tokens_details", {{"reasoning_tokens", 0}}},
                         {"total_tokens", totals.prompt + totals.generated}};
    response["timings"] = Ordered::parse(TimingsText(prompts));
    response["kvlink"] = Ordered::parse(ReuseText(prompts));
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
    return std::string("event: ") + type + "\ndata: " + Dump(event) + "\n\n";
  }
  // Fields that say where an event belongs.
  Ordered At(const std::string& id) const {
    return {{"item_id", id}, {"output_index", items_.size()}};
  }

  std::string Open(Kind kind, const std::string& name) {
    open_ = kind;
    text_.clear();
    name_ = name;
    Ordered item = kind == Kind::kReasoning ? ReasoningItem("")
                   : kind == Kind::kMessage ? MessageItem("", "in_progress")
                                            : CallItem(name, "", "in_progress");
    if (kind != Kind::kCall) item["content"] = Ordered::array();
    item["status"] = "in_progress";
    const std::string id = item["id"].get<std::string>();
    std::string out =
        Event("response.output_item.added", {{"output_index", items_.size()}, {"item", item}});
    if (kind == Kind::kMessage) {
      Ordered part = At(id);
      part["content_index"] = 0;
      part["part"] = TextPart("");
      out += Event("response.content_part.added", std::move(part));
    }
    return out;
  }

  std::string Close(const char* status) {
    if (open_ == Kind::kNone) return "";
    Ordered item = open_ == Kind::kReasoning ? ReasoningItem(text_)
                   : open_ == Kind::kMessage ? MessageItem(text_, status)
                                             : CallItem(name_, text_, status);
    Ordered done = At(item["id"].get<std::string>());
    std::string out;
    if (open_ == Kind::kCall) {
      done["name"] = name_;
      done["arguments"] = text_;
      out = Event("response.function_call_arguments.done", std::move(done));
    } else {
      done["content_index"] = 0;
      Ordered text = done;
      text["text"] = text_;
      if (open_ == Kind::kReasoning) {
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
    open_ = Kind::kNone;
    return out;
  }

  std::string Delta(const char* type, const char* id_prefix, const std::string& delta) {
    text_ += delta;
    Ordered fields = At(ItemId(id_prefix));
    if (open_ != Kind::kCall) fields["content_index"] = 0;
    fields["delta"] = delta;
    if (open_ == Kind::kMessage) fields["logprobs"] = Ordered::array();
    return Event(type, std::move(fields));
  }

  std::string Part(const MessagePart& part) {
    std::string out;
    const auto open = [&](Kind kind, const std::string& name) {
      out += Close("completed");
      out += Open(kind, name);
    };
    switch (part.kind) {
      case MessagePart::Kind::kReasoning:
        if (open_ != Kind::kReasoning) open(Kind::kReasoning, "");
        return out += Delta("response.reasoning_text.delta", "rs_", part.text);
      case MessagePart::Kind::kContent:
        if (open_ != Kind::kMessage) open(Kind::kMessage, "");
        return out += Delta("response.output_text.delta", "msg_", part.text);
      case MessagePart::Kind::kCallBegin:
        open(Kind::kCall, part.text);
        return out;
      case MessagePart::Kind::kCallArguments:
        return Delta("response.function_call_arguments.delta", "fc_", part.text);
      case MessagePart::Kind::kCallEnd:
        // The status of the last one is known at the end only.
        return out;
    }
    return out;
  }

  const ResponsesHead head_;
  Ordered items_ = Ordered::array();
  Kind open_ = Kind::kNone;
  std::string text_, name_;  // of the item that is being told
  uint64_t sequence_ = 0;
};

}  // namespace

Parsed<ResponsesTranslation> TranslateResponsesRequest(const std::string& body,
                                                       const StoredConversation& stored) {
  Json json;
  if (auto error = ParseObject(body, &json)) return *error;
  const Ordered ordered = InOrder(body, json,
                                  {"input",
                                   "tools",
                                   "text",
                                   "instructions",
                                   "model",
                                   "previous_response_id",
                                   "store",
                                   "background",
                                   "conversation",
                                   "max_output_tokens",
                                   "tool_choice",
                                   "parallel_tool_calls",
                                   "temperature",
                                   "top_p",
                                   "top_k",
                                   "stream",
                                   "seed",
                                   "kvlink",
                                   "cache_salt",
                                   "deadline_ms",
                                   "timeout",
                                   "deterministic",
                                   "reasoning_format",
                                   "metadata",
                                   "reasoning",
                                   "user"});
  ResponsesTranslation out;
  if (auto error = Translator(ordered, stored).Run(&out)) return *error;
  return out;
}

std::unique_ptr<AnswerStyle> MakeResponsesStyle(ResponsesHead head) {
  return std::make_unique<ResponsesStyle>(std::move(head));
}

}  // namespace kvlink::server
