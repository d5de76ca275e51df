#include "cli/chat_conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvlink::cli {
namespace {

using ::testing::HasSubstr;

std::string Roles(const Conversation& conversation) {
  std::string roles;
  for (const auto& message : conversation.messages()) roles += message.role.substr(0, 1);
  return roles;
}

TEST(Conversation, TurnsFollowTheSystemMessageWheneverThatIsSet) {
  Conversation conversation;
  conversation.Ask("one");
  conversation.Answered("1");
  conversation.SetSystem("count");
  EXPECT_EQ(Roles(conversation), "sua");
  EXPECT_EQ(conversation.turns(), 1u);
  conversation.SetSystem("count well");
  EXPECT_EQ(Roles(conversation), "sua");
  EXPECT_EQ(conversation.System(), "count well");
  conversation.Reset();
  EXPECT_EQ(Roles(conversation), "s");
  conversation.SetSystem("");
  EXPECT_EQ(Roles(conversation), "");
  EXPECT_EQ(conversation.turns(), 0u);
}

TEST(Conversation, AQuestionWithoutAnAnswerIsTakenBack) {
  Conversation conversation;
  conversation.Ask("one");
  conversation.Answered("");
  EXPECT_EQ(Roles(conversation), "");
}

TEST(Conversation, AFileReadsBackAsItWas) {
  Conversation conversation;
  conversation.SetSystem("Sei kurz. \"ja\"\n");
  conversation.Ask("\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80");
  conversation.Answered("ok");
  const auto read = Conversation::FromJson(conversation.ToJson(), "f");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->ToJson(), conversation.ToJson());
  EXPECT_EQ(read->messages()[1].content, "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80");
}

TEST(Conversation, WhatIsNoConversationIsRefusedWithItsPlace) {
  const auto error = [](const std::string& text) {
    const auto read = Conversation::FromJson(text, "--load: 'f'");
    return read.ok() ? "" : read.status().message();
  };
  EXPECT_THAT(error("{"), HasSubstr("--load: 'f': is not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("no array \"messages\""));
  EXPECT_THAT(error(R"({"messages": [{"role": "user"}]})"), HasSubstr("messages[0] must have"));
  EXPECT_THAT(error(R"({"messages": [{"role": "assistant", "content": "x"}]})"),
              HasSubstr("messages[0] has the role 'assistant', where 'user' is next"));
  EXPECT_THAT(error(R"({"messages": [{"role": "user", "content": "x"}]})"),
              HasSubstr("the answer is missing"));
  EXPECT_THAT(error(R"({"messages": [{"role": "user", "content": "x"},
                                     {"role": "system", "content": "x"}]})"),
              HasSubstr("messages[1] has the role 'system', where 'assistant' is next"));
}

TEST(PrintableText, WhatCommandsATerminalIsReplacedAndTheRestStays) {
  const std::string kept = "a\tb\n\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80 \xC2\xA9";
  EXPECT_EQ(PrintableText(kept), kept);
  EXPECT_EQ(PrintableText("\x1b[31m"), "\xEF\xBF\xBD[31m");
  EXPECT_EQ(PrintableText("a\rb\x7f"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(PrintableText("\xC2\x9B"
                          "31m"),
            "\xEF\xBF\xBD"
            "31m");
  EXPECT_EQ(PrintableText(""), "");
}

}  // namespace
}  // namespace kvlink::cli
