#include "grammar/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlink::grammar {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Pieces() { return {"a", "b", "ab", "", "c"}; }

TEST(Library, TheSameTextIsCompiledOnce) {
  int asked = 0;
  Library library([&] {
    ++asked;
    return Pieces();
  });
  const auto first = library.Get("root ::= [ab]+");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*library.Get("root ::= [ab]+"), *first);
  EXPECT_NE(*library.Get("root ::= [ab]*"), *first);
  EXPECT_EQ(asked, 1);
}

TEST(Library, ErrorsBeginWithTheWordGrammar) {
  Library library(Pieces);
  EXPECT_THAT(library.Get("root ::= (").status().message(), HasSubstr("grammar: 1:11:"));
  EXPECT_EQ(library.Get("root ::= (").status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(library.Get("root ::= root").status().message(), HasSubstr("left recursion"));
  EXPECT_THAT(library.Get("root ::= \"z\"").status().message(), HasSubstr("no token"));
}

TEST(Library, KeepsTheLatestUsed) {
  Library::Limits limits;
  limits.grammars = 2;
  Library library(Pieces, limits);
  const auto a = *library.Get("root ::= \"a\"");
  const auto b = *library.Get("root ::= \"b\"");
  EXPECT_EQ(*library.Get("root ::= \"a\""), a);
  (void)library.Get("root ::= \"c\"");
  EXPECT_EQ(*library.Get("root ::= \"a\""), a);
  EXPECT_NE(*library.Get("root ::= \"b\""), b);
}

TEST(Library, AHalfUsedGrammarIsCompiledAfresh) {
  Library::Limits limits;
  limits.automaton.states = 20;
  Library library(Pieces, limits);
  const std::string text = "root ::= \"a\"{0,100}";
  const auto first = *library.Get(text);
  EXPECT_EQ(*library.Get(text), first);
  Matcher matcher(first);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(matcher.Accept(0));
  const auto second = *library.Get(text);
  EXPECT_NE(second, first);
  EXPECT_TRUE(matcher.Accept(0));  // who has the first goes on with it
}

TEST(Matcher, ACopyIsAFork) {
  Library library(Pieces);
  Matcher one(*library.Get("root ::= \"ab\" \"c\"?"));
  EXPECT_TRUE(one.Allows(2));
  EXPECT_FALSE(one.Allows(1));
  Matcher other = one;
  ASSERT_TRUE(one.Accept(2));
  EXPECT_TRUE(one.accepting());
  EXPECT_FALSE(other.accepting());
  EXPECT_TRUE(other.Accept(0));
  EXPECT_FALSE(other.Accept(0));  // refused: nothing changed
  EXPECT_TRUE(other.Accept(1));
  EXPECT_TRUE(other.accepting());
  EXPECT_FALSE(other.Accept(3));  // a token without text
  EXPECT_FALSE(other.Accept(-1));
  EXPECT_FALSE(other.Accept(99));
  TokenMask mask;
  other.FillMask(&mask);
  EXPECT_TRUE(IsAllowed(mask, 4));
  EXPECT_FALSE(IsAllowed(mask, 0));
}

}  // namespace
}  // namespace kvlink::grammar
