#include "verify/row_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/random.h"

namespace kvlink::verify {
namespace {

constexpr uint32_t kLayers = 30;
const float kUnknown = std::nanf("");

LayerPlan PlanOf(const SimilarOptions& options) {
  SimilarOptions unlimited = options;
  unlimited.max_reuse_distance =
      options.mode == ReuseMode::kSeam || options.mode == ReuseMode::kBlend
          ? kLayers
          : options.max_reuse_distance;
  const auto plan = PlanLayers(unlimited, kLayers, CheckpointsFor(unlimited, kLayers));
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *plan;
}

std::set<uint32_t> RowsOf(const Selection& selection) {
  std::set<uint32_t> rows;
  for (const Selection::Range& range : selection.computed) {
    for (uint32_t i = 0; i < range.num_rows; ++i) rows.insert(range.position + i);
  }
  return rows;
}

// A clock in the head of a long policy, another question behind it.
class ChangedClock : public ::testing::Test {
 protected:
  ChangedClock() : received(2400, 1.0f) {
    request.spans = spans;
    request.exact_tokens = 8;
    request.num_tokens = 2360;
  }
  Selection Select(const Selection* before = nullptr) {
    return SelectRows(request, PlanOf(options), options, before);
  }

  const std::vector<ReuseSpan> spans = {{28, 28, 2300}};
  std::vector<float> received;
  SelectRequest request;
  SimilarOptions options;
};

TEST_F(ChangedClock, SeamRunsTheEditsTheRowsBehindThemAndTheTail) {
  const Selection selection = Select();
  const auto rows = RowsOf(selection);
  for (uint32_t row = 8; row < 36; ++row) EXPECT_TRUE(rows.contains(row)) << row;
  for (uint32_t row = 2328; row < 2360; ++row) EXPECT_TRUE(rows.contains(row)) << row;
  EXPECT_FALSE(rows.contains(7)) << "exact";
  EXPECT_TRUE(std::ranges::none_of(rows, [](uint32_t row) { return row >= 100 && row < 2328; }));
  EXPECT_EQ(selection.num_computed, rows.size());
  EXPECT_LT(selection.compute_share, .05);
  EXPECT_LT(selection.modified_share, .02);
  EXPECT_EQ(selection.reentry_layer, kLayers);
}

TEST_F(ChangedClock, RowsBehindAnEditGetThinnerWithTheirDistance) {
  options.close_gap = 0;
  options.seam_reach = 64;
  const auto rows = RowsOf(Select());
  size_t last = 1000;
  for (uint32_t from = 36; from < 28 + 512; from = 28 + 2 * (from - 28)) {
    const auto count = static_cast<size_t>(
        std::distance(rows.lower_bound(from), rows.lower_bound(28 + 2 * (from - 28))));
    EXPECT_GE(count, 5u) << "dense / t over a doubling of t: dense * ln 2";
    EXPECT_LE(count, 6u);
    last = count;
  }
  EXPECT_LT(last, 1000u);
}

TEST_F(ChangedClock, SeamAddsTheStrongestReceiversWithinItsShare) {
  request.received = received;
  options.note_share = .05;
  for (uint32_t row = 500; row < 560; ++row) received[row] = 5;
  auto rows = RowsOf(Select());
  for (uint32_t row = 500; row < 560; ++row) EXPECT_TRUE(rows.contains(row)) << row;
  EXPECT_LE(Select().modified_share, options.seam_compute_share + .01);
  options.seam_compute_share = .02;
  rows = RowsOf(Select());
  EXPECT_LE(Select().modified_share, .03);
  EXPECT_TRUE(rows.contains(28 + 7)) << "rows behind the edit come first";
}

TEST_F(ChangedClock, AShiftedSpanGetsALongerSeam) {
  const std::vector<ReuseSpan> shifted = {{28, 25, 2300}};
  const uint32_t plain = Select().num_computed;
  request.spans = shifted;
  EXPECT_GT(Select().num_computed, plain + 8);
}

TEST_F(ChangedClock, EnlargingKeepsWhatWasSelectedAndAddsHalf) {
  for (const bool has_received : {false, true}) {
    if (has_received) request.received = received;
    const Selection before = Select();
    const Selection after = Select(&before);
    const auto old_rows = RowsOf(before), new_rows = RowsOf(after);
    EXPECT_TRUE(std::ranges::includes(new_rows, old_rows));
    const double in_spans = before.modified_share * 2300;
    EXPECT_GE(after.modified_share * 2300, 1.5 * in_spans - 1);
    EXPECT_LE(after.num_computed, 2 * before.num_computed + 40);
  }
}

TEST_F(ChangedClock, TheOtherModesFillTheirBudgetByAttentionAndDeviation) {
  std::vector<float> deviation(2360, 0.0f);
  for (uint32_t row = 1000; row < 1400; ++row) deviation[row] = 0.5f;
  request.received = received;
  request.deviation = deviation;
  for (const ReuseMode mode : {ReuseMode::kLayered, ReuseMode::kBlend, ReuseMode::kAnchored}) {
    options.mode = mode;
    const Selection selection = Select();
    EXPECT_NEAR(selection.num_computed, .30 * 2352, 40);
    const auto rows = RowsOf(selection);
    for (uint32_t row = 1000; row < 1400; ++row) ASSERT_TRUE(rows.contains(row)) << row;
  }
}

// The figures of the note: f and the cells that are modified, at rho .30 of 30 layers.
TEST_F(ChangedClock, SharesAreThoseOfTheModes) {
  request.received = received;
  options.mode = ReuseMode::kLayered;
  EXPECT_NEAR(Select().compute_share, .84, .01);
  EXPECT_NEAR(Select().modified_share, .83, .02);
  options.mode = ReuseMode::kBlend;
  EXPECT_NEAR(Select().compute_share, .32, .01);
  options.mode = ReuseMode::kAnchored;
  EXPECT_NEAR(Select().compute_share, .39, .01);
  EXPECT_NEAR(Select().modified_share, .39, .02);
}

TEST(RowSelection, IsValidForAnySpans) {
  base::Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<ReuseSpan> spans;
    const auto exact = static_cast<uint32_t>(random.Below(50));
    uint32_t at = exact, donor_at = exact;
    for (uint64_t i = random.Below(4); i > 0; --i) {
      at += static_cast<uint32_t>(random.Below(60));
      donor_at += static_cast<uint32_t>(random.Below(60));
      const auto rows = static_cast<uint32_t>(16 + random.Below(200));
      spans.push_back({at, donor_at, rows});
      at += rows;
      donor_at += rows;
    }
    const uint32_t num_tokens = at + 1 + static_cast<uint32_t>(random.Below(40));
    std::vector<float> received(random.OneIn(3) ? 0 : donor_at), deviation(num_tokens, kUnknown);
    for (float& a : received) a = static_cast<float>(random.Unit());
    for (float& d : deviation) d = random.OneIn(3) ? static_cast<float>(random.Unit()) : kUnknown;
    const SelectRequest request{spans, exact, num_tokens, received, deviation};
    SimilarOptions options;
    options.mode = static_cast<ReuseMode>(random.Below(4));
    const LayerPlan plan = PlanOf(options);
    const Selection first = SelectRows(request, plan, options);
    const Selection selection =
        random.OneIn(2) ? first : SelectRows(request, plan, options, &first);
    uint32_t rows = 0, end = 0;
    for (const Selection::Range& range : selection.computed) {
      ASSERT_GT(range.num_rows, 0u);
      ASSERT_TRUE(rows == 0 || range.position > end) << "ranges touch";
      ASSERT_GE(range.position, exact);
      end = range.position + range.num_rows;
      ASSERT_LE(end, num_tokens);
      rows += range.num_rows;
    }
    ASSERT_EQ(selection.num_computed, rows);
    ASSERT_EQ(end, num_tokens) << "the last row always runs";
    ASSERT_LE(selection.compute_share, 1);
    const auto all = RowsOf(selection);
    ASSERT_TRUE(std::ranges::includes(all, RowsOf(first)));
    for (uint32_t row = exact; row < num_tokens; ++row) {
      const bool in_span = std::ranges::any_of(
          spans, [&](const ReuseSpan& span) { return row >= span.position && row < span.end(); });
      ASSERT_TRUE(in_span || all.contains(row)) << "row " << row << " has no K and V";
    }
  }
}

TEST(BlastRadius, IsTheAttentionOnChangedRowsThatWereNotComputed) {
  const std::vector<ReuseSpan> spans = {{10, 10, 100}};
  std::vector<float> received(110, 1.0f), deviation(120, 0.0f);
  SelectRequest request{spans, 10, 120, received, deviation};
  Selection selection;
  EXPECT_DOUBLE_EQ(BlastRadius(request, selection).value(), 0);
  for (uint32_t row = 50; row < 60; ++row) deviation[row] = 0.5f;
  EXPECT_NEAR(BlastRadius(request, selection).value(), 10 * 0.5 / 100, 1e-9);
  selection.computed = {{50, 5}};
  EXPECT_NEAR(BlastRadius(request, selection).value(), 5 * 0.5 / 100, 1e-9);
  for (uint32_t row = 55; row < 60; ++row) received[row] = 21;
  EXPECT_NEAR(BlastRadius(request, selection).value(), 5 * 21 * 0.5 / 200, 1e-9);
}

TEST(BlastRadius, FillsInWhatWasNotMeasuredFromTheRowBefore) {
  const std::vector<ReuseSpan> spans = {{0, 0, 10}};
  const std::vector<float> received(10, 1.0f);
  std::vector<float> deviation(10, kUnknown);
  const SelectRequest request{spans, 0, 10, received, deviation};
  EXPECT_FALSE(BlastRadius(request, {}).has_value()) << "nothing was measured";
  deviation[2] = 0.4f;
  deviation[6] = 0.1f;
  EXPECT_NEAR(BlastRadius(request, {}).value(), (6 * 0.4 + 4 * 0.1) / 10, 1e-6);
  EXPECT_FALSE(BlastRadius({spans, 0, 10, {}, deviation}, {}).has_value());
}

}  // namespace
}  // namespace kvlink::verify
