#include "base/thread_team.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvlink::base {
namespace {

TEST(ThreadTeam, RunsTheFunctionOnceOnEachThread) {
  for (const int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.num_threads(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int round = 0; round < 100; ++round) {
      team.Run(team.num_threads(), [&](int thread) { ++calls[static_cast<size_t>(thread)]; });
    }
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 100));
  }
}

// Each thread reads what its neighbour wrote before the barrier; more threads than cores.
TEST(ThreadTeam, ABarrierShowsWhatTheOthersWrote) {
  constexpr int kThreads = 7, kRounds = 2000;
  ThreadTeam team(kThreads);
  std::vector<int> written(kThreads);
  std::atomic<int> wrong{0};
  team.Run(team.num_threads(), [&](int thread) {
    for (int round = 1; round <= kRounds; ++round) {
      written[static_cast<size_t>(thread)] = round;
      team.Barrier(thread);
      if (written[static_cast<size_t>((thread + 1) % kThreads)] != round) ++wrong;
      team.Barrier(thread);
    }
  });
  EXPECT_EQ(wrong, 0);
}

// A thread that is late by more than the others spin finds them again, as does a late start.
TEST(ThreadTeam, SleepersAreWoken) {
  ThreadTeam team(3);
  std::atomic<int> passed{0};
  for (int round = 0; round < 10; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    team.Run(team.num_threads(), [&](int thread) {
      if (thread == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      team.Barrier(thread);
      ++passed;
    });
  }
  EXPECT_EQ(passed, 30);
}

TEST(ThreadTeam, RunsOnSomeOfItsThreads) {
  ThreadTeam team(4);
  for (int round = 0; round < 3000; ++round) {
    const int active = 1 + round * 7 % 4;
    std::atomic<int> calls{0}, wrong{0};
    team.Run(active, [&](int thread) {
      if (thread >= active) ++wrong;
      ++calls;
      team.Barrier(thread);
      if (calls != active) ++wrong;
    });
    ASSERT_EQ(calls, active);
    ASSERT_EQ(wrong, 0);
  }
}

TEST(ThreadTeam, EndsWithoutEverHavingRun) { ThreadTeam team(4); }

}  // namespace
}  // namespace kvlink::base
