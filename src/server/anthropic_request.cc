// What a request to /v1/messages becomes.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "server/anthropic.h"
#include "server/chat_translator.h"
#include "server/dump.h"

namespace kvlink::server {
namespace {

using Ordered = nlohmann::ordered_json;

class Translator : public ChatTranslator {
 public:
  Translator(const Ordered& request, bool generates)
      : ChatTranslator(request), generates_(generates) {}

  std::optional<ApiError> Run(ChatTranslation* out) {
    Copy({"model", "temperature", "top_p", "top_k", "stream", "kvlink", "cache_salt", "seed",
          "deadline_ms", "timeout", "deterministic", "reasoning_format"});
    if (generates_ && !request_.contains("max_tokens")) Fail("max_tokens", "max_tokens is missing");
    if (request_.contains("max_tokens")) chat_["max_completion_tokens"] = request_["max_tokens"];
    if (request_.contains("stop_sequences")) chat_["stop"] = request_["stop_sequences"];
    if (request_.contains("stop_sequences") && !request_["stop_sequences"].is_array())
      Fail("stop_sequences", "stop_sequences must be an array of strings");
    chat_["messages"] = Ordered::array();
    if (request_.contains("system")) System(request_["system"], &chat_["messages"]);
    Messages(&chat_["messages"]);
    Tools([&](const Ordered& tool, const std::string& at) { return Described(tool, at); });
    ToolChoice();
    if (error_) return error_;
    out->body = Dump(chat_);
    out->wants_cache_told = cache_control_;
    return std::nullopt;
  }

 private:
  void NoteCacheControl(const Ordered& block) { cache_control_ |= Given(block, "cache_control"); }

  // Text, or blocks of text.
  std::string Text(const Ordered& value, const std::string& path) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) {
      FailMust(path, "a string or an array of blocks", value);
      return "";
    }
    std::string text;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string at = path + "[" + std::to_string(i) + "]";
      const Ordered& block = value[i];
      if (!block.is_object() || block.value("type", Ordered("")) != "text" ||
          !block.value("text", Ordered()).is_string()) {
        Fail(at, at + ": only blocks of type \"text\" are supported here, got " + Seen(block));
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
      if (!message.is_object()) return FailMust(at, "an object", message);
      const Ordered role = message.value("role", Ordered());
      if (role != "user" && role != "assistant" && role != "system") {
        return FailMust(at + ".role", "\"user\" or \"assistant\"", role);
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
      if (!block.is_object()) return FailMust(at, "an object", block);
      NoteCacheControl(block);
      const Ordered type = block.value("type", Ordered());
      if (type == "text" && block.value("text", Ordered()).is_string()) {
        text += (has_text ? "\n" : "") + block["text"].get<std::string>();
        has_text = true;
      } else if (type == "tool_use" && role == "assistant") {
        if (!block.value("name", Ordered()).is_string() ||
            !block.value("input", Ordered()).is_object())
          return Fail(at, at + " must have a name and an input object, got " + Seen(block));
        calls.push_back(
            Call(block.value("id", Ordered("")), block["name"], Arguments(block["input"])));
      } else if (type == "tool_result" && role == "user") {
        messages->push_back(
            {{"role", "tool"},
             {"tool_call_id", block.value("tool_use_id", Ordered(""))},
             {"content", Given(block, "content") ? Text(block["content"], at + ".content") : ""}});
      } else if (type != "thinking" && type != "redacted_thinking") {
        return Fail(at + ".type",
                    at + ": blocks of this type are not supported here: " + Seen(block));
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
  static std::string Arguments(const Ordered& value) {
    if (!value.is_structured()) return Dump(value);
    std::string text = value.is_object() ? "{" : "[";
    bool first = true;
    for (const auto& [key, element] : value.items()) {
      text += first ? "" : ", ";
      first = false;
      if (value.is_object()) text += Ordered(key).dump() + ": ";
      text += Arguments(element);
    }
    return text + (value.is_object() ? "}" : "]");
  }

  Ordered Described(const Ordered& tool, const std::string& at) {
    if (!tool.is_object() || !tool.value("name", Ordered()).is_string() ||
        (Given(tool, "type") && tool["type"] != "custom")) {
      FailMust(at, "{\"name\", \"description\", \"input_schema\"}", tool);
      return {};
    }
    NoteCacheControl(tool);
    Ordered function = {{"name", tool["name"]}};
    if (tool.contains("description")) function["description"] = tool["description"];
    if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
    return function;
  }

  void ToolChoice() {
    if (!Given("tool_choice")) return;
    const Ordered& choice = request_["tool_choice"];
    const Ordered type = choice.is_object() ? choice.value("type", Ordered()) : Ordered();
    if (type == "auto" || type == "none") {
      chat_["tool_choice"] = type;
    } else if (type == "any") {
      chat_["tool_choice"] = "required";
    } else if (type == "tool") {
      chat_["tool_choice"] = Function({{"name", choice.value("name", Ordered())}});
    } else {
      Fail("tool_choice",
           "tool_choice.type must be \"auto\", \"any\", \"tool\" or \"none\", got " + Seen(choice));
    }
    if (choice.is_object() && choice.value("disable_parallel_tool_use", Ordered(false)) == true)
      chat_["parallel_tool_calls"] = false;
  }

  const bool generates_;
  bool cache_control_ = false;
};

}  // namespace

Parsed<ChatTranslation> TranslateMessagesRequest(const std::string& body, bool generates) {
  nlohmann::json json;
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

}  // namespace kvlink::server
