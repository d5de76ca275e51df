#include "match/alignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "match/edit_path.h"
#include "match/testing/tokens.h"

namespace kvlink::match {
namespace {

uint32_t NaiveLcs(const Tokens& a, const Tokens& b) {
  std::vector<std::vector<uint32_t>> best(a.size() + 1, std::vector<uint32_t>(b.size() + 1));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      best[i + 1][j + 1] = a[i] == b[j] ? best[i][j] + 1 : std::max(best[i][j + 1], best[i + 1][j]);
    }
  }
  return best[a.size()][b.size()];
}

uint32_t Rows(const std::vector<ReuseSpan>& spans) {
  uint32_t rows = 0;
  for (const ReuseSpan& span : spans) rows += span.num_rows;
  return rows;
}

void ExpectValid(const std::vector<ReuseSpan>& spans, const Tokens& a, const Tokens& b) {
  uint32_t end = 0, donor_end = 0;
  for (const ReuseSpan& span : spans) {
    ASSERT_GT(span.num_rows, 0u);
    ASSERT_GE(span.position, end);
    ASSERT_GE(span.donor_position, donor_end);
    end = span.end();
    donor_end = span.donor_end();
    ASSERT_LE(end, a.size());
    ASSERT_LE(donor_end, b.size());
    for (uint32_t i = 0; i < span.num_rows; ++i) {
      ASSERT_EQ(a[span.position + i], b[span.donor_position + i]);
    }
  }
}

// A text with some of its tokens changed, taken out or put in.
Tokens Edited(base::Random& random, const Tokens& text, uint64_t one_in, uint64_t vocabulary) {
  Tokens edited;
  for (const TokenId token : text) {
    if (!random.OneIn(one_in)) {
      edited.push_back(token);
      continue;
    }
    const uint64_t kind = random.Below(3);
    if (kind < 2) edited = edited + Text(random, 1 + random.Below(3), vocabulary);
    if (kind == 0) edited.push_back(token);
  }
  return edited;
}

TEST(ShortestEdit, KeepsAsManyTokensAsTheLongestCommonSubsequence) {
  base::Random random(1);
  for (int round = 0; round < 500; ++round) {
    const uint64_t vocabulary = round % 2 == 0 ? 3 : 1000;
    const Tokens a = Text(random, random.Below(60), vocabulary);
    const Tokens b = round % 3 == 0 ? Text(random, random.Below(60), vocabulary)
                                    : Edited(random, a, 5, vocabulary);
    const auto runs = RunsOfShortestEdit(a, b, static_cast<uint32_t>(a.size() + b.size()));
    ASSERT_TRUE(runs.has_value());
    ExpectValid(*runs, a, b);
    ASSERT_EQ(Rows(*runs), NaiveLcs(a, b));
  }
}

TEST(ShortestEdit, GivesUpExactlyBeyondItsBound) {
  base::Random random(2);
  for (int round = 0; round < 200; ++round) {
    const Tokens a = Text(random, random.Below(40), 4), b = Text(random, random.Below(40), 4);
    const auto edits = static_cast<uint32_t>(a.size() + b.size() - 2 * NaiveLcs(a, b));
    EXPECT_TRUE(RunsOfShortestEdit(a, b, edits).has_value());
    if (edits > 0) {
      EXPECT_FALSE(RunsOfShortestEdit(a, b, edits - 1).has_value());
    }
  }
}

TEST(UniqueRuns, AreFoundInOrder) {
  base::Random random(3);
  const Tokens p = Text(random, 100), q = Text(random, 200), r = Text(random, 50);
  const Tokens a = Text(random, 500) + p + Text(random, 300) + q + r;
  const Tokens b = p + Text(random, 700) + q + Text(random, 400) + r;
  const auto runs = RunsOfUniqueGrams(a, b, 16);
  ExpectValid(runs, a, b);
  EXPECT_EQ(runs, (std::vector<ReuseSpan>{{500, 0, 100}, {900, 800, 200}, {1100, 1400, 50}}));
}

TEST(UniqueRuns, OfAnotherOrderAreTheLongestChain) {
  base::Random random(4);
  const Tokens p = Text(random, 100), q = Text(random, 60), r = Text(random, 80);
  const auto runs = RunsOfUniqueGrams(p + q + r, q + p + r, 16);
  EXPECT_EQ(runs, (std::vector<ReuseSpan>{{0, 60, 100}, {160, 160, 80}}));
}

TEST(UniqueRuns, AreValidWhateverRepeats) {
  base::Random random(5);
  for (int round = 0; round < 300; ++round) {
    const uint64_t vocabulary = 1 + random.Below(4);
    const Tokens a = Text(random, random.Below(200), vocabulary);
    const Tokens b = Edited(random, a, 10, vocabulary);
    const auto runs = RunsOfUniqueGrams(a, b, 4);
    ExpectValid(runs, a, b);
  }
}

AlignOptions Within(uint32_t max_edits) { return {.min_run = 16, .max_edits = max_edits}; }

TEST(Align, FindsThePolicyBehindAChangedClock) {
  base::Random random(6);
  const Tokens head = Text(random, 10), policy = Text(random, 1000);
  const Tokens a = head + Text(random, 6) + policy + Text(random, 30);
  const Tokens b = head + Text(random, 9) + policy + Text(random, 40);
  const Alignment alignment = Align(a, b, Within(200));
  EXPECT_TRUE(alignment.within_bound);
  ASSERT_EQ(alignment.spans.size(), 2u);
  EXPECT_EQ(alignment.spans[0], (ReuseSpan{0, 0, 10}));
  EXPECT_EQ(alignment.spans[1], (ReuseSpan{16, 19, 1000}));
  EXPECT_EQ(alignment.spans[1].shift(), -3);
  EXPECT_EQ(alignment.num_matched, 1010u);
}

TEST(Align, BeyondTheBoundFindsUniqueRuns) {
  base::Random random(7);
  const Tokens policy = Text(random, 300), end = Text(random, 20);
  const Tokens a = Text(random, 100) + policy + Text(random, 400) + end;
  const Tokens b = Text(random, 120) + policy + Text(random, 500) + end;
  const Alignment alignment = Align(a, b, Within(100));
  EXPECT_FALSE(alignment.within_bound);
  ExpectValid(alignment.spans, a, b);
  EXPECT_EQ(alignment.num_matched, 320u);
}

TEST(Align, DropsShortRunsAndLetsTheOthersGrow) {
  base::Random random(8);
  const Tokens p = Text(random, 40), q = Text(random, 15), r = Text(random, 40);
  const Tokens a = Text(random, 8) + p + Text(random, 3) + q + Text(random, 3) + r;
  const Tokens b = Text(random, 8) + p + Text(random, 2) + q + Text(random, 5) + r;
  const Alignment alignment = Align(a, b, Within(100));
  EXPECT_EQ(alignment.num_matched, 80u);
  EXPECT_EQ(alignment.spans.size(), 2u);
}

TEST(Align, CountsPassagesThatStandElsewhere) {
  base::Random random(13);
  const Tokens p = Text(random, 150), q = Text(random, 100), r = Text(random, 120);
  const Alignment moved = Align(p + q + r, q + p + r, Within(50));
  EXPECT_FALSE(moved.within_bound);
  EXPECT_EQ(moved.num_moved, 100u);
  EXPECT_EQ(Align(p + q + r, q + p + r, Within(500)).num_moved, 100u);
  EXPECT_EQ(Align(p + q + r, p + Text(random, 90) + r, Within(500)).num_moved, 0u);
}

TEST(Align, HasNothingToDoForEqualPrompts) {
  base::Random random(9);
  const Tokens a = Text(random, 100);
  EXPECT_EQ(Align(a, a, Within(0)).spans, (std::vector<ReuseSpan>{{0, 0, 100}}));
  EXPECT_EQ(Align(a, a + a, Within(0)).spans, (std::vector<ReuseSpan>{{0, 0, 100}}));
  EXPECT_TRUE(Align({}, a, Within(10)).spans.empty());
  EXPECT_TRUE(Align(a, {}, Within(10)).spans.empty());
}

TEST(Align, GivesUpTheDonorsFirstRows) {
  base::Random random(10);
  const Tokens text = Text(random, 100);
  const Alignment inserted = Align(Text(random, 50) + text, text, Within(100));
  EXPECT_EQ(inserted.spans, (std::vector<ReuseSpan>{{54, 4, 96}}));
  const Alignment deleted = Align(text, Text(random, 50) + text, Within(100));
  EXPECT_EQ(deleted.spans, (std::vector<ReuseSpan>{{4, 54, 96}}));
}

TEST(Align, GivesUpRowsUnderAnotherRole) {
  base::Random random(11);
  constexpr TokenId kStart = 1, kSystem = 10, kUser = 11;
  std::vector<uint8_t> special(20, 0);
  special[kStart] = 1;
  Tokens text = Text(random, 200), head = Text(random, 5), question = Text(random, 30);
  for (TokenId& token : text) token += 100;
  for (TokenId& token : question) token += 100;
  AlignOptions options = Within(300);
  options.special = special;
  const Tokens a = Tokens{kStart, kUser} + head + text + Tokens{kStart, kUser} + question;
  Tokens b = Tokens{kStart, kSystem} + Text(random, 5) + text + Tokens{kStart, kUser} + question;
  const auto other_role = Align(a, b, options).spans;
  ASSERT_FALSE(other_role.empty());
  EXPECT_EQ(other_role.back().position, 207u) << "from the next marker on";
  EXPECT_EQ(Rows(other_role), 32u + 1u) << "and the first token, which is the common prefix";
  b[1] = kUser;
  EXPECT_EQ(Rows(Align(a, b, options).spans), 2 + 200u + 32u);
}

TEST(Align, IsValidAndKeepsTheRunsThatAnEditLeaves) {
  base::Random random(12);
  for (int round = 0; round < 300; ++round) {
    const uint64_t vocabulary = round % 3 == 0 ? 5 : 2000;
    const Tokens b = Text(random, random.Below(400), vocabulary);
    const Tokens a = Edited(random, b, 10 + random.Below(90), vocabulary);
    const auto max_edits = static_cast<uint32_t>(random.Below(200));
    const Alignment alignment = Align(a, b, Within(max_edits));
    ExpectValid(alignment.spans, a, b);
    ASSERT_EQ(alignment.num_matched, Rows(alignment.spans));
    for (const ReuseSpan& span : alignment.spans) {
      if (span.position == 0 && span.donor_position == 0) continue;
      ASSERT_GE(span.num_rows, 16u);
      ASSERT_GE(span.position, kSinkRows);
      ASSERT_GE(span.donor_position, kSinkRows);
    }
    if (!alignment.within_bound || vocabulary < 100) continue;
    // Every run of one longest common subsequence that is long enough is in it.
    const auto runs = RunsOfShortestEdit(a, b, 1000);
    uint32_t expected = 0;
    for (const ReuseSpan& run : *runs) {
      if (run.num_rows >= 16 + kSinkRows) expected += run.num_rows - kSinkRows;
    }
    ASSERT_GE(alignment.num_matched, expected);
  }
}

TEST(MaxEdits, FollowsWhatThereIsToGain) {
  const SimilarOptions options;
  EXPECT_EQ(MaxEdits(2400, 2400, 270, options), 600u) << "a quarter of the prompt";
  EXPECT_EQ(MaxEdits(2400, 0, 270, options), 0u);
  EXPECT_LT(MaxEdits(2400, 2000, 1, options), 120u) << "a model so fast is not worth a search";
  EXPECT_GT(MaxEdits(2400, 2000, 1, options), 20u);
  EXPECT_EQ(MaxEdits(1u << 20, 1u << 20, 1e6, options), 2048u);
}

TEST(SpansBehind, CutsAtThePosition) {
  const std::vector<ReuseSpan> spans = {{0, 0, 10}, {20, 25, 30}, {60, 60, 5}};
  EXPECT_EQ(SpansBehind(spans, 0), spans);
  EXPECT_EQ(SpansBehind(spans, 24), (std::vector<ReuseSpan>{{24, 29, 26}, {60, 60, 5}}));
  EXPECT_TRUE(SpansBehind(spans, 100).empty());
}

}  // namespace
}  // namespace kvlink::match
