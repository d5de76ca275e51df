#include "cli/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace kvlink::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kGood =
    R"({"id": "a", "tenant": "t", "turns": [)"
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],)"
    R"( "max_tokens": 8, "n": 4}, {"messages": [{"role": "user", "content": "v"}],)"
    R"( "max_tokens": 9, "assistant": "x"}]})";

Result<Workload> Read(const std::string& text, size_t limit = 0) {
  std::istringstream in(text);
  return ReadWorkload(in, "w.jsonl", limit);
}

TEST(Workload, ALineHasTurnsWithTheirFields) {
  const auto workload = Read(std::string(kGood) + "\n\n");
  ASSERT_TRUE(workload.ok()) << workload.status().message();
  ASSERT_EQ(workload->conversations.size(), 1u);
  const Conversation& conversation = workload->conversations[0];
  EXPECT_EQ(conversation.id, "a");
  EXPECT_EQ(conversation.tenant, "t");
  ASSERT_EQ(conversation.turns.size(), 2u);
  EXPECT_EQ(conversation.turns[0].messages[1].content, "u");
  EXPECT_EQ(conversation.turns[0].n, 4u);
  EXPECT_FALSE(conversation.turns[0].assistant);
  EXPECT_EQ(conversation.turns[1].max_tokens, 9u);
  EXPECT_EQ(conversation.turns[1].n, 1u);
  EXPECT_EQ(conversation.turns[1].assistant, "x");
  EXPECT_EQ(workload->num_turns(), 2u);
  EXPECT_EQ(workload->max_n(), 4u);
}

TEST(Workload, TheLimitCountsLines) {
  const std::string three = std::string(kGood) + "\n" + kGood + "\n" + kGood + "\n";
  EXPECT_EQ(Read(three, 2)->conversations.size(), 2u);
  EXPECT_EQ(Read(three, 9)->conversations.size(), 3u);
  EXPECT_EQ(Read(three, 0)->conversations.size(), 3u);
}

TEST(Workload, ErrorsNameTheLineAndTheField) {
  const std::string good = std::string(kGood) + "\n";
  const auto error = [&](const std::string& line) { return Read(good + line).status().message(); };
  EXPECT_THAT(error("{"), HasSubstr("w.jsonl:2: not a JSON object"));
  EXPECT_THAT(error(R"({"turns": []})"), HasSubstr("\"id\" must be a string"));
  EXPECT_THAT(error(R"({"id": "b", "turns": []})"), HasSubstr("\"turns\" must be"));
  EXPECT_THAT(error(R"({"id": "b", "turns": [{"messages": [{"role": "user"}]}]})"),
              HasSubstr("turn 0: a message needs"));
  const std::string head = R"({"id": "b", "turns": [{"messages": [{"role": "u", "content": ""}])";
  EXPECT_THAT(error(head + "}]}"), HasSubstr("\"max_tokens\""));
  EXPECT_THAT(error(head + R"(, "max_tokens": 0}]})"), HasSubstr("\"max_tokens\""));
  EXPECT_THAT(error(head + R"(, "max_tokens": 1, "n": 1000}]})"), HasSubstr("\"n\""));
  EXPECT_THAT(error(head + R"(, "max_tokens": 1, "assistant": 3}]})"), HasSubstr("\"assistant\""));
}

TEST(Workload, AnEmptyFileIsAnError) {
  EXPECT_THAT(Read("\n").status().message(), HasSubstr("w.jsonl: no conversations"));
  EXPECT_THAT(ReadWorkloadFile("/no/such.jsonl", 0).status().message(),
              HasSubstr("--workload: cannot read '/no/such.jsonl'"));
}

TEST(Workload, SeedsDifferByIdTurnAndBranchAndNeverChange) {
  EXPECT_NE(BranchSeed("a", 0, 0), BranchSeed("b", 0, 0));
  EXPECT_NE(BranchSeed("a", 0, 0), BranchSeed("a", 1, 0));
  EXPECT_NE(BranchSeed("a", 0, 0), BranchSeed("a", 0, 1));
  EXPECT_NE(BranchSeed("a", 1, 11), BranchSeed("a", 11, 1));
  EXPECT_EQ(BranchSeed("a", 0, 0), 0xe351f1fe03498f0cu);
}

}  // namespace
}  // namespace kvlink::cli
