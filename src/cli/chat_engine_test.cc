#include "cli/chat_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/chat_conversation.h"
#include "cli/chat_flags.h"
#include "server/testing/fakes.h"

namespace kvlink::cli {
namespace {

using server::FakeEngine;
using server::FakeModel;

const std::string kGreeting = "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80";  // Chinese and an emoji

bool IsWholeUtf8(const std::string& text) {
  return text.empty() || (static_cast<unsigned char>(text[0]) & 0xc0) != 0x80;
}

class ChatEngineTest : public testing::Test {
 protected:
  ChatEngineTest() {
    engine::EngineOptions options;
    options.context = 4096;
    engine_ = std::make_unique<FakeEngine>(model_, options);
    engine_->set_script([](const engine::GenerationRequest&, uint32_t) { return kGreeting; });
    answerer_ = MakeEngineAnswerer(*engine_, "fake");
  }

  Result<AnswerFigures> Ask(const std::string& text) {
    conversation_.Ask(text);
    AnswerEvents events;
    answer_.clear();
    events.on_text = [this](std::string_view piece) {
      EXPECT_TRUE(IsWholeUtf8(std::string(piece))) << piece;
      answer_ += piece;
    };
    events.stop = &stop_;
    auto figures = answerer_->Answer(conversation_.messages(), {}, events);
    conversation_.Answered(answer_);
    return figures;
  }

  FakeModel model_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Answerer> answerer_;
  Conversation conversation_;
  std::string answer_;
  std::atomic<bool> stop_{false};
};

TEST_F(ChatEngineTest, CharactersOfSeveralTokensComeWhole) {
  const auto figures = Ask("hello");
  ASSERT_TRUE(figures.ok()) << figures.status().message();
  EXPECT_EQ(answer_, kGreeting);
  EXPECT_EQ(figures->generated_tokens, kGreeting.size());  // a byte a token
  EXPECT_FALSE(figures->stopped);
}

TEST_F(ChatEngineTest, ALaterTurnFindsTheEarlierOnesInTheCache) {
  const auto first = Ask("hello there");
  const auto second = Ask("and again");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->cached_tokens, 0u);
  EXPECT_GT(second->cached_tokens, first->prompt_tokens / 2);
  EXPECT_GT(second->prompt_tokens, first->prompt_tokens);
}

TEST_F(ChatEngineTest, AStopEndsAnAnswerWithoutAnEnd) {
  engine_->set_script([](const engine::GenerationRequest&, uint32_t) {
    return std::string(size_t{16} << 20, 'x');
  });
  conversation_.Ask("go on");
  AnswerEvents events;
  AnswerOptions options;
  events.stop = &stop_;
  events.on_text = [this](std::string_view piece) {
    answer_ += piece;
    stop_ = true;  // as soon as something came
  };
  const auto figures = answerer_->Answer(conversation_.messages(), options, events);
  ASSERT_TRUE(figures.ok()) << figures.status().message();
  EXPECT_EQ(answer_.find_first_not_of('x'), std::string::npos);
  EXPECT_GT(answer_.size(), 0u);
  EXPECT_LT(answer_.size(), size_t{16} << 20);
}

TEST_F(ChatEngineTest, APromptLongerThanTheContextIsRefusedWithBothFigures) {
  const auto figures = Ask(std::string(5000, '7'));
  ASSERT_FALSE(figures.ok());
  EXPECT_THAT(figures.status().message(), testing::HasSubstr("the context is 4096"));
  EXPECT_EQ(conversation_.turns(), 0u);
}

TEST_F(ChatEngineTest, AModelWithoutATemplateNamesTheWayOut) {
  FakeModel bare(server::FakeTokenizer::Template::kNone);
  FakeEngine engine(bare);
  const auto answerer = MakeEngineAnswerer(engine, "bare");
  conversation_.Ask("hello");
  AnswerEvents events;
  events.on_text = [](std::string_view) {};
  const auto figures = answerer->Answer(conversation_.messages(), {}, events);
  ASSERT_FALSE(figures.ok());
  EXPECT_THAT(figures.status().message(), testing::HasSubstr("--raw"));
}

TEST(FiguresText, SaysWhatTheCacheDidAndHowFastItWent) {
  AnswerFigures figures;
  figures.prompt_tokens = 2000;
  figures.cached_tokens = 1500;
  figures.generated_tokens = 41;
  figures.first_token_s = 0.5;
  figures.total_s = 2.5;
  EXPECT_EQ(FiguresText(figures),
            "2,000 prompt tokens, 1,500 cached (75 %); first token after 0.50 s; 41 tokens, 20.0 a "
            "second");
  figures.stopped = true;
  EXPECT_THAT(FiguresText(figures), testing::EndsWith("; stopped"));
  EXPECT_EQ(FiguresText({}), "0 tokens");
}

}  // namespace
}  // namespace kvlink::cli
