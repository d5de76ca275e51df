#include "cli/chat_conversation.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvlink::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

void Conversation::SetSystem(const std::string& text) {
  if (HasSystem()) messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", text, ""});
}

std::string Conversation::System() const { return HasSystem() ? messages_.front().content : ""; }

void Conversation::Ask(const std::string& text) { messages_.push_back({"user", text, ""}); }

void Conversation::Answered(const std::string& text) {
  if (text.empty()) {
    messages_.pop_back();
  } else {
    messages_.push_back({"assistant", text, ""});
  }
}

void Conversation::Reset() { messages_.resize(HasSystem() ? 1 : 0); }

size_t Conversation::turns() const { return (messages_.size() - (HasSystem() ? 1 : 0)) / 2; }

std::string Conversation::ToJson() const {
  Json json = {{"messages", Json::array()}};
  for (const model::ChatMessage& message : messages_) {
    json["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Conversation> Conversation::FromJson(const std::string& text, const std::string& where) {
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, where + ": " + what);
  };
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return bad("is not JSON");
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    return bad("has no array \"messages\"");
  }
  Conversation conversation;
  std::vector<model::ChatMessage>& messages = conversation.messages_;
  size_t index = 0;
  for (const Json& message : json["messages"]) {
    const std::string name = "messages[" + std::to_string(index++) + "]";
    const auto is_text = [&](const char* key) {
      return message.is_object() && message.contains(key) && message[key].is_string();
    };
    if (!is_text("role") || !is_text("content")) {
      return bad(name + " must have \"role\" and \"content\", as strings");
    }
    const std::string role = message["role"].get<std::string>();
    const bool first = messages.empty();
    const bool after_question = !first && messages.back().role == "user";
    if (role == "system" ? !first : role != (after_question ? "assistant" : "user")) {
      return bad(name + " has the role '" + role + "', where " +
                 (after_question ? "'assistant'" : "'user'") + " is next");
    }
    messages.push_back({role, message["content"].get<std::string>(), ""});
  }
  if (!messages.empty() && messages.back().role == "user") {
    return bad("ends with a question; the answer is missing");
  }
  return conversation;
}

std::string PrintableText(std::string_view text) {
  std::string printable;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      printable += kReplacement;
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F
      printable += kReplacement;
      ++i;
    } else {
      printable += text[i];
    }
  }
  return printable;
}

}  // namespace kvlink::cli
