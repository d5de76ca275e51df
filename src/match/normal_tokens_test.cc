#include "match/normal_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvlink::match {
namespace {

TEST(NormalText, FoldsCaseWhiteSpaceAndDigits) {
  EXPECT_EQ(NormalText("The"), "the");
  EXPECT_EQ(NormalText(" \t The"), "the");
  EXPECT_EQ(NormalText("a \n\n b "), "a b");
  EXPECT_EQ(NormalText("2026-11-29T17"), "0-0-0t0");
  EXPECT_EQ(NormalText("\n\n"), " ");
  EXPECT_EQ(NormalText(""), "");
}

TEST(NormalText, FoldsTheCaseOfOtherAlphabets) {
  EXPECT_EQ(NormalText("ÄÖÜ×ß"), "äöü×ß");
  EXPECT_EQ(NormalText("ΑΩ"), "αω");
  EXPECT_EQ(NormalText("ЁЖЯ"), "ёжя");
  EXPECT_EQ(NormalText("你好 🙂"), "你好 🙂");
}

TEST(NormalText, LeavesBytesThatAreNoCharacterAsTheyAre) {
  for (const std::string text : {"\xc3", "\xc3\x41", "\xf0\x9f", "\x80"}) {
    EXPECT_EQ(NormalText(text).size(), text.size());
  }
  EXPECT_EQ(NormalText("\xc3"), "\xc3");
  EXPECT_NE(NormalText("\xc3"), NormalText("\xc4"));
}

TEST(NormalTokens, GivesEqualTextsOneClass) {
  const std::vector<std::string> texts = {"<|end|>", "The", " the", "7", "", " 2026", "THE", ""};
  const NormalTokens tokens(texts);
  EXPECT_EQ(tokens.ClassOf(0), 0u);
  EXPECT_EQ(tokens.ClassOf(1), 1u);
  EXPECT_EQ(tokens.ClassOf(2), 1u);
  EXPECT_EQ(tokens.ClassOf(6), 1u);
  EXPECT_EQ(tokens.ClassOf(5), tokens.ClassOf(3));
  EXPECT_NE(tokens.ClassOf(4), tokens.ClassOf(7)) << "tokens without a text are not the same";
  EXPECT_EQ(tokens.num_tokens(), 8u);
}

TEST(NormalTokens, LeavesUnknownTokensApart) {
  const NormalTokens none;
  EXPECT_EQ(none.ClassOf(5), 5u);
  const std::vector<std::string> texts = {"a"};
  const NormalTokens tokens(texts);
  EXPECT_EQ(tokens.ClassOf(1000), 1000u);
  EXPECT_NE(tokens.ClassOf(-1), tokens.ClassOf(-2));
}

}  // namespace
}  // namespace kvlink::match
