#include "cli/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace kvlink::cli {
namespace {

class PlotTest : public ::testing::Test {
 protected:
  ~PlotTest() override { std::remove(path_.c_str()); }

  // The file's bytes; a PNG of a size that shows something.
  std::string Written() {
    std::ifstream file(path_, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    EXPECT_TRUE(bytes.str().starts_with("\x89PNG\r\n\x1a\n"));
    EXPECT_GT(bytes.str().size(), 5000u);
    return bytes.str();
  }

  const std::string path_ = ::testing::TempDir() + "plot-" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".png";
};

LinePlot Lines() {
  LinePlot plot{"KL against rows", "rows computed, %", "KL, nats", false, true, {}, {}};
  plot.series = {{"values", {{5, 1e-4}, {10, 1e-3}, {20, 4e-3}}, true, -1},
                 {"words", {{6, 2e-4}, {12, 2e-3}, {22, 3e-3}}, false, -1}};
  plot.levels = {{"noise floor", 3e-3}};
  return plot;
}

TEST_F(PlotTest, PointsAndLinesBecomeAPng) {
  const Status status = WritePlot(Lines(), path_);
  ASSERT_TRUE(status.ok()) << status.message();
  Written();
}

TEST_F(PlotTest, OtherPointsMakeAnotherPictureAndTheSameTheSame) {
  ASSERT_TRUE(WritePlot(Lines(), path_).ok());
  const std::string first = Written();
  ASSERT_TRUE(WritePlot(Lines(), path_).ok());
  EXPECT_EQ(Written(), first);
  LinePlot other = Lines();
  other.series[1].points[1].second *= 2;
  ASSERT_TRUE(WritePlot(other, path_).ok());
  EXPECT_NE(Written(), first);
}

TEST_F(PlotTest, BarsBecomeAPng) {
  const BarPlot plot{"Refused", "%", {"clock", "name"}, {{"before", {1, 20}}, {"after", {0, 3}}}};
  ASSERT_TRUE(WritePlot(plot, path_).ok());
  Written();
}

TEST_F(PlotTest, WhatCannotBeDrawnIsLeftOut) {
  LinePlot plot = Lines();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  plot.series.push_back({"odd", {{1, 0}, {2, -1}, {nan, 1}, {3, nan}}, true, -1});
  EXPECT_TRUE(WritePlot(plot, path_).ok());
  EXPECT_TRUE(WritePlot(LinePlot{}, path_).ok()) << "an empty one is a frame";
  EXPECT_TRUE(WritePlot(BarPlot{}, path_).ok());
}

TEST_F(PlotTest, AFileThatCannotBeWrittenIsNamed) {
  const Status status = WritePlot(Lines(), "/no/such/folder/plot.png");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("/no/such/folder/plot.png"), std::string::npos);
}

TEST(Ticks, AreRoundAndWithinTheirRange) {
  EXPECT_EQ(TicksOf(0, 100, false), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(TicksOf(1e-4, 1, true), (std::vector<double>{1e-4, 1e-3, 1e-2, 1e-1, 1}));
  EXPECT_TRUE(TicksOf(1, 1, false).empty());
  EXPECT_TRUE(TicksOf(0, 1, true).empty());
  for (const auto& [low, high] : {std::pair{0.0, 0.37}, {-3.0, 12.5}, {900.0, 905.0}}) {
    const auto ticks = TicksOf(low, high, false);
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 14u);
    EXPECT_GE(ticks.front(), low);
    EXPECT_LE(ticks.back(), high * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace kvlink::cli
