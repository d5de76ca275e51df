#include "server/message_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvlink::server {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kSpace = " \t\r\n";

bool IsSpace(char c) { return kSpace.find(c) != std::string_view::npos; }

size_t SkipSpace(std::string_view text, size_t at) {
  while (at < text.size() && IsSpace(text[at])) ++at;
  return at;
}

// Bytes at the end of `text` that are the beginning of `marker`.
size_t Overlap(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

enum class Match { kYes, kNo, kMore };  // kMore: the text ends too early to say

// Follows `{"name": "...", "arguments": ` through a text that may end anywhere.
class Head {
 public:
  explicit Head(std::string_view text) : text_(text) {}

  Match Run(std::string* name) {
    for (const std::string_view part : {"{", "\"name\"", ":"}) {
      if (const Match match = Literal(part); match != Match::kYes) return match;
    }
    if (const Match match = String(name); match != Match::kYes) return match;
    if (const Match match = Literal(","); match != Match::kYes) return match;
    const size_t key = at_;
    Match match = Literal("\"arguments\"");
    if (match == Match::kNo) {
      at_ = key;
      match = Literal("\"parameters\"");
    }
    if (match != Match::kYes) return match;
    if (match = Literal(":"); match != Match::kYes) return match;
    at_ = SkipSpace(text_, at_);
    if (at_ == text_.size()) return Match::kMore;
    return text_[at_] == '{' ? Match::kYes : Match::kNo;
  }
  size_t at() const { return at_; }

 private:
  Match Literal(std::string_view wanted) {
    at_ = SkipSpace(text_, at_);
    const std::string_view rest = text_.substr(at_, wanted.size());
    if (rest == wanted) {
      at_ += wanted.size();
      return Match::kYes;
    }
    return wanted.substr(0, rest.size()) == rest ? Match::kMore : Match::kNo;
  }
  Match String(std::string* value) {
    at_ = SkipSpace(text_, at_);
    if (at_ == text_.size()) return Match::kMore;
    if (text_[at_] != '"') return Match::kNo;
    for (size_t end = at_ + 1; end < text_.size(); ++end) {
      if (text_[end] == '\\') {
        ++end;
      } else if (text_[end] == '"') {
        const auto json = nlohmann::json::parse(text_.substr(at_, end + 1 - at_), nullptr, false);
        if (!json.is_string()) return Match::kNo;
        *value = json.get<std::string>();
        at_ = end + 1;
        return Match::kYes;
      }
    }
    return Match::kMore;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string ToolSyntax::open() const {
  return kind == Kind::kTagged ? "<tool_call>" : kind == Kind::kList ? "[TOOL_CALLS]" : "{";
}

std::string ToolSyntax::close() const {
  return kind == Kind::kTagged ? "</tool_call>" : kind == Kind::kList ? "]" : "";
}

MessageParser::MessageParser(MessageSyntax syntax)
    : syntax_(std::move(syntax)),
      state_(!syntax_.reasoning       ? State::kContent
             : syntax_.reasoning_open ? State::kReasoning
                                      : State::kStart) {}

std::vector<MessagePart> MessageParser::Append(std::string_view text) {
  text_ += text;
  Run(/*last=*/false);
  return std::exchange(parts_, {});
}

std::vector<MessagePart> MessageParser::Flush() {
  Run(/*last=*/true);
  if (calls_ == 0) Emit(MessagePart::Kind::kContent, pending_);
  pending_.clear();
  return std::exchange(parts_, {});
}

void MessageParser::Run(bool last) {
  bool more = true;
  while (more) {
    switch (state_) {
      case State::kStart:
        more = RunStart(last);
        break;
      case State::kReasoning:
        more = RunReasoning(last);
        break;
      case State::kContent:
        more = RunContent(last);
        break;
      case State::kCall:
        more = RunCall(last);
        break;
      case State::kAfterCall:
        more = RunAfterCall(last);
        break;
    }
  }
}

void MessageParser::Emit(MessagePart::Kind kind, std::string_view text) {
  const bool mark = kind == MessagePart::Kind::kCallBegin || kind == MessagePart::Kind::kCallEnd;
  if (text.empty() && !mark) return;
  const uint32_t call = calls_ > 0 ? calls_ - 1 : 0;
  if (!mark && !parts_.empty() && parts_.back().kind == kind) {
    parts_.back().text += text;
    return;
  }
  parts_.push_back({kind, std::string(text), call});
}

// White space alone is no content when a call follows.
void MessageParser::Content(std::string_view text) {
  if (!content_begun_) {
    const size_t first = SkipSpace(text, 0);
    if (first == text.size()) {
      pending_ += text;
      return;
    }
    content_begun_ = true;
    Emit(MessagePart::Kind::kContent, std::exchange(pending_, ""));
  }
  Emit(MessagePart::Kind::kContent, text);
}

// Each Run... decides what it can and returns whether another state should go on.

bool MessageParser::RunStart(bool last) {
  const size_t first = SkipSpace(text_, 0);
  const std::string_view rest = std::string_view(text_).substr(first);
  if (rest.starts_with(kThink)) {
    text_.erase(0, first + kThink.size());
    state_ = State::kReasoning;
    return true;
  }
  if (!last && kThink.starts_with(rest)) return false;
  state_ = State::kContent;
  return true;
}

bool MessageParser::RunReasoning(bool last) {
  // Line breaks at both ends belong to the markers.
  if (!content_begun_) {
    text_.erase(0, std::min(text_.find_first_not_of("\r\n"), text_.size()));
    if (text_.empty() && !last) return false;
    content_begun_ = !text_.empty();
  }
  const size_t end = text_.find(kEndThink);
  const std::string_view text = text_;
  size_t shown = end != std::string::npos ? end
                 : last                   ? text.size()
                                          : text.size() - Overlap(text, kEndThink);
  const size_t trimmed = text.substr(0, shown).find_last_not_of("\r\n") + 1;
  if (end == std::string::npos && !last) shown = trimmed;
  Emit(MessagePart::Kind::kReasoning, text.substr(0, std::min(trimmed, shown)));
  if (end == std::string::npos) {
    text_.erase(0, last ? text_.size() : shown);
    return false;
  }
  text_.erase(0, end + kEndThink.size());
  content_begun_ = false;
  drop_space_ = true;
  state_ = State::kContent;
  return true;
}

bool MessageParser::RunContent(bool last) {
  if (drop_space_) {  // behind reasoning and calls
    text_.erase(0, SkipSpace(text_, 0));
    if (text_.empty()) return false;
    drop_space_ = false;
  }
  if (!syntax_.tools) {
    Content(std::exchange(text_, ""));
    return false;
  }
  const std::string open = syntax_.tools->open();
  if (syntax_.tools->kind == ToolSyntax::Kind::kBare) {
    const size_t first = SkipSpace(text_, 0);
    if (content_begun_ || (first < text_.size() && text_[first] != '{')) {
      Content(std::exchange(text_, ""));
      return false;
    }
    if (first == text_.size()) {
      if (last) Content(std::exchange(text_, ""));
      return false;
    }
    pending_ += text_.substr(0, first);
    text_.erase(0, first);
  } else {
    const size_t found = text_.find(open);
    if (found == std::string::npos) {
      const size_t shown = last ? text_.size() : text_.size() - Overlap(text_, open);
      Content(std::string_view(text_).substr(0, shown));
      text_.erase(0, shown);
      return false;
    }
    Content(std::string_view(text_).substr(0, found));
    text_.erase(0, found);
  }
  state_ = State::kCall;
  read_ = Read::kHead;
  at_ = marker_bytes_ = syntax_.tools->kind == ToolSyntax::Kind::kBare ? 0 : open.size();
  return true;
}

// text_ begins with the marker; the object has not begun, or is being read.
bool MessageParser::RunCall(bool last) {
  if (read_ == Read::kHead && depth_ == 0) {
    size_t begin = SkipSpace(text_, marker_bytes_);
    const bool list = syntax_.tools->kind == ToolSyntax::Kind::kList;
    if (list && begin < text_.size() && text_[begin] == '[') begin = SkipSpace(text_, begin + 1);
    if (begin == text_.size()) {
      if (!last) return false;
      NotACall();
      return true;
    }
    if (text_[begin] != '{') {
      NotACall();
      return true;
    }
    std::string name;
    Head head(std::string_view(text_).substr(begin));
    const Match match = head.Run(&name);
    if (match == Match::kMore && !last) return false;
    if (match == Match::kMore) {
      NotACall();
      return true;
    }
    depth_ = 0;
    in_string_ = escaped_ = false;
    if (match == Match::kYes) {
      BeginCall(name);
      read_ = Read::kArguments;
      emitted_ = at_ = begin + head.at();
    } else {
      read_ = Read::kWhole;
      emitted_ = at_ = begin;
    }
  }
  return ReadObject(last);
}

void MessageParser::BeginCall(const std::string& name) {
  content_begun_ = true;  // white space before and after is dropped
  pending_.clear();
  ++calls_;
  Emit(MessagePart::Kind::kCallBegin, name);
}

// From at_ to the end of the object that begins there (kArguments, kWhole), then, for kTail, to the
// end of the object around it.
bool MessageParser::ReadObject(bool last) {
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      continue;
    }
    if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      --depth_;
      if (read_ == Read::kArguments && depth_ == 0) {
        Emit(MessagePart::Kind::kCallArguments,
             std::string_view(text_).substr(emitted_, at_ + 1 - emitted_));
        read_ = Read::kTail;
      } else if (read_ == Read::kTail && depth_ < 0) {
        ++at_;
        Emit(MessagePart::Kind::kCallEnd, "");
        state_ = State::kAfterCall;
      } else if (read_ == Read::kWhole && depth_ == 0) {
        ++at_;
        if (!TakeWhole()) {
          NotACall();
          return true;
        }
        state_ = State::kAfterCall;
      }
      if (state_ == State::kAfterCall) {
        text_.erase(0, at_);
        at_ = marker_bytes_ = 0;
        depth_ = 0;
        read_ = Read::kHead;
        return true;
      }
    }
  }
  if (read_ == Read::kArguments) {
    Emit(MessagePart::Kind::kCallArguments, std::string_view(text_).substr(emitted_));
    emitted_ = text_.size();
  }
  if (!last) return false;
  // Cut short: of a call that has begun its end is lost, anything else is text.
  if (read_ == Read::kWhole) {
    NotACall();
    return true;
  }
  Emit(MessagePart::Kind::kCallEnd, "");
  text_.clear();
  state_ = State::kContent;
  return false;
}

// An object whose keys come in another order.
bool MessageParser::TakeWhole() {
  const auto json = nlohmann::ordered_json::parse(text_.substr(emitted_, at_ - emitted_), nullptr,
                                                  /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return false;
  const char* key = json.contains("arguments") ? "arguments" : "parameters";
  if (!json.contains(key)) return false;
  BeginCall(json["name"].get<std::string>());
  const auto& arguments = json[key];
  Emit(MessagePart::Kind::kCallArguments,
       arguments.is_string() ? arguments.get<std::string>() : arguments.dump());
  Emit(MessagePart::Kind::kCallEnd, "");
  return true;
}

// The marker was text. What follows it may still hold a call.
void MessageParser::NotACall() {
  const size_t marker = std::max<size_t>(syntax_.tools->open().size(), 1);
  content_begun_ = true;
  if (!pending_.empty()) Emit(MessagePart::Kind::kContent, std::exchange(pending_, ""));
  Emit(MessagePart::Kind::kContent,
       std::string_view(text_).substr(0, std::min(marker, text_.size())));
  text_.erase(0, marker);
  depth_ = 0;
  at_ = marker_bytes_ = 0;
  read_ = Read::kHead;
  state_ = State::kContent;
}

// Closing marker, separators and white space; then content or the next call.
bool MessageParser::RunAfterCall(bool last) {
  const size_t first = SkipSpace(text_, 0);
  const std::string_view rest = std::string_view(text_).substr(first);
  const ToolSyntax::Kind kind = syntax_.tools->kind;
  const std::string close = syntax_.tools->close();
  if (rest.empty()) {
    if (last) text_.clear();
    return false;
  }
  if (kind != ToolSyntax::Kind::kTagged && (rest[0] == ',' || rest[0] == ';')) {
    marker_bytes_ = first + 1;
    state_ = State::kCall;
    return true;
  }
  if (!close.empty() && rest.starts_with(close)) {
    text_.erase(0, first + close.size());
  } else if (!close.empty() && !last && std::string_view(close).starts_with(rest)) {
    return false;
  } else {
    text_.erase(0, first);
  }
  content_begun_ = false;
  drop_space_ = true;
  state_ = State::kContent;
  return true;
}

ParsedMessage ParseMessage(const MessageSyntax& syntax, std::string_view text) {
  MessageParser parser(syntax);
  std::vector<MessagePart> parts = parser.Append(text);
  for (MessagePart& part : parser.Flush()) parts.push_back(std::move(part));
  ParsedMessage message;
  for (const MessagePart& part : parts) {
    switch (part.kind) {
      case MessagePart::Kind::kReasoning:
        message.reasoning += part.text;
        break;
      case MessagePart::Kind::kContent:
        message.content += part.text;
        break;
      case MessagePart::Kind::kCallBegin:
        message.calls.push_back({part.text, ""});
        break;
      case MessagePart::Kind::kCallArguments:
        message.calls.back().arguments += part.text;
        break;
      case MessagePart::Kind::kCallEnd:
        break;
    }
  }
  return message;
}

}  // namespace kvlink::server
