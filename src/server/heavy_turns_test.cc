#include "server/heavy_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvlink::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HeavyTurns, AreGivenInTheOrderOfEnteringAndNoMoreThanThereAre) {
  HeavyTurns turns;
  turns.Add(1);
  std::vector<int> begun;
  for (int i = 0; i < 5; ++i) turns.Enter([&begun, i] { begun.push_back(i); });
  EXPECT_THAT(begun, ElementsAre(0, 1));
  turns.Leave();
  EXPECT_THAT(begun, ElementsAre(0, 1, 2));
  turns.Leave();
  turns.Leave();
  EXPECT_THAT(begun, ElementsAre(0, 1, 2, 3, 4));
  turns.Leave();
  turns.Leave();
  turns.Enter([&begun] { begun.push_back(5); });
  EXPECT_EQ(begun.back(), 5) << "turns that were given back are there again";
}

TEST(HeavyTurns, ManyThreadsNeverHoldMoreTurnsThanThereAreAndAllGetOne) {
  HeavyTurns turns(3);
  std::atomic<int> holding{0}, most{0}, done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        std::atomic<bool> mine{false};
        turns.Enter([&mine] { mine = true; });
        while (!mine) std::this_thread::yield();
        const int now = ++holding;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        --holding;
        ++done;
        turns.Leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 1600);
  EXPECT_LE(most, 3);
}

}  // namespace
}  // namespace kvlink::server
