// MessageParser: what a model wrote -> reasoning, content and calls of tools, as it comes.
//
//   <think>Paris, hm.</think>\n\nLet me look.\n
//   <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>
//
//   reasoning "Paris, hm."    content "Let me look.\n"    call 0: name f, arguments {"x": 1}
//
// Arguments pass as they were written. Text that could still become a marker is held back; what
// begins as a call and is none comes out as content, byte for byte, so nothing the model wrote is
// lost. White space around reasoning and calls is dropped. Appending in any pieces gives the same
// joined parts. A value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlink::server {

// How a model writes calls.
struct ToolSyntax {
  enum class Kind : uint8_t {
    kTagged,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one pair of tags a call
    kList,    // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
    kBare,    // the whole answer is {"name": ..., "parameters": {...}}, several joined by ';'
  };
  Kind kind = Kind::kTagged;
  std::string open() const;
  std::string close() const;
  const char* arguments_key() const { return kind == Kind::kBare ? "parameters" : "arguments"; }
};

struct MessageSyntax {
  bool reasoning = false;       // <think> ... </think> in front is reasoning
  bool reasoning_open = false;  // the prompt ended in <think>
  std::optional<ToolSyntax> tools;
  bool plain() const { return !reasoning && !tools; }
};

struct MessagePart {
  enum class Kind : uint8_t { kReasoning, kContent, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kContent;
  std::string text;   // kCallBegin: the function's name; kCallEnd: empty
  uint32_t call = 0;  // which one, from 0
};

struct ToolCall {
  std::string name, arguments;
};

struct ParsedMessage {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
};

class MessageParser {
 public:
  explicit MessageParser(MessageSyntax syntax);
  std::vector<MessagePart> Append(std::string_view text);
  std::vector<MessagePart> Flush();  // the answer has ended, perhaps in the middle
  uint32_t num_calls() const { return calls_; }

 private:
  enum class State : uint8_t { kStart, kReasoning, kContent, kCall, kAfterCall };
  enum class Read : uint8_t { kHead, kArguments, kTail, kWhole };

  void Run(bool last);
  bool RunStart(bool last);
  bool RunReasoning(bool last);
  bool RunContent(bool last);
  bool RunCall(bool last);
  bool RunAfterCall(bool last);
  bool ReadObject(bool last);
  bool TakeWhole();
  void NotACall();
  void BeginCall(const std::string& name);
  void Emit(MessagePart::Kind kind, std::string_view text);
  void Content(std::string_view text);

  MessageSyntax syntax_;
  State state_;
  std::string text_;     // not yet decided
  std::string pending_;  // white space in front of content that may not come
  std::vector<MessagePart> parts_;
  bool content_begun_ = false, drop_space_ = false;
  uint32_t calls_ = 0;

  // Of the call that is being read: text_ begins at its marker.
  Read read_ = Read::kHead;
  size_t marker_bytes_ = 0;  // the marker and what stands between it and the object
  size_t at_ = 0;            // first byte of text_ that was not looked at
  size_t emitted_ = 0;       // kArguments: text_ up to here was emitted
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// The same for a whole text.
ParsedMessage ParseMessage(const MessageSyntax& syntax, std::string_view text);

}  // namespace kvlink::server
