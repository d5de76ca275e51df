#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvlink::cli {
namespace {

// What a run of `use` on a Progress writes.
template <typename Use>
std::string Written(bool terminal, Use use) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(file, "loading", terminal);
    use(progress);
  }
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(Progress, ALogGetsAtMostALinePerTenth) {
  const std::string text = Written(false, [](Progress& progress) {
    for (int i = 0; i <= 1000; ++i) progress.Update(i / 1000.0);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11);
  EXPECT_THAT(text, testing::StartsWith("loading: 0 %\n"));
  EXPECT_THAT(text, testing::EndsWith("loading: 100 %\n"));
}

TEST(Progress, ATerminalGetsABarAndOneLineBreakAtTheEnd) {
  const std::string text = Written(true, [](Progress& progress) {
    progress.Update(0.5, "half");
    progress.Finish("done");
  });
  EXPECT_THAT(text, testing::HasSubstr("[###############...............]  50 % half"));
  EXPECT_THAT(text, testing::HasSubstr("100 % done"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Progress, ItNeverRunsBackwards) {
  const std::string text = Written(false, [](Progress& progress) {
    progress.Update(0.6);
    progress.Update(0.2);
  });
  EXPECT_EQ(text, "loading: 60 %\n");
}

TEST(Progress, ADismissedBarLeavesATerminalsLineEmpty) {
  const auto use = [](Progress& progress) {
    progress.Update(0.5);
    progress.Dismiss();
    progress.Update(0.9);
  };
  EXPECT_THAT(Written(true, use), testing::EndsWith("50 % \033[K\r\033[K"));
  EXPECT_EQ(Written(false, use), "loading: 50 %\n");
  EXPECT_EQ(Written(true, [](Progress& progress) { progress.Dismiss(); }), "");
}

TEST(Progress, NothingIsWrittenWhenNothingHappened) {
  EXPECT_EQ(Written(false, [](Progress&) {}), "");
}

}  // namespace
}  // namespace kvlink::cli
