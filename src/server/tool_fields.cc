#include "server/tool_fields.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace kvlink::server {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr size_t kMaxTools = 512;

// Tools that the model can be shown, each with a name of its own.
bool CheckTools(Fields& fields, const Json& tools) {
  if (tools.size() > kMaxTools) {
    fields.Fail("tools", "tools must hold at most " + std::to_string(kMaxTools) + " tools, got " +
                             std::to_string(tools.size()));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size() && !fields.error(); ++i) {
    const std::string name = "tools[" + std::to_string(i) + "]";
    if (!tools[i].is_object()) {
      fields.Fail(name, name + " must be an object, got " + Seen(tools[i]));
      return false;
    }
    Fields tool(tools[i], name);
    const std::string type = tool.String("type").value_or("function");
    if (!tool.error() && type != "function") {
      tool.Fail("type", tool.Path("type") + " must be \"function\", got \"" + type + "\"",
                "unsupported");
    }
    const Json* function = tool.Object("function");
    if (function == nullptr) {
      tool.Fail("function", tool.Path("function") + " is missing", "missing_field");
    } else {
      Fields nested(*function, tool.Path("function"));
      const std::string own = nested.String("name").value_or("");
      if (own.empty()) nested.Fail("name", nested.Path("name") + " is missing", "missing_field");
      if (!names.insert(own).second)
        nested.Fail("name", nested.Path("name") + " is there twice: \"" + own + "\"");
      (void)nested.Object("parameters");
      (void)nested.Bool("strict");
      tool.Adopt(nested);
    }
    fields.Adopt(tool);
  }
  return !fields.error();
}

ToolChoice ReadToolChoice(Fields& fields, const Json* tools) {
  ToolChoice choice;
  const Json* value = fields.Get("tool_choice");
  if (value == nullptr || *value == "auto") return choice;
  if (*value == "none") {
    choice.mode = ToolChoice::Mode::kNone;
    return choice;
  }
  choice.mode = ToolChoice::Mode::kRequired;
  if (value->is_object() && value->value("type", Json("function")) == "function" &&
      value->contains("function") && (*value)["function"].is_object() &&
      (*value)["function"].value("name", Json()).is_string()) {
    choice.name = (*value)["function"]["name"].get<std::string>();
  } else if (*value != "required") {
    fields.Fail("tool_choice",
                "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                "\"function\": {\"name\": ...}}, got " +
                    Seen(*value));
    return choice;
  }
  bool known = choice.name.empty() && tools != nullptr && !tools->empty();
  for (const Json& tool : tools != nullptr ? *tools : Json::array()) {
    known |= tool["function"]["name"] == choice.name;
  }
  if (!known) {
    fields.Fail("tool_choice", choice.name.empty() ? "tool_choice \"required\" needs tools"
                                                   : "tool_choice names \"" + choice.name +
                                                         "\", which is not among tools");
  }
  return choice;
}

}  // namespace

void ReadTools(Fields& fields, const Ordered& ordered, ApiRequest* out) {
  const Json* tools = fields.Array("tools");
  if (tools != nullptr && !CheckTools(fields, *tools)) return;
  out->tool_choice = ReadToolChoice(fields, tools);
  if (auto v = fields.Bool("parallel_tool_calls")) out->parallel_tool_calls = *v;
  if (fields.error() || tools == nullptr || tools->empty()) return;
  if (out->tool_choice.mode == ToolChoice::Mode::kNone) return;
  out->tools_json = ordered["tools"].dump();
  out->similar = SimilarPolicy::kOff;
  if (out->tool_choice.mode != ToolChoice::Mode::kRequired) return;
  if (!out->generation.sampling.grammar.empty()) {
    fields.Fail(
        "tool_choice",
        "tool_choice that forces a call cannot be combined with response_format or grammar");
  }
  if (out->generation.beam_search) {
    fields.Fail("use_beam_search",
                "use_beam_search cannot be combined with a tool_choice that forces a call");
  }
}

void CheckToolCalls(Fields& message) {
  const Json* calls = message.Array("tool_calls");
  if (calls == nullptr) return;
  for (size_t i = 0; i < calls->size() && !message.error(); ++i) {
    const Json& call = (*calls)[i];
    const std::string name = "tool_calls[" + std::to_string(i) + "]";
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object() ||
        !function->value("name", Json()).is_string() ||
        !(function->value("arguments", Json("{}")).is_string() ||
          function->value("arguments", Json("{}")).is_object())) {
      message.Fail(name, message.Path(name) +
                             " must be {\"type\": \"function\", \"function\": {\"name\", "
                             "\"arguments\"}}, got " +
                             Seen(call));
    }
  }
}

}  // namespace kvlink::server
