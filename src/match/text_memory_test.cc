#include "match/text_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/random.h"

namespace kvlink::match {
namespace {

using Tokens = std::vector<TokenId>;

TEST(TextMemory, RecallsTheTokensOfATextItRemembers) {
  TextMemory memory(1 << 20);
  memory.Remember("ns", "  你好 🙂\tif (x) {\n", Tokens{1, 2, 3});
  EXPECT_EQ(memory.Recall("ns", "  你好 🙂\tif (x) {\n"), (Tokens{1, 2, 3}));
  EXPECT_EQ(memory.Recall("ns", "  你好 🙂\tif (x) {"), std::nullopt);
  EXPECT_EQ(memory.Recall("ns", ""), std::nullopt);
}

TEST(TextMemory, KeepsNamespacesApart) {
  TextMemory memory(1 << 20);
  memory.Remember("ab", "c", Tokens{1});
  EXPECT_EQ(memory.Recall("ab", "c"), Tokens{1});
  EXPECT_EQ(memory.Recall("a", "bc"), std::nullopt);
  EXPECT_EQ(memory.Recall("a", "c"), std::nullopt);
  EXPECT_FALSE(memory.RecallPrefix("other", "c").has_value());
}

TEST(TextMemory, TheSameTextAgainReplacesItsTokens) {
  TextMemory memory(1 << 20);
  memory.Remember("", "text", Tokens{1});
  memory.Remember("", "text", Tokens{2, 3});
  EXPECT_EQ(memory.Recall("", "text"), (Tokens{2, 3}));
  EXPECT_EQ(memory.num_texts(), 1u);
}

TEST(TextMemory, FindsTheLongestTextThatThePromptStartsWith) {
  TextMemory memory(1 << 20);
  // Longer than the head that lengths are listed by.
  const std::string head = "The quick brown fox";
  memory.Remember("", "The", Tokens{1});
  memory.Remember("", head, Tokens{2});
  memory.Remember("", head + " jumps", Tokens{3});
  memory.Remember("", head + " jumps high", Tokens{4});
  memory.Remember("", head + " sleeps a long time", Tokens{5});
  const auto recalled = memory.RecallPrefix("", head + " jumps over");
  ASSERT_TRUE(recalled.has_value());
  EXPECT_EQ(recalled->tokens, Tokens{3});
  EXPECT_EQ(recalled->text_bytes, head.size() + 6);
  EXPECT_EQ(memory.RecallPrefix("", "The quick")->tokens, Tokens{1});
  EXPECT_EQ(memory.RecallPrefix("", "The quick brown dog")->tokens, Tokens{1});
  EXPECT_FALSE(memory.RecallPrefix("", "A").has_value());
}

TEST(TextMemory, ForgetsTheLeastRecentlyRecalledWithinItsBudget) {
  TextMemory memory(20000);
  memory.Remember("", "keep", Tokens{1});
  for (int i = 0; i < 500; ++i) {
    memory.Remember("", "text " + std::to_string(i), Tokens{i});
    EXPECT_LE(memory.used_bytes(), 20000u);
    ASSERT_EQ(memory.Recall("", "keep"), Tokens{1}) << i;
  }
  EXPECT_EQ(memory.Recall("", "text 0"), std::nullopt);
  EXPECT_EQ(memory.Recall("", "text 499"), Tokens{499});
}

TEST(TextMemory, DoesNotTakeATextOverItsBudget) {
  TextMemory memory(1000);
  memory.Remember("", "small", Tokens{1});
  memory.Remember("", std::string(2000, 'x'), Tokens{2});
  memory.Remember("", "", Tokens{3});
  EXPECT_EQ(memory.num_texts(), 1u);
  EXPECT_EQ(memory.Recall("", "small"), Tokens{1});
}

// With four bits of hash nearly every lookup meets another text: it may be forgotten, never
// confused.
TEST(TextMemory, ComparesTheTextWhenHashesCollide) {
  TextMemory memory(1 << 20, 4);
  int known = 0;
  for (int i = 0; i < 1000; ++i) {
    memory.Remember("", "text " + std::to_string(i), Tokens{i});
    for (int j = 0; j <= i; j += 7) {
      const std::string text = "text " + std::to_string(j);
      const auto exact = memory.Recall("", text);
      if (exact) {
        EXPECT_EQ(*exact, Tokens{j});
      }
      known += exact ? 1 : 0;
      const auto prefix = memory.RecallPrefix("", text + "!");
      if (prefix) {
        EXPECT_EQ(text.substr(0, prefix->text_bytes), "text " + std::to_string(prefix->tokens[0]));
      }
    }
  }
  EXPECT_GT(known, 100);
  EXPECT_LE(memory.num_texts(), 16u);
}

struct Remembered {
  std::string ns, text;
  Tokens tokens;
};

TEST(TextMemory, DoesWhatAListOfTextsDoes) {
  TextMemory memory(1 << 24);
  std::vector<Remembered> naive;
  base::Random random(8);
  const auto random_text = [&] {
    std::string text(random.Below(40), 'a');
    for (char& c : text) c = random.OneIn(12) ? 'b' : 'a';
    return text;
  };
  for (int step = 0; step < 3000; ++step) {
    const std::string ns = random.OneIn(2) ? "x" : "y", text = random_text();
    if (random.OneIn(3) && !text.empty()) {
      const Tokens tokens{step};
      memory.Remember(ns, text, tokens);
      std::erase_if(naive, [&](const auto& e) { return e.ns == ns && e.text == text; });
      naive.push_back({ns, text, tokens});
    }
    const Remembered *exact = nullptr, *prefix = nullptr;
    for (const Remembered& entry : naive) {
      if (entry.ns != ns || !text.starts_with(entry.text)) continue;
      if (entry.text == text) exact = &entry;
      if (prefix == nullptr || entry.text.size() > prefix->text.size()) prefix = &entry;
    }
    const auto recalled = memory.Recall(ns, text);
    ASSERT_EQ(recalled.has_value(), exact != nullptr);
    if (exact != nullptr) {
      ASSERT_EQ(*recalled, exact->tokens);
    }
    const auto recalled_prefix = memory.RecallPrefix(ns, text);
    ASSERT_EQ(recalled_prefix.has_value(), prefix != nullptr);
    if (prefix != nullptr) {
      ASSERT_EQ(recalled_prefix->tokens, prefix->tokens);
      ASSERT_EQ(recalled_prefix->text_bytes, prefix->text.size());
    }
    ASSERT_EQ(memory.num_texts(), naive.size());
  }
}

TEST(TextMemory, IsUsedFromManyThreads) {
  TextMemory memory(30000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      base::Random random(static_cast<uint64_t>(t));
      for (int i = 0; i < 1000; ++i) {
        const auto n = static_cast<TokenId>(random.Below(200));
        const std::string text = "a text that is remembered " + std::to_string(n);
        memory.Remember("", text, Tokens{n});
        if (const auto tokens = memory.Recall("", text)) {
          EXPECT_EQ(*tokens, Tokens{n});
        }
        if (const auto prefix = memory.RecallPrefix("", text + ".")) {
          EXPECT_LE(prefix->text_bytes, text.size());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(memory.used_bytes(), 30000u);
}

}  // namespace
}  // namespace kvlink::match
