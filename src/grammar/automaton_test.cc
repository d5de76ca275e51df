#include "grammar/automaton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/gbnf.h"

namespace kvlink::grammar {
namespace {

using ::testing::HasSubstr;

Automaton Make(const std::string& grammar, const AutomatonLimits& limits = {}) {
  Result<Rules> rules = ParseGbnf(grammar);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  Result<Program> program = Program::Create(*rules);
  EXPECT_TRUE(program.ok()) << program.status().message();
  return Automaton(*std::move(program), limits);
}

bool Accepts(Automaton& automaton, std::string_view text) {
  const StateId state = automaton.Next(automaton.start(), text);
  return state != kDead && automaton.accepting(state);
}

std::vector<std::string> Allowed(Automaton& automaton, const TokenTrie& trie,
                                 std::string_view text) {
  const TokenMask mask = automaton.Mask(automaton.Next(automaton.start(), text), trie);
  std::vector<std::string> pieces;
  for (size_t i = 0; i < trie.vocab_size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    if (IsAllowed(mask, token)) pieces.push_back(trie.piece(token));
  }
  return pieces;
}

TEST(TokenTrie, ListsEachPieceOnceInPreorder) {
  const TokenTrie trie({"ab", "", "a", "abc", "b", "ab", "\xff"});
  ASSERT_EQ(trie.size(), 6u);  // root, a, ab, abc, b, ff
  std::vector<std::vector<TokenId>> tokens;
  for (size_t node = 0; node < trie.size(); ++node) {
    tokens.emplace_back(trie.tokens(node).begin(), trie.tokens(node).end());
  }
  EXPECT_EQ(tokens, (std::vector<std::vector<TokenId>>{{}, {2}, {0, 5}, {3}, {4}, {6}}));
  EXPECT_EQ(trie.skip(1), 4u);
  EXPECT_EQ(trie.skip(3), 4u);
  EXPECT_EQ(trie.skip(0), 6u);
  EXPECT_EQ(trie.byte(5), 0xff);
  EXPECT_EQ(TokenTrie({}).size(), 1u);
}

TEST(Automaton, AcceptsNestedTextsOfAnyDepth) {
  Automaton automaton = Make("root ::= \"(\" root* \")\"");
  EXPECT_TRUE(Accepts(automaton, "(()(()))"));
  EXPECT_FALSE(Accepts(automaton, "(()"));
  EXPECT_FALSE(Accepts(automaton, "())"));
  const std::string deep = std::string(5000, '(') + std::string(5000, ')');
  EXPECT_TRUE(Accepts(automaton, deep));
}

TEST(Automaton, MasksHoldTheTokensThatCanFollow) {
  const TokenTrie trie({"yes", "ye", "y", "s", "no", "yesno", "n", "", "es"});
  Automaton automaton = Make("root ::= \"yes\" | \"no\"");
  EXPECT_THAT(Allowed(automaton, trie, ""), ::testing::ElementsAre("yes", "ye", "y", "no", "n"));
  EXPECT_THAT(Allowed(automaton, trie, "y"), ::testing::ElementsAre("es"));
  EXPECT_THAT(Allowed(automaton, trie, "yes"), ::testing::IsEmpty());
}

TEST(Automaton, TokensMayEndInsideACharacterButTextsMayNot) {
  const TokenTrie trie({"\xC3", "\xA9", "\xE4\xBD", "\xA0", "\xFF", "\xED\xA0"});
  Automaton automaton = Make("root ::= [^a]");
  EXPECT_THAT(Allowed(automaton, trie, ""), ::testing::ElementsAre("\xC3", "\xE4\xBD"));
  EXPECT_FALSE(automaton.accepting(automaton.Next(automaton.start(), "\xE4\xBD")));
  EXPECT_THAT(Allowed(automaton, trie, "\xE4\xBD"), ::testing::ElementsAre("\xA9", "\xA0"));
  EXPECT_TRUE(Accepts(automaton, "\xE4\xBD\xA0"));
}

TEST(Automaton, StatesComeBack) {
  Automaton automaton = Make("root ::= \"\\\"\" [^\"]* \"\\\"\" | \"[\" root (\",\" root)* \"]\"");
  const StateId in_string = automaton.Next(automaton.start(), "[\"");
  EXPECT_EQ(automaton.Next(in_string, "abc"), in_string);
  EXPECT_EQ(automaton.Next(automaton.start(), "[\"x\",\"yy"), automaton.Next(in_string, "x\",\""));
  const size_t states = automaton.num_states();
  EXPECT_NE(automaton.Next(automaton.start(), "[\"x\",\"y\",\"z"), kDead);
  EXPECT_EQ(automaton.num_states(), states);
}

TEST(Automaton, RepetitionByRecursionAtTheEndNeedsNoDepth) {
  Automaton automaton = Make("root ::= \"a\" root | \"b\"");
  const StateId once = automaton.Next(automaton.start(), "a");
  EXPECT_EQ(automaton.Next(once, "aaaaaaaa"), once);
}

// Each letter doubles the ways in which the text can be read.
constexpr const char* kExploding = "root ::= \"x\" root \"a\" | \"x\" root \"b\" | \"x\"";

TEST(Automaton, AnExplodingGrammarEndsAtALimitAndSaysSo) {
  Automaton automaton = Make(kExploding);
  EXPECT_NE(automaton.Next(automaton.start(), "xxxx"), kDead);
  EXPECT_TRUE(automaton.status().ok());
  EXPECT_EQ(automaton.Next(automaton.start(), std::string(100, 'x')), kDead);
  EXPECT_EQ(automaton.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(automaton.status().message(), HasSubstr("too ambiguous"));
  EXPECT_TRUE(automaton.half_used());
  EXPECT_EQ(automaton.Next(automaton.start(), std::string(100, 'x')), kDead);
}

TEST(Automaton, EachLimitIsEnforced) {
  const auto error = [](AutomatonLimits limits, const char* text) {
    Automaton automaton = Make(kExploding, limits);
    EXPECT_EQ(automaton.Next(automaton.start(), text), kDead);
    return automaton.status().message();
  };
  AutomatonLimits states, frames, threads, work;
  states.states = 8;
  frames.frames = 8;
  threads.threads = 20;
  work.work = 100;
  EXPECT_THAT(error(states, "xxxxxxxxxx"), HasSubstr("8 states"));
  EXPECT_THAT(error(frames, "xxxxxxxxxx"), HasSubstr("8 open rules"));
  EXPECT_THAT(error(threads, "xxxxxxxxxx"), HasSubstr("20 readings of all texts"));
  EXPECT_THAT(error(work, "xxxxxxxxxx"), HasSubstr("100 steps"));
}

TEST(Automaton, MasksBeyondTheirBudgetAreComputedAnew) {
  AutomatonLimits none;
  none.mask_bytes = 0;
  const TokenTrie trie({"a", "b", "ab"});
  Automaton kept = Make("root ::= [ab]*"), fresh = Make("root ::= [ab]*", none);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(kept.Mask(kept.start(), trie), fresh.Mask(fresh.start(), trie));
  EXPECT_GT(kept.bytes(), fresh.bytes());
}

}  // namespace
}  // namespace kvlink::grammar
