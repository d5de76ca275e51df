// Tools: functions that a model may call: how they get into the prompt, how calls are forced, and
// how old calls are shown to models whose template knows none.
//
// A template that renders tools is given them as they are, and is asked, by a rendering of a
// made-up conversation, how its model writes calls. For others there is a generic way: a system
// text (docs/api.md shows it) that describes the tools and asks for <tool_call> tags; earlier calls
// become the text that they were, and results become messages of the user in <tool_response> tags.
// Arguments that a model wrote are never written anew.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kvlink/status.h"
#include "server/message_parser.h"

namespace kvlink::server {

struct ToolChoice {
  enum class Mode : uint8_t { kAuto, kNone, kRequired };
  Mode mode = Mode::kAuto;
  std::string name;  // kRequired: only this function; empty: any
};

// How the model at hand takes tools.
struct ToolTemplate {
  bool native = false;  // the template renders them
  ToolSyntax syntax;
  static ToolTemplate Probe(const model::Tokenizer& tokenizer);
};

// tools_json is an array of {"type": "function", "function": {"name", "parameters", ...}}, checked
// by whoever parsed the request.

// The names of the functions.
std::vector<std::string> ToolNames(const std::string& tools_json);
// The same tools with the keys of all objects sorted.
std::string WithSortedKeys(const std::string& tools_json);

// GBNF for an answer that is one or more calls (one: !parallel). A function's parameters that the
// grammar cannot express are any object, unless the function says strict: kInvalidArgument with the
// path and the keyword.
Result<std::string> ToolGrammar(const ToolSyntax& syntax, const std::string& tools_json,
                                const ToolChoice& choice, bool parallel);

// The conversation for a template without tools. `described`: the tools that the system text tells
// of; empty: none (calls and results are still written out). Returns whether a message was put in
// front.
bool WriteOutTools(const std::string& described, std::vector<model::ChatMessage>* messages);

}  // namespace kvlink::server
