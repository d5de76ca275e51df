#include "server/tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "grammar/library.h"
#include "server/chat_setup.h"
#include "server/testing/fakes.h"

namespace kvlink::server {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"weather","description":"Looks.","parameters":)"
    R"({"type":"object","properties":{"city":{"enum":["Oslo","Rome"]},"days":{"type":"integer"}},)"
    R"("required":["city"]}}},{"type":"function","function":{"name":"noop"}}])";

std::vector<std::string> ByteTokens() {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  return pieces;
}

bool Accepts(const std::string& grammar, const std::string& text) {
  grammar::Library library(ByteTokens);
  const auto compiled = library.Get(grammar);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message() << grammar;
  if (!compiled.ok()) return false;
  grammar::Matcher matcher(*compiled);
  return matcher.AcceptText(text) && matcher.accepting();
}

TEST(Tools, GrammarsForceCallsInTheModelsNotation) {
  const std::string call = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
  const std::string noop = R"({"name": "noop", "arguments": {}})";
  const auto grammar = [](ToolSyntax::Kind kind, const std::string& name, bool parallel) {
    const Result<std::string> made =
        ToolGrammar({kind}, kTools, {ToolChoice::Mode::kRequired, name}, parallel);
    EXPECT_TRUE(made.ok());
    return *made;
  };
  const std::string any = grammar(ToolSyntax::Kind::kTagged, "", true);
  const std::string one = "<tool_call>\n" + call + "\n</tool_call>";
  EXPECT_TRUE(Accepts(any, one));
  EXPECT_TRUE(Accepts(any, one + "\n<tool_call>\n" + noop + "\n</tool_call>"));
  EXPECT_FALSE(Accepts(any, "Hello"));
  EXPECT_FALSE(
      Accepts(any, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Accepts(any, "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Accepts(grammar(ToolSyntax::Kind::kTagged, "", false), one + "\n" + one));
  EXPECT_FALSE(Accepts(grammar(ToolSyntax::Kind::kTagged, "noop", true), one));
  EXPECT_TRUE(Accepts(grammar(ToolSyntax::Kind::kList, "", true),
                      "[TOOL_CALLS][" + call + ", " + noop + "]"));
  EXPECT_TRUE(Accepts(grammar(ToolSyntax::Kind::kBare, "", true),
                      R"({"name": "weather", "parameters": {"city": "Rome", "days": 3}})"));
}

TEST(Tools, WhatAGrammarForcesTheParserReads) {
  grammar::Library library(ByteTokens);
  std::mt19937 random(5);
  for (const auto kind :
       {ToolSyntax::Kind::kTagged, ToolSyntax::Kind::kList, ToolSyntax::Kind::kBare}) {
    const auto compiled =
        library.Get(*ToolGrammar({kind}, kTools, {ToolChoice::Mode::kRequired, ""}, true));
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    MessageSyntax syntax;
    syntax.tools = ToolSyntax{kind};
    int finished = 0;
    for (int walk = 0; walk < 60; ++walk) {
      grammar::Matcher matcher(*compiled);
      std::string text;
      for (int i = 0; i < 3000 && !(matcher.accepting() && i > 0 && random() % 2 == 0); ++i) {
        grammar::TokenMask mask;
        matcher.FillMask(&mask);
        std::vector<TokenId> can;
        for (TokenId token = 0; token < 256; ++token) {
          if (grammar::IsAllowed(mask, token)) can.push_back(token);
        }
        if (can.empty()) break;
        // Quotes and brackets more often, so that texts end.
        TokenId token = can[random() % can.size()];
        for (const char closing : {'"', '}'}) {
          if (grammar::IsAllowed(mask, closing) && random() % 4 != 0) token = closing;
        }
        ASSERT_TRUE(matcher.Accept(token));
        text += static_cast<char>(token);
      }
      if (!matcher.accepting()) continue;
      ++finished;
      const ParsedMessage message = ParseMessage(syntax, text);
      ASSERT_FALSE(message.calls.empty()) << text;
      EXPECT_EQ(message.content, "") << text;
      for (const ToolCall& call : message.calls) {
        const Json arguments = Json::parse(call.arguments, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << text;
        if (call.name != "weather") continue;
        EXPECT_TRUE(arguments.at("city") == "Oslo" || arguments.at("city") == "Rome") << text;
        EXPECT_TRUE(!arguments.contains("days") || arguments["days"].is_number_integer()) << text;
      }
    }
    EXPECT_GT(finished, 20);
  }
}

TEST(Tools, ParametersBeyondTheGrammarAreAnyObjectUnlessStrict) {
  const auto tools = [](const char* strict) {
    return std::string(R"([{"type":"function","function":{"name":"f",)") + strict +
           R"("parameters":{"type":"object","properties":{"x":{"type":"string","pattern":"a+"}}}}}])";
  };
  const ToolChoice required{ToolChoice::Mode::kRequired, ""};
  const auto loose = ToolGrammar({}, tools(""), required, true);
  ASSERT_TRUE(loose.ok());
  EXPECT_TRUE(
      Accepts(*loose, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"y\": 1}}\n</tool_call>"));
  const auto strict = ToolGrammar({}, tools("\"strict\":true,"), required, true);
  ASSERT_FALSE(strict.ok());
  EXPECT_THAT(strict.status().message(), HasSubstr("tools[0].function.parameters.properties.x"));
  EXPECT_THAT(strict.status().message(), HasSubstr("pattern"));
}

TEST(Tools, SortedKeysMakeTheSameToolsTheSameText) {
  const std::string a =
      R"([{"type":"function","function":{"name":"f","parameters":{"b":1,"a":[2,1]}}}])";
  const std::string b =
      R"([{"function":{"parameters":{"a":[2,1],"b":1},"name":"f"},"type":"function"}])";
  EXPECT_NE(a, b);
  EXPECT_EQ(WithSortedKeys(a), WithSortedKeys(b));
  EXPECT_NE(WithSortedKeys(a),
            WithSortedKeys(
                R"([{"type":"function","function":{"name":"f","parameters":{"b":1,"a":[1,2]}}}])"));
}

TEST(Tools, AnotherOrderOfTheSameToolsIsNoticedOnce) {
  ToolOrders orders;
  const Namespace ns{"acme", ""}, other{"other", ""};
  const std::string a = R"([{"x":1,"y":2}])", b = R"([{"y":2,"x":1}])";
  EXPECT_FALSE(orders.IsReordered(ns, a));
  EXPECT_FALSE(orders.IsReordered(ns, a));
  EXPECT_FALSE(orders.IsReordered(other, b)) << "other tenants' orders are their own";
  EXPECT_TRUE(orders.IsReordered(ns, b));
  EXPECT_FALSE(orders.IsReordered(ns, b)) << "it is cached by now";
  EXPECT_FALSE(orders.IsReordered(ns, R"([{"x":1,"y":3}])")) << "other tools";
  for (int i = 0; i < 3000; ++i) (void)orders.IsReordered(ns, "[" + std::to_string(i) + "]");
  EXPECT_FALSE(orders.IsReordered(ns, R"([{"y":2, "x":1}])")) << "forgotten: the memory is bounded";
}

TEST(Tools, ConversationsAreWrittenOutForTemplatesWithoutTools) {
  std::vector<model::ChatMessage> messages = {
      {"user", "Weather?", ""},
      {"assistant", "Let me look.",
       R"({"role":"assistant","content":"Let me look.","tool_calls":[{"id":"1","type":"function",)"
       R"("function":{"name":"weather","arguments":"{\"city\":  \"Oslo\"}"}}]})"},
      {"tool", "rain", R"({"role":"tool","content":"rain","tool_call_id":"1"})"},
      {"tool", "snow", ""}};
  EXPECT_TRUE(WriteOutTools(kTools, &messages));
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_THAT(messages[0].content, HasSubstr(R"("name":"weather")"));
  // The arguments stay as the model wrote them.
  EXPECT_EQ(messages[2].content,
            "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":  "
            "\"Oslo\"}}\n</tool_call>");
  EXPECT_EQ(messages[2].extra_json, "");
  EXPECT_EQ(messages[3].role, "user");
  EXPECT_EQ(messages[3].content, "<tool_response>\nrain\n</tool_response>");
  EXPECT_EQ(messages[4].role, "user");

  std::vector<model::ChatMessage> with_system = {{"system", "Be brief.", ""}, {"user", "x", ""}};
  EXPECT_FALSE(WriteOutTools(kTools, &with_system));
  EXPECT_TRUE(with_system[0].content.starts_with("Be brief.\n\n"));
  std::vector<model::ChatMessage> plain = {{"user", "x", ""}};
  EXPECT_FALSE(WriteOutTools("", &plain));
  EXPECT_EQ(plain.size(), 1u);
}

// A template that renders tools and calls in the notation given.
class NativeTokenizer : public FakeTokenizer {
 public:
  NativeTokenizer(std::string before, std::string key, std::string after)
      : before_(std::move(before)), key_(std::move(key)), after_(std::move(after)) {}
  Result<std::string> ApplyChatTemplate(std::span<const model::ChatMessage> messages,
                                        const std::string& tools_json, bool) const override {
    std::string text = tools_json;
    for (const model::ChatMessage& message : messages) {
      text += message.content;
      if (message.extra_json.empty()) continue;
      const Json function = Json::parse(message.extra_json)["tool_calls"][0]["function"];
      text += before_ + "{\"name\": " + function["name"].dump() + ", \"" + key_ +
              "\": " + function["arguments"].get<std::string>() + "}" + after_;
    }
    return text;
  }

 private:
  std::string before_, key_, after_;
};

TEST(Tools, TheTemplateShowsItsNotation) {
  const auto probe = [](const char* before, const char* key, const char* after) {
    return ToolTemplate::Probe(NativeTokenizer(before, key, after));
  };
  const ToolTemplate tagged = probe("<tool_call>\n", "arguments", "\n</tool_call>");
  EXPECT_TRUE(tagged.native);
  EXPECT_EQ(tagged.syntax.kind, ToolSyntax::Kind::kTagged);
  EXPECT_EQ(probe("[TOOL_CALLS][", "arguments", "]").syntax.kind, ToolSyntax::Kind::kList);
  const ToolTemplate bare = probe("", "parameters", "");
  EXPECT_TRUE(bare.native);
  EXPECT_EQ(bare.syntax.kind, ToolSyntax::Kind::kBare);
  EXPECT_FALSE(probe("<function>", "args", "").native) << "not a notation that is known";
  EXPECT_FALSE(ToolTemplate::Probe(FakeTokenizer()).native) << "calls are not rendered";
}

}  // namespace
}  // namespace kvlink::server
