#include "cli/calibrate_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace kvlink::cli {
namespace {

using ::testing::HasSubstr;

std::vector<std::vector<TokenId>> Sentences() {
  base::Random random(5);
  std::vector<std::vector<TokenId>> sentences(200);
  for (auto& sentence : sentences) {
    sentence.resize(10 + random.Below(10));
    for (TokenId& token : sentence) token = static_cast<TokenId>(random.Below(20'000));
  }
  return sentences;
}

WindowOptions Small() {
  WindowOptions options;
  options.windows = {4, 64};
  options.lengths = {128, 512};
  options.gaps = {32, 300};
  options.queries = 20;
  return options;
}

const WindowFigures& Of(const std::vector<WindowFigures>& all, uint32_t window, uint32_t length,
                        uint32_t gap) {
  for (const WindowFigures& figures : all) {
    if (figures.window == window && figures.length == length && figures.gap == gap) return figures;
  }
  ADD_FAILURE() << "not measured";
  return all.front();
}

TEST(Windows, WideOnesMissDenseEditsAndNarrowOnesDoNot) {
  const match::NormalTokens classes;
  const auto all = MeasureWindows(Sentences(), classes, Small());
  ASSERT_EQ(all.size(), 8u);
  EXPECT_GE(Of(all, 4, 512, 32).recall(), 0.9);
  EXPECT_LT(Of(all, 64, 128, 32).recall(), Of(all, 4, 128, 32).recall());
  EXPECT_GE(Of(all, 64, 512, 300).recall(), 0.9) << "few edits: any window will do";
  for (const WindowFigures& figures : all) {
    EXPECT_LE(figures.right + figures.wrong, figures.queries);
  }
}

TEST(Windows, TheTableHasARowForEveryLength) {
  const match::NormalTokens classes;
  const WindowOptions options = Small();
  const std::string text = WindowTables(MeasureWindows(Sentences(), classes, options), options);
  EXPECT_THAT(text, HasSubstr("| prompt, tokens | window 4 | window 64 |\n|---|---|---|\n| 128 |"));
  EXPECT_THAT(text, HasSubstr("A token in 300 changed"));
}

}  // namespace
}  // namespace kvlink::cli
