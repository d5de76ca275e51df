#include "cli/chat_input.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <thread>

namespace kvlink::cli {
namespace {

using Kind = ChatInput::Kind;

class ChatInputTest : public testing::Test {
 protected:
  ChatInputTest() {
    EXPECT_EQ(::pipe(ends_), 0);
    input_ = std::make_unique<ChatInput>(ends_[0]);
  }
  ~ChatInputTest() override {
    ::close(ends_[0]);
    CloseWriter();
  }
  void Write(const std::string& text) {
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void CloseWriter() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  void ExpectLine(const std::string& line) {
    const ChatInput::Event event = input_->ReadLine();
    EXPECT_EQ(event.kind, Kind::kLine);
    EXPECT_EQ(event.line, line);
  }

  int ends_[2] = {-1, -1};
  std::unique_ptr<ChatInput> input_;
};

TEST_F(ChatInputTest, LinesComeOneByOneAndTheLastNeedsNoEnd) {
  Write("one\r\n\ntwo \xE4\xBD\xA0\nlast");
  CloseWriter();
  ExpectLine("one");
  ExpectLine("");
  ExpectLine("two \xE4\xBD\xA0");
  ExpectLine("last");
  EXPECT_EQ(input_->ReadLine().kind, Kind::kEnd);
  EXPECT_EQ(input_->ReadLine().kind, Kind::kEnd);
  EXPECT_EQ(input_->exit_code(), 0);
}

TEST_F(ChatInputTest, WhatIsNoUtf8IsReplaced) {
  Write("a\xffz\n");
  ExpectLine("a\xEF\xBF\xBDz");
}

TEST_F(ChatInputTest, AllThatIsLeftKeepsItsLineBreaks) {
  Write("one\n\ntwo\n");
  CloseWriter();
  EXPECT_EQ(input_->ReadAll(), "one\n\ntwo");
}

TEST_F(ChatInputTest, ASignalWhileWaitingIsToldOnceAndTheSecondEnds) {
  std::thread signal([this] { input_->OnSignal(SIGINT); });
  EXPECT_EQ(input_->ReadLine().kind, Kind::kInterrupted);
  signal.join();
  EXPECT_EQ(input_->exit_code(), 0);
  input_->OnSignal(SIGINT);
  EXPECT_EQ(input_->ReadLine().kind, Kind::kQuit);
  EXPECT_EQ(input_->exit_code(), 130);
}

TEST_F(ChatInputTest, ALineBetweenTwoSignalsStartsTheCountAgain) {
  input_->OnSignal(SIGINT);
  EXPECT_EQ(input_->ReadLine().kind, Kind::kInterrupted);
  Write("more\n");
  ExpectLine("more");
  input_->OnSignal(SIGINT);
  EXPECT_EQ(input_->ReadLine().kind, Kind::kInterrupted);
  EXPECT_EQ(input_->exit_code(), 0);
}

TEST_F(ChatInputTest, ASignalDuringAnAnswerStopsThatAndTheNextOneEnds) {
  Write("one\ntwo\n");
  ExpectLine("one");
  input_->BeginAnswer();
  EXPECT_FALSE(input_->stop());
  input_->OnSignal(SIGINT);
  EXPECT_TRUE(input_->stop());
  input_->EndAnswer();
  EXPECT_EQ(input_->exit_code(), 0);
  ExpectLine("two");  // the answer was what it was for
  input_->BeginAnswer();
  EXPECT_FALSE(input_->stop());
  input_->OnSignal(SIGINT);
  input_->EndAnswer();
  input_->OnSignal(SIGINT);
  EXPECT_EQ(input_->ReadLine().kind, Kind::kQuit);
}

TEST_F(ChatInputTest, ASignalToEndEndsAtOnce) {
  input_->OnSignal(SIGTERM);
  EXPECT_EQ(input_->ReadLine().kind, Kind::kQuit);
  EXPECT_EQ(input_->exit_code(), 143);
}

TEST_F(ChatInputTest, ASecondSignalWhileAnAnswerStopsEndsTheProcess) {
  EXPECT_EXIT(
      {
        input_->BeginAnswer();
        input_->OnSignal(SIGINT);
        input_->OnSignal(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace kvlink::cli
