// Random grammars and vocabularies against the naive reading: which texts are sentences, and which
// tokens may follow which texts.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/gbnf.h"
#include "grammar/testing/naive.h"

namespace kvlink::grammar {
namespace {

// Letters of one, two and four bytes.
const std::vector<std::pair<std::u32string, std::string>> kLetters = {
    {U"a", "a"}, {U"b", "b"}, {U"\u00e9", "\xC3\xA9"}, {U"\U0001F600", "\xF0\x9F\x98\x80"}};

class RandomGrammar {
 public:
  explicit RandomGrammar(uint32_t seed) : random_(seed) {}

  std::string Text() {
    std::string text;
    const char* names[] = {"root", "p", "q"};
    for (const char* name : names) text += std::string(name) + " ::= " + Choice(0) + "\n";
    return text;
  }
  uint32_t Below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

 private:
  std::string Choice(int depth) {
    std::string text = Sequence(depth);
    for (uint32_t i = Below(depth == 0 ? 3 : 2); i > 0; --i) text += " | " + Sequence(depth);
    return text;
  }
  std::string Sequence(int depth) {
    std::string text;
    for (uint32_t i = Below(depth == 0 ? 4 : 3); i > 0; --i)
      text += Item(depth) + Repetition() + " ";
    return text.empty() ? "\"\"" : text;
  }
  std::string Item(int depth) {
    switch (Below(depth > 1 ? 4 : 5)) {
      case 0:
        return "\"" + kLetters[Below(4)].second + "\"";
      case 1:
        return "[ab]";
      case 2:
        return Below(2) == 0 ? "[^a]" : "[b-\\u00e9]";
      case 3:
        return Below(2) == 0 ? "p" : "q";
      default:
        return "(" + Choice(depth + 1) + ")";
    }
  }
  std::string Repetition() {
    static const char* kAll[] = {"", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{1,}"};
    return kAll[Below(10)];
  }
  std::mt19937 random_;
};

using Text = std::pair<std::u32string, std::string>;

// All texts of up to `length` letters.
std::vector<Text> Texts(size_t length) {
  std::vector<Text> all = {{}};
  for (size_t begin = 0, n = 0; n < length; ++n) {
    const size_t end = all.size();
    for (; begin < end; ++begin) {
      for (const auto& [code, bytes] : kLetters) {
        all.emplace_back(all[begin].first + code, all[begin].second + bytes);
      }
    }
  }
  return all;
}

TEST(RandomGrammars, AcceptAndAllowWhatTheNaiveReadingDoes) {
  const std::vector<Text> texts = Texts(4), tokens = Texts(2);
  std::vector<std::string> pieces;
  for (const Text& token : tokens) pieces.push_back(token.second);  // the first is empty
  const TokenTrie trie(pieces);
  int used = 0, exploded = 0, sentences = 0, allowed = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const std::string grammar = RandomGrammar(seed).Text();
    const Result<Rules> rules = ParseGbnf(grammar);
    ASSERT_TRUE(rules.ok()) << rules.status().message() << "\n" << grammar;
    Result<Program> program = Program::Create(*rules);
    if (!program.ok()) continue;  // left recursion
    ++used;
    const testing::Naive naive(*rules);
    Automaton automaton(*std::move(program));
    for (const auto& [code, bytes] : texts) {
      const StateId state = automaton.Next(automaton.start(), bytes);
      if (!automaton.status().ok()) break;
      const bool accepts = state != kDead && automaton.accepting(state);
      ASSERT_EQ(accepts, naive.Accepts(code)) << grammar << "text: " << bytes;
      sentences += accepts ? 1 : 0;
      if (code.size() > 2 || state == kDead) continue;
      const TokenMask mask = automaton.Mask(state, trie);
      if (!automaton.status().ok()) break;
      for (size_t i = 1; i < tokens.size(); ++i) {
        const bool can = naive.CanBegin(code + tokens[i].first);
        ASSERT_EQ(IsAllowed(mask, static_cast<TokenId>(i)), can)
            << grammar << "after: " << bytes << " token: " << tokens[i].second;
        allowed += can ? 1 : 0;
      }
    }
    exploded += automaton.status().ok() ? 0 : 1;  // random grammars can be very ambiguous
  }
  // So that the comparison cannot pass by comparing nothing.
  EXPECT_GT(used, 150);
  EXPECT_LT(exploded, used / 10);
  EXPECT_GT(sentences, 2000);
  EXPECT_GT(allowed, 2000);
}

// Whatever bytes tokens are cut into, what a grammar of characters writes is UTF-8.
TEST(RandomGrammars, WalksOverByteTokensWriteOnlySentences) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  pieces.insert(pieces.end(), {"\xA9"
                               "a",
                               "b\xC3", "\x98\x80", "\xF0\x9F"});
  const TokenTrie trie(pieces);
  Result<Rules> rules = ParseGbnf("root ::= [a\\u00e9\\U0001F600]{4,9} | \"b\" root");
  Result<Program> program = Program::Create(*rules);
  ASSERT_TRUE(program.ok());
  Automaton automaton(*std::move(program));
  std::mt19937 random(3);
  for (int walk = 0; walk < 200; ++walk) {
    StateId state = automaton.start();
    std::string text;
    for (int i = 0; i < 60 && !automaton.accepting(state); ++i) {
      const TokenMask mask = automaton.Mask(state, trie);
      std::vector<TokenId> can;
      for (size_t token = 0; token < pieces.size(); ++token) {
        if (IsAllowed(mask, static_cast<TokenId>(token)))
          can.push_back(static_cast<TokenId>(token));
      }
      ASSERT_FALSE(can.empty()) << text;
      const TokenId token = can[random() % can.size()];
      text += trie.piece(token);
      state = automaton.Next(state, trie.piece(token));
      ASSERT_NE(state, kDead);
    }
    if (!automaton.accepting(state)) continue;
    std::u32string code;
    for (size_t i = 0; i < text.size();) {
      bool found = false;
      for (const auto& [letter, bytes] : kLetters) {
        if (text.compare(i, bytes.size(), bytes) != 0) continue;
        code += letter;
        i += bytes.size();
        found = true;
        break;
      }
      ASSERT_TRUE(found) << text;
    }
    EXPECT_TRUE(testing::Naive(*rules).Accepts(code)) << text;
  }
}

}  // namespace
}  // namespace kvlink::grammar
