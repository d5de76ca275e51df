#include "server/tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/dump.h"
#include "server/json_grammar.h"

namespace kvlink::server {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr const char* kProbeName = "kvlink_probe_function";
// More calls at once than this are cut off; without a bound a model that is held to calls may never
// stop.
constexpr int kMaxCalls = 16;

std::string ProbeTools() {
  return Dump(Ordered::array(
      {{{"type", "function"},
        {"function",
         {{"name", kProbeName},
          {"description", "A probe."},
          {"parameters",
           {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}}}));
}

model::ChatMessage ProbeCall() {
  model::ChatMessage message{"assistant", "", ""};
  message.extra_json = Dump(
      {{"role", "assistant"},
       {"content", ""},
       {"tool_calls",
        Ordered::array(
            {{{"id", "call_0"},
              {"type", "function"},
              {"function", {{"name", kProbeName}, {"arguments", "{\"city\": \"Oslo\"}"}}}}})}});
  return message;
}

std::string CallText(const Ordered& call) {
  const Ordered function = call.value("function", Ordered::object());
  const Ordered arguments = function.value("arguments", Ordered("{}"));
  return "<tool_call>\n{\"name\": " + Dump(function.value("name", Ordered(""))) +
         ", \"arguments\": " +
         (arguments.is_string() ? arguments.get<std::string>() : Dump(arguments)) +
         "}\n</tool_call>";
}

// The text before the calls, and the calls as the model wrote them.
void WriteOutCalls(const Ordered& whole, model::ChatMessage* message) {
  std::string text = message->content;
  for (const Ordered& call : whole["tool_calls"]) {
    text += (text.empty() ? "" : "\n") + CallText(call);
  }
  message->content = text;
}

std::string SystemText(const std::string& tools_json) {
  std::string text =
      "You can call functions to get what you need for your answer. These are the functions, each "
      "with a JSON schema of its arguments:\n<tools>\n";
  for (const Ordered& tool : Ordered::parse(tools_json)) text += Dump(tool) + "\n";
  return text +
         "</tools>\nTo call a function, write nothing but a JSON object with its name and its "
         "arguments between these tags, once for each call:\n<tool_call>\n{\"name\": <function>, "
         "\"arguments\": <object>}\n</tool_call>\nThe result comes back between <tool_response> "
         "tags. When you need no function, answer directly.";
}

}  // namespace

ToolTemplate ToolTemplate::Probe(const model::Tokenizer& tokenizer) {
  ToolTemplate found;
  const model::ChatMessage user{"user", "What is the weather?", ""};
  const std::vector<model::ChatMessage> question = {user};
  const auto text = tokenizer.ApplyChatTemplate(question, ProbeTools(), true);
  if (!text.ok() || text->find(kProbeName) == std::string::npos) return found;
  const std::vector<model::ChatMessage> history = {user, ProbeCall()};
  const auto plain = tokenizer.ApplyChatTemplate(history, "", false);
  if (!plain.ok()) return found;
  const size_t name = plain->find(kProbeName);
  if (name == std::string::npos) return found;
  // What stands right in front of the name shows the notation; any other is left to the generic
  // way.
  const std::string before = plain->substr(0, name);
  const std::string near = before.substr(before.size() - std::min<size_t>(before.size(), 12));
  const bool json = near.find("\"name\"") != std::string::npos;
  if (!json) return found;
  if (before.find("[TOOL_CALLS]") != std::string::npos) {
    found.syntax.kind = ToolSyntax::Kind::kList;
  } else if (before.find("<tool_call>") != std::string::npos) {
    found.syntax.kind = ToolSyntax::Kind::kTagged;
  } else if (plain->find("\"parameters\"", name) != std::string::npos) {
    found.syntax.kind = ToolSyntax::Kind::kBare;
  } else {
    return found;
  }
  found.native = true;
  return found;
}

std::vector<std::string> ToolNames(const std::string& tools_json) {
  std::vector<std::string> names;
  for (const Ordered& tool : Ordered::parse(tools_json)) {
    names.push_back(tool["function"]["name"].get<std::string>());
  }
  return names;
}

std::string WithSortedKeys(const std::string& tools_json) {
  return nlohmann::json::parse(tools_json).dump();
}

Result<std::string> ToolGrammar(const ToolSyntax& syntax, const std::string& tools_json,
                                const ToolChoice& choice, bool parallel) {
  std::string calls, rules;
  const Ordered tools = Ordered::parse(tools_json);
  for (size_t i = 0; i < tools.size(); ++i) {
    const Ordered& function = tools[i]["function"];
    const std::string name = function["name"].get<std::string>();
    if (!choice.name.empty() && name != choice.name) continue;
    const std::string rule = "args-" + std::to_string(i);
    const Ordered schema = function.value(
        "parameters", Ordered({{"type", "object"}, {"properties", Ordered::object()}}));
    Result<std::string> converted =
        RulesFromSchema(schema, rule, "tools[" + std::to_string(i) + "].function.parameters");
    if (!converted.ok()) {
      if (function.value("strict", Ordered(false)) == true) return converted.status();
      converted = rule + " ::= object\n";
    }
    rules += *converted;
    const std::string head =
        "{\"name\": " + Ordered(name).dump() + ", \"" + syntax.arguments_key() + "\": ";
    calls += (calls.empty() ? "" : " | ") + GrammarLiteral(head) + " " + rule + " \"}\"";
  }
  const std::string more = parallel ? "{0," + std::to_string(kMaxCalls - 1) + "}" : "{0}";
  std::string root;
  switch (syntax.kind) {
    case ToolSyntax::Kind::kTagged:
      root = "tagged (\"\\n\" tagged)" + more +
             "\ntagged ::= \"<tool_call>\\n\" call \"\\n</tool_call>\"";
      break;
    case ToolSyntax::Kind::kList:
      root = "\"[TOOL_CALLS][\" call (\", \" call)" + more + " \"]\"";
      break;
    case ToolSyntax::Kind::kBare:
      root = "call (\"; \" call)" + more;
      break;
  }
  return "root ::= " + root + "\ncall ::= " + calls + "\n" + rules + JsonRules();
}

bool WriteOutTools(const std::string& described, std::vector<model::ChatMessage>* messages) {
  for (model::ChatMessage& message : *messages) {
    if (message.role == "tool") {
      message.role = "user";
      message.content = "<tool_response>\n" + message.content + "\n</tool_response>";
      message.extra_json.clear();
    } else if (message.role == "assistant" && !message.extra_json.empty()) {
      const Ordered whole = Ordered::parse(message.extra_json);
      if (!whole.contains("tool_calls") || !whole["tool_calls"].is_array()) continue;
      WriteOutCalls(whole, &message);
      message.extra_json.clear();
    }
  }
  if (described.empty()) return false;
  if (!messages->empty() && messages->front().role == "system") {
    messages->front().content += "\n\n" + SystemText(described);
    messages->front().extra_json.clear();
    return false;
  }
  messages->insert(messages->begin(), {"system", SystemText(described), ""});
  return true;
}

}  // namespace kvlink::server
