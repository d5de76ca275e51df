#include "server/anthropic.h"

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

// --- the request ---

class Translator {
 public:
  Translator(const Ordered& request, bool generates) : request_(request), generates_(generates) {}

  std::optional<ApiError> Run(ChatTranslation* out) {
    Ordered chat = Ordered::object();
    for (const char* same :
         {"model", "temperature", "top_p", "top_k", "stream", "kvlink", "cache_salt", "seed",
          "deadline_ms", "timeout", "deterministic", "reasoning_format"}) {
      if (request_.contains(same)) chat[same] = request_[same];
    }
    if (generates_ && !request_.contains("max_tokens")) Fail("max_tokens", "max_tokens is missing");
    if (request_.contains("max_tokens")) chat["max_completion_tokens"] = request_["max_tokens"];
    if (request_.contains("stop_sequences")) chat["stop"] = request_["stop_sequences"];
    if (request_.contains("stop_sequences") && !request_["stop_sequences"].is_array())
      Fail("stop_sequences", "stop_sequences must be an array of strings");
    chat["messages"] = Ordered::array();
    if (request_.contains("system")) System(request_["system"], &chat["messages"]);
    Messages(&chat["messages"]);
    Tools(&chat);
    if (error_) return error_;
    out->body = Dump(chat);
    out->wants_cache_told = cache_control_;
    return std::nullopt;
  }

 private:
  void Fail(const std::string& param, const std::string& message) {
    if (!error_) error_ = ApiError{400, message, param, ""};
  }
  void NoteCacheControl(const Ordered& block) {
    cache_control_ |= block.contains("cache_control") && !block["cache_control"].is_null();
  }

  // Text, or blocks of text.
  std::string Text(const Ordered& value, const std::string& path) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) {
      Fail(path, path + " must be a string or an array of blocks, got " + Seen(Json(value)));
      return "";
    }
    std::string text;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string at = path + "[" + std::to_string(i) + "]";
      const Ordered& block = value[i];
      if (!block.is_object() || block.value("type", Ordered("")) != "text" ||
          !block.value("text", Ordered()).is_string()) {
        Fail(at,
             at + ": only blocks of type \"text\" are supported here, got " + Seen(Json(block)));
        return "";
      }
      NoteCacheControl(block);
      text += (text.empty() ? "" : "\n") + block["text"].get<std::string>();
    }
    return text;
  }

  void System(const Ordered& system, Ordered* messages) {
    if (system.is_null()) return;
    const std::string text = Text(system, "system");
    if (!text.empty()) messages->push_back({{"role", "system"}, {"content", text}});
  }

  void Messages(Ordered* messages) {
    if (!request_.contains("messages") || !request_["messages"].is_array() ||
        request_["messages"].empty()) {
      return Fail("messages", "messages must be an array that is not empty");
    }
    for (size_t i = 0; i < request_["messages"].size() && !error_; ++i) {
      const Ordered& message = request_["messages"][i];
      const std::string at = "messages[" + std::to_string(i) + "]";
      if (!message.is_object())
        return Fail(at, at + " must be an object, got " + Seen(Json(message)));
      const Ordered role = message.value("role", Ordered());
      if (role != "user" && role != "assistant" && role != "system") {
        return Fail(at + ".role",
                    at + ".role must be \"user\" or \"assistant\", got " + Seen(Json(role)));
      }
      if (!message.contains("content")) return Fail(at + ".content", at + ".content is missing");
      if (message["content"].is_array()) {
        Blocks(role, message["content"], at + ".content", messages);
      } else {
        messages->push_back(
            {{"role", role}, {"content", Text(message["content"], at + ".content")}});
      }
    }
  }

  // Results come first, as tool messages; then the text; calls go with the assistant's text.
  void Blocks(const Ordered& role, const Ordered& blocks, const std::string& path,
              Ordered* messages) {
    std::string text;
    bool has_text = false;
    Ordered calls = Ordered::array();
    for (size_t i = 0; i < blocks.size() && !error_; ++i) {
      const Ordered& block = blocks[i];
      const std::string at = path + "[" + std::to_string(i) + "]";
      if (!block.is_object()) return Fail(at, at + " must be an object, got " + Seen(Json(block)));
      NoteCacheControl(block);
      const Ordered type = block.value("type", Ordered());
      if (type == "text" && block.value("text", Ordered()).is_string()) {
        text += (has_text ? "\n" : "") + block["text"].get<std::string>();
        has_text = true;
      } else if (type == "tool_use" && role == "assistant") {
        if (!block.value("name", Ordered()).is_string() ||
            !block.value("input", Ordered()).is_object())
          return Fail(at, at + " must have a name and an input object, got " + Seen(Json(block)));
        calls.push_back(
            {{"id", block.value("id", Ordered(""))},
             {"type", "function"},
             {"function", {{"name", block["name"]}, {"arguments", Arguments(block["input"])}}}});
      } else if (type == "tool_result" && role == "user") {
        messages->push_back({{"role", "tool"},
                             {"tool_call_id", block.value("tool_use_id", Ordered(""))},
                             {"content", block.contains("content") && !block["content"].is_null()
                                             ? Text(block["content"], at + ".content")
                                             : ""}});
      } else if (type != "thinking" && type != "redacted_thinking") {
        return Fail(at + ".type",
                    at + ": blocks of this type are not supported here: " + Seen(Json(block)));
      }
    }
    if (!has_text && calls.empty()) {
      if (blocks.empty()) messages->push_back({{"role", role}, {"content", ""}});
      return;
    }
    Ordered message = {{"role", role}, {"content", text}};
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages->push_back(std::move(message));
  }

  // As models write them: a space behind commas and colons, so that the text that comes back is
  // mostly the text that was generated. (Anthropic's API shows an object, not the model's text.)
  static std::string Arguments(const Ordered& input) { return Spaced(input); }
  static std::string Spaced(const Ordered& value) {
    if (!value.is_structured()) return Dump(value);
    std::string text = value.is_object() ? "{" : "[";
    bool first = true;
    for (const auto& [key, element] : value.items()) {
      text += first ? "" : ", ";
      first = false;
      if (value.is_object()) text += Ordered(key).dump() + ": ";
      text += Spaced(element);
    }
    return text + (value.is_object() ? "}" : "]");
  }

  void Tools(Ordered* chat) {
    if (request_.contains("tools") && !request_["tools"].is_null()) {
      const Ordered& tools = request_["tools"];
      if (!tools.is_array())
        return Fail("tools", "tools must be an array, got " + Seen(Json(tools)));
      (*chat)["tools"] = Ordered::array();
      for (size_t i = 0; i < tools.size(); ++i) {
        const std::string at = "tools[" + std::to_string(i) + "]";
        const Ordered& tool = tools[i];
        if (!tool.is_object() || !tool.value("name", Ordered()).is_string() ||
            (tool.contains("type") && !tool["type"].is_null() && tool["type"] != "custom")) {
          return Fail(at, at + " must be {\"name\", \"description\", \"input_schema\"}, got " +
                              Seen(Json(tool)));
        }
        NoteCacheControl(tool);
        Ordered function = {{"name", tool["name"]}};
        if (tool.contains("description")) function["description"] = tool["description"];
        if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
        (*chat)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
      }
    }
    if (!request_.contains("tool_choice") || request_["tool_choice"].is_null()) return;
    const Ordered& choice = request_["tool_choice"];
    const Ordered type = choice.is_object() ? choice.value("type", Ordered()) : Ordered();
    if (type == "auto" || type == "none") {
      (*chat)["tool_choice"] = type;
    } else if (type == "any") {
      (*chat)["tool_choice"] = "required";
    } else if (type == "tool") {
      (*chat)["tool_choice"] = {{"type", "function"},
                                {"function", {{"name", choice.value("name", Ordered())}}}};
    } else {
      Fail("tool_choice", "tool_choice.type must be \"auto\", \"any\", \"tool\" or \"none\", got " +
                              Seen(Json(choice)));
    }
    if (choice.is_object() && choice.value("disable_parallel_tool_use", Ordered(false)) == true)
      (*chat)["parallel_tool_calls"] = false;
  }

  const Ordered& request_;
  const bool generates_;
  std::optional<ApiError> error_;
  bool cache_control_ = false;
};

// --- the answer ---

const char* StopReason(const engine::BranchResult& branch, bool called) {
  if (branch.reason == engine::FinishReason::kLength) return "max_tokens";
  if (called) return "tool_use";
  return branch.stop_text.empty() ? "end_turn" : "stop_sequence";
}

Ordered StopSequence(const engine::BranchResult& branch) {
  return branch.stop_text.empty() ? Ordered(nullptr) : Ordered(branch.stop_text);
}

class MessagesStyle : public AnswerStyle {
 public:
  explicit MessagesStyle(MessagesHead head) : head_(std::move(head)) {}

  std::string Whole(const std::vector<PromptOutcome>& prompts) override {
    const PromptOutcome& outcome = prompts.front();
    const engine::BranchResult& branch = outcome.report->branches.front();
    ParsedMessage message;
    message.content = branch.text;
    if (!outcome.messages.empty()) message = outcome.messages.front();
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

  std::string Token(uint32_t, const engine::TokenEvent&, const std::vector<MessagePart>& parts,
                    size_t*) override {
    std::string out;
    for (const MessagePart& part : parts) out += Part(part);
    return out;
  }

  std::string Finish(uint32_t, const engine::BranchResult& branch, uint32_t calls,
                     const std::vector<PromptOutcome>*) override {
    delta_ = {{"stop_reason", StopReason(branch, calls > 0)},
              {"stop_sequence", StopSequence(branch)}};
    return CloseBlock();
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
  static void AddDetails(const std::vector<PromptOutcome>& prompts, Ordered* answer) {
    (*answer)["timings"] = Ordered::parse(TimingsText(prompts));
    (*answer)["kvlink"] = Ordered::parse(ReuseText(prompts));
  }

  std::string CallId(uint32_t call) const {
    return "toolu_" + head_.id.substr(head_.id.find('_') + 1) + "_" + std::to_string(call);
  }

  static std::string Event(const char* type, Ordered fields) {
    Ordered event = {{"type", type}};
    event.update(fields);
    return std::string("event: ") + type + "\ndata: " + Dump(event) + "\n\n";
  }

  std::string OpenBlock(Ordered block) {
    std::string out = CloseBlock();
    open_ = block["type"].get<std::string>();
    return out +
           Event("content_block_start", {{"index", block_}, {"content_block", std::move(block)}});
  }
  std::string CloseBlock() {
    if (open_.empty()) return "";
    open_.clear();
    return Event("content_block_stop", {{"index", block_++}});
  }
  std::string Delta(Ordered delta) const {
    return Event("content_block_delta", {{"index", block_}, {"delta", std::move(delta)}});
  }

  std::string Part(const MessagePart& part) {
    std::string out;
    switch (part.kind) {
      case MessagePart::Kind::kReasoning:
        if (open_ != "thinking")
          out = OpenBlock({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return out + Delta({{"type", "thinking_delta"}, {"thinking", part.text}});
      case MessagePart::Kind::kContent:
        if (open_ != "text") out = OpenBlock({{"type", "text"}, {"text", ""}});
        return out + Delta({{"type", "text_delta"}, {"text", part.text}});
      case MessagePart::Kind::kCallBegin:
        return OpenBlock({{"type", "tool_use"},
                          {"id", CallId(part.call)},
                          {"name", part.text},
                          {"input", Ordered::object()}});
      case MessagePart::Kind::kCallArguments:
        return Delta({{"type", "input_json_delta"}, {"partial_json", part.text}});
      case MessagePart::Kind::kCallEnd:
        return CloseBlock();
    }
    return out;
  }

  const MessagesHead head_;
  std::string open_;  // type of the block that is being told; "": none
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

Parsed<ChatTranslation> TranslateMessagesRequest(const std::string& body, bool generates) {
  Json json;
  if (auto error = ParseObject(body, &json)) return *error;
  ChatTranslation out;
  const Ordered ordered =
      InOrder(body, json,
              {"messages", "tools", "system", "model", "max_tokens", "stop_sequences",
               "tool_choice", "temperature", "top_p", "top_k", "stream", "kvlink", "cache_salt",
               "seed", "deadline_ms", "timeout", "deterministic", "reasoning_format"});
  if (auto error = Translator(ordered, generates).Run(&out)) return *error;
  return out;
}

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
