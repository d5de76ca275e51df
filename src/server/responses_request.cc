// What a request to /v1/responses becomes.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "server/chat_translator.h"
#include "server/dump.h"
#include "server/responses.h"

namespace kvlink::server {
namespace {

using Ordered = nlohmann::ordered_json;

class Translator : public ChatTranslator {
 public:
  Translator(const Ordered& request, const StoredConversation& stored)
      : ChatTranslator(request), stored_(stored) {}

  std::optional<ApiError> Run(ResponsesTranslation* out) {
    Copy({"model", "temperature", "top_p", "top_k", "stream", "seed", "kvlink", "cache_salt",
          "parallel_tool_calls", "deadline_ms", "timeout", "deterministic", "reasoning_format"});
    if (Given("max_output_tokens")) chat_["max_completion_tokens"] = request_["max_output_tokens"];
    if (Given("background") && request_["background"] != false)
      Fail("background", "background is not supported");
    if (Given("conversation"))
      Fail("conversation", "conversation is not supported; use previous_response_id");
    if (Given("store")) {
      if (!request_["store"].is_boolean()) Fail("store", "store must be true or false");
      out->store = request_["store"] == true;
    }
    Ordered messages = Previous(out);
    Input(&messages);
    out->messages = Dump(messages);
    chat_["messages"] = Ordered::array();
    Instructions(&chat_["messages"]);
    for (Ordered& message : messages) chat_["messages"].push_back(std::move(message));
    Text();
    Tools([&](const Ordered& tool, const std::string& at) { return Described(tool, at); });
    ToolChoice();
    if (error_) return error_;
    out->body = Dump(chat_);
    out->echo = Echo(*out);
    return std::nullopt;
  }

 private:
  Ordered Previous(ResponsesTranslation* out) {
    if (!Given("previous_response_id")) return Ordered::array();
    const Ordered& id = request_["previous_response_id"];
    if (!id.is_string()) {
      FailMust("previous_response_id", "a string", id);
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
    if (!Given("instructions")) return;
    if (!request_["instructions"].is_string()) {
      return FailMust("instructions", "a string", request_["instructions"]);
    }
    messages->push_back({{"role", "system"}, {"content", request_["instructions"]}});
  }

  void Input(Ordered* messages) {
    if (!Given("input")) return Fail("input", "input is missing");
    const Ordered& input = request_["input"];
    if (input.is_string()) {
      messages->push_back({{"role", "user"}, {"content", input}});
      return;
    }
    if (!input.is_array() || input.empty())
      return FailMust("input", "a string or an array of items", input);
    for (size_t i = 0; i < input.size() && !error_; ++i) {
      Item(input[i], "input[" + std::to_string(i) + "]", messages);
    }
  }

  void Item(const Ordered& item, const std::string& at, Ordered* messages) {
    if (!item.is_object()) return FailMust(at, "an object", item);
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
      AddCall(Call(item.value("call_id", Ordered("")), item["name"], item["arguments"]), messages);
    } else if (type == "function_call_output") {
      if (!item.contains("output")) return Fail(at + ".output", at + ".output is missing");
      messages->push_back({{"role", "tool"},
                           {"tool_call_id", item.value("call_id", Ordered(""))},
                           {"content", Content(item["output"], at + ".output")}});
    } else if (type != "reasoning") {  // of earlier turns: models are not shown it
      Fail(at + ".type", at + ": items of this type are not supported here: " + Seen(item));
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
      FailMust(at, "a string or an array of parts", content);
      return text;
    }
    for (size_t i = 0; i < content.size(); ++i) {
      const Ordered& part = content[i];
      const Ordered type = part.is_object() ? part.value("type", Ordered()) : Ordered();
      const bool known = type == "input_text" || type == "output_text" || type == "text";
      if (!known || !part.value("text", Ordered()).is_string()) {
        Fail(at, at + "[" + std::to_string(i) + "]: only parts of text are supported here, got " +
                     Seen(part));
        return text;
      }
      text += part["text"].get<std::string>();
    }
    return text;
  }

  void Text() {
    if (!Given("text")) return;
    const Ordered& text = request_["text"];
    if (!text.is_object()) return FailMust("text", "an object", text);
    if (!Given(text, "format")) return;
    const Ordered& format = text["format"];
    if (!format.is_object()) return FailMust("text.format", "an object", format);
    if (format.value("type", Ordered()) == "json_schema") {
      chat_["response_format"] = {{"type", "json_schema"}, {"json_schema", format}};
    } else {
      chat_["response_format"] = format;
    }
  }

  Ordered Described(const Ordered& tool, const std::string& at) {
    if (!tool.is_object() || tool.value("type", Ordered()) != "function") {
      Fail(at, at + ": only tools of type \"function\" are supported here, got " + Seen(tool));
      return {};
    }
    Ordered function = tool;
    function.erase("type");
    return function;
  }

  void ToolChoice() {
    if (!Given("tool_choice")) return;
    const Ordered& choice = request_["tool_choice"];
    if (choice.is_object() && choice.value("type", Ordered()) == "function") {
      chat_["tool_choice"] = Function({{"name", choice.value("name", Ordered())}});
    } else {
      chat_["tool_choice"] = choice;
    }
  }

  // With the defaults that OpenAI's clients expect to find.
  std::string Echo(const ResponsesTranslation& out) const {
    const auto given = [&](const char* key, Ordered fallback) {
      return Given(key) ? request_[key] : fallback;
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

  const StoredConversation& stored_;
};

}  // namespace

Parsed<ResponsesTranslation> TranslateResponsesRequest(const std::string& body,
                                                       const StoredConversation& stored) {
  nlohmann::json json;
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

}  // namespace kvlink::server
