#include "match/anchor_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "match/sketch.h"
#include "match/testing/tokens.h"

namespace kvlink::match {
namespace {

class AnchorRuns : public ::testing::Test {
 protected:
  Tokens Text(size_t count, uint64_t vocabulary = 20000) {
    return match::Text(random_, count, vocabulary);
  }
  static std::vector<KeyPlace> AnchorsOf(const Tokens& tokens, const NormalTokens& classes = {}) {
    std::vector<KeyPlace> places;
    std::vector<Anchor> anchors = Winnow(GramHashes(tokens, classes), 8);
    TagAnchors(tokens, &anchors);
    for (const Anchor& anchor : anchors) {
      places.push_back(
          {static_cast<uint32_t>(anchor.hash >> 32), anchor.position & 0xffffffu, anchor.tag});
    }
    return places;
  }
  static uint32_t Shared(const Tokens& prompt, const Tokens& donor, uint32_t exact = 0) {
    std::vector<KeyPlace> by_key = AnchorsOf(donor);
    std::ranges::sort(by_key);
    return PromptAnchors(AnchorsOf(prompt)).SharedRows(by_key, exact);
  }
  base::Random random_{1};
};

TEST_F(AnchorRuns, CountNearlyTheRowsOfARun) {
  for (const size_t size : {40u, 100u, 1000u}) {
    const Tokens run = Text(size);
    const uint32_t shared = Shared(Text(200) + run + Text(100), Text(50) + run + Text(70));
    EXPECT_LE(shared, size);
    EXPECT_GE(shared + 18, size);
  }
}

TEST_F(AnchorRuns, CountRunsInTheirOrderOnly) {
  const Tokens p = Text(300), q = Text(200);
  EXPECT_NEAR(Shared(p + Text(50) + q, p + Text(20) + q), 500, 36);
  EXPECT_NEAR(Shared(p + Text(50) + q, q + Text(20) + p), 300, 18);
}

TEST_F(AnchorRuns, CountOnlyBehindTheExactRows) {
  const Tokens head = Text(300), body = Text(200);
  EXPECT_NEAR(Shared(head + body, head + Text(9) + body, 300), 200, 18);
  EXPECT_NEAR(Shared(head + body, head + body, 400), 100, 18);
  // The prompt repeats what stands before the exact rows' end: the donor's copy is taken already.
  EXPECT_EQ(Shared(head + Text(10) + head, head, 310), 0u);
}

TEST_F(AnchorRuns, DoNotCountWhatIsSharedByChance) {
  const Tokens a = Text(600, 8), b = Text(600, 8);
  EXPECT_LT(Shared(a, b), 30u) << "nearly all n-grams in common, at a thousand distances";
}

TEST_F(AnchorRuns, DoNotCountAListOfOtherNumbers) {
  const std::vector<std::string> texts = {"seats", "price", ":", "1", "2", "3", "4", "5"};
  const NormalTokens classes(texts);
  const auto list = [&] {
    Tokens tokens;
    for (int i = 0; i < 60; ++i) {
      const auto digit = [&] { return static_cast<TokenId>(3 + random_.Below(5)); };
      tokens = tokens + Tokens{0, 2, digit(), 1, 2, digit(), digit()};
    }
    return tokens;
  };
  const Tokens a = list(), b = list();
  const auto shared = [&](const Tokens& prompt, const Tokens& donor) {
    std::vector<KeyPlace> by_key = AnchorsOf(donor, classes);
    std::ranges::sort(by_key);
    return PromptAnchors(AnchorsOf(prompt, classes)).SharedRows(by_key, 0, 16);
  };
  EXPECT_LT(shared(a, b), 60u);
  EXPECT_GT(shared(a, a), 400u);
}

TEST_F(AnchorRuns, TakeRepetitionsInStride) {
  Tokens repeated;
  const Tokens line = Text(20);
  for (int i = 0; i < 40; ++i) repeated = repeated + line;
  EXPECT_GT(Shared(Text(30) + repeated, repeated + Text(30)), 700u);
  EXPECT_LE(Shared(Text(30) + repeated, repeated + Text(30)), 800u);
  const Tokens same(500, 7);
  EXPECT_LE(Shared(same, same + same), 500u);
  EXPECT_EQ(Shared({}, same), 0u);
  EXPECT_EQ(Shared(same, {}), 0u);
}

TEST_F(AnchorRuns, KeysBehindAreUniqueAndAscending) {
  const std::vector<KeyPlace> places = {{5, 0, 0}, {3, 4, 0}, {5, 9, 0}, {5, 12, 0}, {1, 20, 0}};
  const PromptAnchors anchors(places);
  EXPECT_EQ(anchors.KeysBehind(0), (std::vector<uint32_t>{1, 3, 5}));
  EXPECT_EQ(anchors.KeysBehind(5), (std::vector<uint32_t>{1, 5}));
  EXPECT_TRUE(anchors.KeysBehind(21).empty());
}

// Never more than what there is: a chain of runs is a common subsequence.
TEST_F(AnchorRuns, NeverCountMoreThanTheLongestCommonSubsequence) {
  for (int round = 0; round < 100; ++round) {
    const uint64_t vocabulary = round % 2 == 0 ? 3 : 50;
    const Tokens a = Text(random_.Below(300), vocabulary);
    Tokens b = a;
    for (uint64_t edits = random_.Below(10); edits > 0 && !b.empty(); --edits) {
      const auto at = b.begin() + static_cast<std::ptrdiff_t>(random_.Below(b.size()));
      if (random_.OneIn(2)) {
        b.erase(at);
      } else {
        b.insert(at, static_cast<TokenId>(random_.Below(vocabulary)));
      }
    }
    std::vector<std::vector<uint32_t>> lcs(a.size() + 1, std::vector<uint32_t>(b.size() + 1));
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < b.size(); ++j) {
        lcs[i + 1][j + 1] = a[i] == b[j] ? lcs[i][j] + 1 : std::max(lcs[i][j + 1], lcs[i + 1][j]);
      }
    }
    ASSERT_LE(Shared(a, b), lcs[a.size()][b.size()] + 2 * kGram) << round;
  }
}

}  // namespace
}  // namespace kvlink::match
