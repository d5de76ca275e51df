#include "verify/forward_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace kvlink::verify {
namespace {

// Spans ascending in both, with random gaps.
std::vector<ReuseSpan> RandomSpans(base::Random& random, uint32_t* num_tokens,
                                   uint32_t* donor_tokens) {
  std::vector<ReuseSpan> spans;
  uint32_t a = 0, b = 0;
  const uint64_t count = random.Below(6);
  for (uint64_t i = 0; i < count; ++i) {
    if (i > 0 || random.OneIn(2)) {
      a += static_cast<uint32_t>(random.Below(40));
      b += static_cast<uint32_t>(random.Below(40));
    }
    const auto rows = static_cast<uint32_t>(1 + random.Below(150));
    spans.push_back({a, b, rows});
    a += rows;
    b += rows;
  }
  *num_tokens = a + static_cast<uint32_t>(random.Below(30));
  *donor_tokens = b + static_cast<uint32_t>(random.Below(30));
  return spans;
}

// The two masks as they are defined: a cell is (row, column), and a donor's cell is the new
// prompt's cell of the matching row and column.
struct Masks {
  std::vector<int> donor_row;  // of a new row; -1: unmatched
  explicit Masks(const std::vector<ReuseSpan>& spans, uint32_t n) : donor_row(n, -1) {
    for (const ReuseSpan& span : spans) {
      for (uint32_t i = 0; i < span.num_rows; ++i) {
        donor_row[span.position + i] = static_cast<int>(span.donor_position + i);
      }
    }
  }
  // Common and united cells of row i and its donor's.
  void Count(uint32_t i, uint64_t* common, uint64_t* united) const {
    const auto pi = static_cast<uint32_t>(donor_row[i]);
    uint64_t both = 0;
    for (uint32_t column = 0; column <= i; ++column) {
      if (donor_row[column] >= 0 && static_cast<uint32_t>(donor_row[column]) <= pi) ++both;
    }
    *common = both;
    *united = (i + 1) + (pi + 1) - both;
  }
};

TEST(MaskSimilarity, EqualsBruteForce) {
  base::Random random(1);
  for (int round = 0; round < 200; ++round) {
    uint32_t n = 0, d = 0;
    const std::vector<ReuseSpan> spans = RandomSpans(random, &n, &d);
    const Masks masks(spans, n);
    double sum = 0;
    uint64_t rows = 0, common_cells = 0;
    for (size_t k = 0; k < spans.size(); ++k) {
      double span_sum = 0;
      for (uint32_t i = spans[k].position; i < spans[k].end(); ++i) {
        uint64_t common = 0, united = 0;
        masks.Count(i, &common, &united);
        span_sum += static_cast<double>(common) / static_cast<double>(united);
        common_cells += common;
      }
      ASSERT_NEAR(SpanSimilarity(spans, k), span_sum / spans[k].num_rows, 1e-9);
      sum += span_sum;
      rows += spans[k].num_rows;
    }
    const double mean = rows == 0 ? 0 : sum / static_cast<double>(rows);
    ASSERT_NEAR(RowSimilarity(spans), mean, 1e-9);
    const double cells = n * (n + 1.0) / 2 + d * (d + 1.0) / 2;
    const auto common = static_cast<double>(common_cells);
    ASSERT_NEAR(MatrixSimilarity(spans, n, d), rows == 0 ? 0 : common / (cells - common), 1e-9);
  }
}

// Values of the note on which the threshold was chosen: {edited, at, of} tokens replaced.
TEST(MaskSimilarity, HasTheKnownValues) {
  const auto replaced = [](uint32_t count, uint32_t at, uint32_t of) {
    return std::vector<ReuseSpan>{{0, 0, at}, {at + count, at + count, of - at - count}};
  };
  EXPECT_NEAR(RowSimilarity(replaced(1, 50, 1000)), .994, .0006);
  EXPECT_NEAR(RowSimilarity(replaced(10, 50, 1000)), .946, .0006);
  EXPECT_NEAR(MatrixSimilarity(replaced(10, 50, 1000), 1000, 1000), .961, .0006);
  EXPECT_NEAR(RowSimilarity(replaced(10, 5, 100)), .674, .0006);
  EXPECT_NEAR(RowSimilarity(replaced(10, 900, 1000)), .998, .0006);
  const std::vector<ReuseSpan> inserted = {{0, 0, 100}, {160, 100, 900}};
  EXPECT_NEAR(RowSimilarity(inserted), .887, .0006);
}

ForwardVerdict Check(const std::vector<ReuseSpan>& spans, uint32_t n, uint32_t d,
                     uint32_t exact = 0, uint32_t moved = 0) {
  return CheckForward({.spans = spans,
                       .num_moved = moved,
                       .num_tokens = n,
                       .donor_tokens = d,
                       .exact_tokens = exact},
                      SimilarOptions());
}

TEST(ForwardCheck, LetsAChangedClockThrough) {
  const auto verdict = Check({{0, 0, 8}, {28, 25, 2300}}, 2360, 2370, 8);
  EXPECT_EQ(verdict.reason, SimilarReason::kNone);
  EXPECT_EQ(verdict.spans, (std::vector<ReuseSpan>{{28, 25, 2300}}));
  EXPECT_EQ(verdict.reused_rows, 2300u);
  EXPECT_GT(verdict.mask_similarity, .9);
}

TEST(ForwardCheck, CountsOnlyRowsBehindTheExactOnes) {
  const auto verdict = Check({{0, 0, 500}, {510, 510, 400}}, 950, 960, 300);
  EXPECT_EQ(verdict.spans, (std::vector<ReuseSpan>{{300, 300, 200}, {510, 510, 400}}));
  EXPECT_EQ(Check({{0, 0, 500}}, 560, 600, 500).reason, SimilarReason::kFewRows);
}

TEST(ForwardCheck, RefusesRowsThatSawOtherContexts) {
  EXPECT_EQ(Check({{40, 40, 300}}, 350, 350).reason, SimilarReason::kMaskMismatch);
  const auto refused = Check({{400, 10, 100}}, 510, 120);
  EXPECT_EQ(refused.reason, SimilarReason::kFewRows) << "the span alone is not similar enough";
  EXPECT_TRUE(refused.spans.empty());
}

TEST(ForwardCheck, RefusesWhatIsNearlyAFullPrefill) {
  EXPECT_EQ(Check({{0, 0, 300}}, 1000, 1000).reason, SimilarReason::kTooMuchWork);
  EXPECT_EQ(Check({{0, 0, 500}}, 1000, 1000).reason, SimilarReason::kNone);
}

// Four passages of 150 tokens in another order behind an instruction: B A D C.
TEST(ForwardCheck, RefusesReorderedPassages) {
  for (const uint32_t head : {0u, 300u, 3000u}) {
    std::vector<ReuseSpan> spans = {{head + 150, head, 150}, {head + 450, head + 300, 150}};
    if (head > 0) spans.insert(spans.begin(), {0, 0, head});
    EXPECT_EQ(Check(spans, head + 630, head + 640, head, 300).reason, SimilarReason::kReordered);
    EXPECT_TRUE(Check(spans, head + 630, head + 640, head, 300).spans.empty());
  }
}

TEST(ForwardCheck, NamesTheAttentionItDoesNotSupport) {
  const char* why = nullptr;
  EXPECT_EQ(CheckAttention({}, &why), SimilarReason::kNone);
  EXPECT_STREQ(why, "");
  const std::vector<std::pair<AttentionTraits, std::string>> refused = {
      {{.sliding_window = 512}, "sliding window"},
      {{.several_axes = true}, "M-RoPE"},
      {{.linear_angles = false}, "angles"},
      {{.recurrent = true}, "recurrent"},
      {{.causal = false}, "causal"},
      {{.rotary = false}, "rotary"}};
  for (const auto& [traits, word] : refused) {
    EXPECT_EQ(CheckAttention(traits, &why), SimilarReason::kAttention);
    EXPECT_NE(std::string(why).find(word), std::string::npos) << why;
  }
  EXPECT_EQ(CheckAttention({.sliding_window = 1}), SimilarReason::kAttention);
}

}  // namespace
}  // namespace kvlink::verify
