#include "server/memory_watch.h"

#include <gtest/gtest.h>

#include <optional>

namespace kvlink::server {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A machine whose memory the cache fills, with what it withholds given back at once.
class MemoryWatchTest : public ::testing::Test {
 protected:
  uint64_t withheld() const { return withheld_.value_or(0); }
  MemoryWatch watch_{
      {.reserve_bytes = 100 * kMiB, .step_bytes = 10 * kMiB, .available = [this] { return read_; }},
      {.budget_bytes = 1000 * kMiB,
       .free_bytes = [this] { return free_; },
       .withhold =
           [this](uint64_t bytes) {
             withheld_ = bytes;
             ++calls_;
           }}};
  uint64_t read_ = 500 * kMiB, free_ = 0;
  std::optional<uint64_t> withheld_;
  int calls_ = 0;
};

TEST_F(MemoryWatchTest, WithEnoughMemoryNothingIsDone) {
  for (int i = 0; i < 10; ++i) watch_.Look();
  EXPECT_EQ(calls_, 0);
  EXPECT_FALSE(watch_.refuses());
  EXPECT_EQ(watch_.figures().shortages, 0u);
  EXPECT_EQ(watch_.figures().available_bytes, 500 * kMiB);
}

TEST_F(MemoryWatchTest, BelowTheReserveTheCacheDoesWithoutWhatIsMissing) {
  read_ = 70 * kMiB;
  watch_.Look();
  EXPECT_EQ(withheld(), 30 * kMiB);
  EXPECT_FALSE(watch_.refuses());
  watch_.Look();  // it did not help enough
  EXPECT_EQ(withheld(), 60 * kMiB);
  read_ = 99 * kMiB;
  watch_.Look();
  EXPECT_EQ(withheld(), 70 * kMiB);  // a step at least
  EXPECT_EQ(watch_.figures().shortages, 3u);
}

TEST_F(MemoryWatchTest, WhatTheCacheDoesNotUseComesOnTop) {
  free_ = 400 * kMiB;
  read_ = 80 * kMiB;
  watch_.Look();
  EXPECT_EQ(withheld(), 420 * kMiB);
}

TEST_F(MemoryWatchTest, NeverMoreThanTheBudgetIsWithheld) {
  read_ = kMiB;
  for (int i = 0; i < 100; ++i) watch_.Look();
  EXPECT_EQ(withheld(), 1000 * kMiB);
}

TEST_F(MemoryWatchTest, BelowHalfOfTheReserveNewWorkIsRefusedUntilThereIsMore) {
  read_ = 49 * kMiB;
  watch_.Look();
  EXPECT_TRUE(watch_.refuses());
  read_ = 51 * kMiB;
  watch_.Look();
  EXPECT_FALSE(watch_.refuses());
}

TEST_F(MemoryWatchTest, TheCacheGetsItsBudgetBackByStepsWhenThereIsMuch) {
  read_ = 70 * kMiB;
  watch_.Look();
  read_ = 150 * kMiB;  // enough, but not so much that the cache could grow at once
  watch_.Look();
  EXPECT_EQ(withheld(), 30 * kMiB);
  read_ = 201 * kMiB;
  watch_.Look();
  EXPECT_EQ(withheld(), 20 * kMiB);
  for (int i = 0; i < 5; ++i) watch_.Look();
  EXPECT_EQ(withheld(), 0u);
  EXPECT_EQ(calls_, 4);
}

TEST_F(MemoryWatchTest, WhereNobodyKnowsTheMemoryNothingIsDone) {
  read_ = 0;
  watch_.Look();
  EXPECT_EQ(calls_, 0);
  EXPECT_FALSE(watch_.refuses());
}

}  // namespace
}  // namespace kvlink::server
