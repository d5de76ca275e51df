#include "cli/signal_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

namespace kvlink::cli {
namespace {

TEST(SignalWatch, ASignalCallsTheAction) {
  SignalWatch watch;
  for (const int sent : {SIGTERM, SIGINT}) {
    std::promise<int> seen;
    watch.OnSignal([&](int number) { seen.set_value(number); });
    kill(getpid(), sent);
    EXPECT_EQ(seen.get_future().get(), sent);
  }
}

TEST(SignalWatchDeathTest, WithoutAnActionTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        SignalWatch watch;
        kill(getpid(), SIGTERM);
        sleep(30);
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(SignalWatch, ItEndsWithoutASignal) { SignalWatch watch; }

}  // namespace
}  // namespace kvlink::cli
