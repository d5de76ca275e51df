#include "server/message_parser.h"

#include <gtest/gtest.h>

#include <random>

namespace kvlink::server {
namespace {

MessageSyntax Syntax(bool reasoning, std::optional<ToolSyntax::Kind> tools) {
  MessageSyntax syntax;
  syntax.reasoning = reasoning;
  if (tools) syntax.tools = ToolSyntax{*tools};
  return syntax;
}
const MessageSyntax kTagged = Syntax(true, ToolSyntax::Kind::kTagged);

// "R:..." reasoning, "C:..." content, "F:name(arguments)" a call.
std::string Show(const ParsedMessage& message) {
  std::string text;
  if (!message.reasoning.empty()) text += "R:" + message.reasoning + "|";
  if (!message.content.empty()) text += "C:" + message.content + "|";
  for (const ToolCall& call : message.calls) text += "F:" + call.name + "(" + call.arguments + ")|";
  return text;
}

std::string Parse(const MessageSyntax& syntax, const std::string& text) {
  return Show(ParseMessage(syntax, text));
}

// The same, with the text cut into pieces at random.
std::string ParsePieces(const MessageSyntax& syntax, const std::string& text, uint32_t seed) {
  std::mt19937 random(seed);
  MessageParser parser(syntax);
  std::vector<MessagePart> parts;
  const auto add = [&](std::vector<MessagePart> more) {
    for (MessagePart& part : more) parts.push_back(std::move(part));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t size = 1 + random() % 4;
    add(parser.Append(std::string_view(text).substr(at, size)));
    at += size;
  }
  add(parser.Flush());
  ParsedMessage message;
  bool open = false;
  for (const MessagePart& part : parts) {
    switch (part.kind) {
      case MessagePart::Kind::kReasoning:
        message.reasoning += part.text;
        break;
      case MessagePart::Kind::kContent:
        EXPECT_FALSE(open);
        message.content += part.text;
        break;
      case MessagePart::Kind::kCallBegin:
        EXPECT_FALSE(open);
        open = true;
        EXPECT_EQ(part.call, message.calls.size());
        message.calls.push_back({part.text, ""});
        break;
      case MessagePart::Kind::kCallArguments:
        EXPECT_TRUE(open);
        message.calls.back().arguments += part.text;
        break;
      case MessagePart::Kind::kCallEnd:
        EXPECT_TRUE(open);
        open = false;
        break;
    }
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(parser.num_calls(), message.calls.size());
  return Show(message);
}

TEST(MessageParser, SplitsReasoningFromContent) {
  EXPECT_EQ(Parse(kTagged, "<think>\nhm\n</think>\n\nYes."), "R:hm|C:Yes.|");
  EXPECT_EQ(Parse(kTagged, " <think>hm"), "R:hm|");
  EXPECT_EQ(Parse(kTagged, "A <think> in text"), "C:A <think> in text|");
  EXPECT_EQ(Parse(kTagged, "<thin"), "C:<thin|");
  EXPECT_EQ(Parse(Syntax(false, std::nullopt), "<think>x</think>y"), "C:<think>x</think>y|");
  MessageSyntax open = kTagged;
  open.reasoning_open = true;
  EXPECT_EQ(Parse(open, "\nhm </thin </think>so"), "R:hm </thin |C:so|");
}

TEST(MessageParser, TakesTaggedCallsWithArgumentsAsWritten) {
  EXPECT_EQ(Parse(kTagged,
                  "Wait.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":  [1, {}], "
                  "\"s\": \"}\\\"{\"}}\n</tool_call>"),
            "C:Wait.\n|F:f({\"x\":  [1, {}], \"s\": \"}\\\"{\"})|");
  EXPECT_EQ(Parse(kTagged,
                  "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call> "
                  "{\"name\" : \"g\\u0041\", \"parameters\": {\"a\":1} }</tool_call> done"),
            "C:done|F:f({})|F:gA({\"a\":1})|");
  // Keys in another order, arguments as text.
  EXPECT_EQ(Parse(kTagged, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>"),
            "F:f({\"a\":1})|");
  EXPECT_EQ(Parse(kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>"),
            "F:f({})|");
}

TEST(MessageParser, WhatIsNoCallStaysContent) {
  for (const std::string text : {"<tool_call> is a tag", "<tool_call>{\"nome\": 1}</tool_call> x",
                                 "a <tool_call", "<tool_call>", "<tool_call>{\"name\": \"f\"",
                                 "<tool_call>[1]</tool_call>", "  ", "a  \n"}) {
    EXPECT_EQ(Parse(kTagged, text), "C:" + text + "|") << text;
  }
}

TEST(MessageParser, ACallThatIsCutShortKeepsWhatThereIs) {
  EXPECT_EQ(Parse(kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"lo"),
            "F:f({\"x\": \"lo)|");
}

TEST(MessageParser, TakesListsOfCalls) {
  const MessageSyntax list = Syntax(false, ToolSyntax::Kind::kList);
  EXPECT_EQ(Parse(list,
                  "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
                  "\"arguments\": {}}]"),
            "F:f({\"a\": 1})|F:g({})|");
  EXPECT_EQ(Parse(list, "no [TOOL_CALLS here"), "C:no [TOOL_CALLS here|");
}

TEST(MessageParser, TakesBareCalls) {
  const MessageSyntax bare = Syntax(false, ToolSyntax::Kind::kBare);
  EXPECT_EQ(Parse(bare,
                  "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", "
                  "\"parameters\": {}}"),
            "F:f({\"a\": 1})|F:g({})|");
  EXPECT_EQ(Parse(bare, "{\"city\": \"Oslo\"}"), "C:{\"city\": \"Oslo\"}|");
  EXPECT_EQ(Parse(bare, "Set {1, 2}"), "C:Set {1, 2}|");
}

TEST(MessageParser, HowTheTextIsCutMakesNoDifference) {
  const std::vector<std::string> fragments = {"<think>",
                                              "</think>",
                                              "<tool_call>",
                                              "</tool_call>",
                                              "{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
                                              "{\"arguments\": {}, \"name\": \"g\"}",
                                              "{\"name\": \"h\", \"arguments\": ",
                                              "{\"a\": \"}\"}",
                                              "}",
                                              "\n",
                                              "  ",
                                              "words ",
                                              "[TOOL_CALLS]",
                                              "[",
                                              "]",
                                              ", ",
                                              "; ",
                                              "<",
                                              "{",
                                              "\"",
                                              "</th"};
  std::mt19937 random(11);
  int calls = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint32_t i = random() % 9; i > 0; --i) text += fragments[random() % fragments.size()];
    for (const auto kind :
         {ToolSyntax::Kind::kTagged, ToolSyntax::Kind::kList, ToolSyntax::Kind::kBare}) {
      const MessageSyntax syntax = Syntax(round % 2 == 0, kind);
      const std::string whole = Parse(syntax, text);
      calls += whole.find("F:") != std::string::npos ? 1 : 0;
      ASSERT_EQ(ParsePieces(syntax, text, static_cast<uint32_t>(round)), whole) << text;
    }
  }
  EXPECT_GT(calls, 100);
}

}  // namespace
}  // namespace kvlink::server
