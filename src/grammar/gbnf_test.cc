#include "grammar/gbnf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/program.h"
#include "grammar/testing/naive.h"

namespace kvlink::grammar {
namespace {

using ::testing::HasSubstr;

bool Accepts(const std::string& grammar, const std::u32string& text) {
  const Result<Rules> rules = ParseGbnf(grammar);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  return rules.ok() && testing::Naive(*rules).Accepts(text);
}

std::string ErrorOf(const std::string& grammar) {
  const Result<Rules> rules = ParseGbnf(grammar);
  if (!rules.ok()) return rules.status().message();
  const Result<Program> program = Program::Create(*rules);
  return program.ok() ? "" : program.status().message();
}

TEST(Gbnf, ReadsRulesOverSeveralLinesWithComments) {
  const std::string grammar =
      "# a list\n"
      "root ::= \"[\" (item (\", \" item)*\n"
      "  )? \"]\"  # its end\n\r\n"
      "item ::= [a-c] | \"x\" |\n  [^a-z]\n";
  EXPECT_TRUE(Accepts(grammar, U"[]"));
  EXPECT_TRUE(Accepts(grammar, U"[a, x, \u00e9]"));
  EXPECT_FALSE(Accepts(grammar, U"[d]"));
  EXPECT_FALSE(Accepts(grammar, U"[a,x]"));
}

TEST(Gbnf, ReadsEscapes) {
  EXPECT_TRUE(
      Accepts("root ::= \"\\\"\\\\\\n\\x41\\u00e9\\U0001F600\"", U"\"\\\nA\u00e9\U0001F600"));
  EXPECT_TRUE(Accepts("root ::= [\\]\\-a]+ \"\"", U"a-]"));
  EXPECT_TRUE(Accepts("root ::= [a-]+", U"-a"));
  EXPECT_TRUE(Accepts("root ::= .", U"\n"));
}

TEST(Gbnf, CountsRepetitions) {
  for (size_t n = 0; n < 6; ++n) {
    const std::u32string text(n, U'a');
    EXPECT_EQ(Accepts("root ::= \"a\"{2}", text), n == 2);
    EXPECT_EQ(Accepts("root ::= \"a\"{2,}", text), n >= 2);
    EXPECT_EQ(Accepts("root ::= \"a\"{1, 3}", text), n >= 1 && n <= 3);
    EXPECT_EQ(Accepts("root ::= \"a\"+ | \"b\"", text), n >= 1);
  }
}

TEST(Gbnf, ALaterDefinitionTakesThePlaceOfAnEarlierOne) {
  EXPECT_FALSE(Accepts("root ::= x\nx ::= \"1\"\nx ::= \"2\"", U"1"));
  EXPECT_TRUE(Accepts("root ::= x\nx ::= \"1\"\nx ::= \"2\"", U"2"));
}

TEST(Gbnf, ErrorsSayWhereAndWhat) {
  EXPECT_THAT(ErrorOf("root ::= ("), HasSubstr("1:11: ')' is expected here, found the end"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"\nother = \"b\""), HasSubstr("2:7: ::= is expected here"));
  EXPECT_THAT(ErrorOf("root ::= \"abc"), HasSubstr("a literal has no end"));
  EXPECT_THAT(ErrorOf("root ::= [abc"), HasSubstr("a character class has no end"));
  EXPECT_THAT(ErrorOf("root ::= [z-a]"), HasSubstr("runs backwards"));
  EXPECT_THAT(ErrorOf("root ::= \"\\q\""), HasSubstr("unknown escape"));
  EXPECT_THAT(ErrorOf("root ::= \"\\u12\""), HasSubstr("4 hexadecimal digits"));
  EXPECT_THAT(ErrorOf("root ::= \"\xff\""), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(ErrorOf("root ::= missing"), HasSubstr("\"missing\" is not defined"));
  EXPECT_THAT(ErrorOf("other ::= \"x\""), HasSubstr("no rule \"root\""));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no rule \"root\""));
  EXPECT_THAT(ErrorOf("root ::= *"), HasSubstr("nothing to repeat"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"{3,2}"), HasSubstr("below its lower bound"));
  EXPECT_THAT(ErrorOf("root ::= <[12]>"), HasSubstr("references to tokens"));
}

TEST(Gbnf, LeftRecursionIsRefusedByName) {
  EXPECT_THAT(ErrorOf("root ::= root \"a\" | \"b\""), HasSubstr("\"root\" can come to itself"));
  EXPECT_THAT(ErrorOf("root ::= a\na ::= b \"x\"\nb ::= a \"y\" | \"z\""),
              HasSubstr("left recursion"));
  // Hidden behind a rule that may be empty, in any order of definition.
  EXPECT_THAT(ErrorOf("root ::= e root \"x\" | \"y\"\ne ::= f?\nf ::= \"q\"*"),
              HasSubstr("left recursion"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"* root"), HasSubstr("left recursion"));
  EXPECT_EQ(ErrorOf("root ::= \"a\" root | \"\""), "");
  EXPECT_EQ(ErrorOf("root ::= e \"x\" root | \"y\"\ne ::= f?\nf ::= \"q\"*"), "");
}

TEST(Gbnf, HostileSizesAreRefused) {
  EXPECT_THAT(ErrorOf("root ::= " + std::string(1000, '(')), HasSubstr("nested more than 64 deep"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"{10001}"), HasSubstr("10000 repetitions"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"" + std::string(100000, '*')), HasSubstr("two repetitions"));
  EXPECT_THAT(ErrorOf("root ::= ((\"abc\"{9999}){9999}){9999}"), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf("root ::= (((\"\"){9999}){9999}){9999}"), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf("root ::= \"" + std::string(kMaxTextBytes, 'a') + "\""), HasSubstr("bytes"));
  std::string many = "root ::= \"a\"\n";
  for (size_t i = 0; i <= kMaxRules; ++i) many += "r" + std::to_string(i) + " ::= \"a\"\n";
  EXPECT_THAT(ErrorOf(many), HasSubstr("rules"));
  std::string chain = "root ::= r0\n";  // each rule is empty only because the next one is
  for (size_t i = 0; i < 8000; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"\"\n";
  }
  EXPECT_EQ(ErrorOf(chain + "r8000 ::= \"\""), "");
  EXPECT_THAT(ErrorOf(chain + "r8000 ::= \"a\" | r0"), HasSubstr("left recursion"));
}

}  // namespace
}  // namespace kvlink::grammar
