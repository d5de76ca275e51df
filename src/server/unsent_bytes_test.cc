#include "server/unsent_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlink::server {
namespace {

TEST(UnsentBytes, WhatIsAddedDuringAWriteLeavesWithTheNextOneTogether) {
  UnsentBytes unsent(100);
  unsent.Add("one");
  EXPECT_EQ(unsent.Next(), "one");
  EXPECT_TRUE(unsent.writing());
  unsent.Add("two");
  unsent.Add("three");
  EXPECT_EQ(unsent.bytes(), 11u);
  unsent.Wrote(3);
  EXPECT_FALSE(unsent.writing());
  EXPECT_EQ(unsent.Next(), "twothree");
  unsent.Wrote(8);
  EXPECT_EQ(unsent.bytes(), 0u);
}

TEST(UnsentBytes, AWriteThatTookAPartGoesOnBehindIt) {
  UnsentBytes unsent(100);
  unsent.Add("abcdef");
  unsent.Next();
  unsent.Add("gh");
  unsent.Wrote(2);
  EXPECT_EQ(unsent.Next(), "cdef");
  unsent.Wrote(4);
  EXPECT_EQ(unsent.Next(), "gh");
}

TEST(UnsentBytes, TheWindowIsOpenUntilEnoughWasTakenOrAll) {
  UnsentBytes unsent(10);
  unsent.Add(std::string(30, 'x'));
  unsent.Next();
  EXPECT_TRUE(unsent.OpenWindow());
  EXPECT_FALSE(unsent.Wrote(4));
  unsent.Next();
  EXPECT_FALSE(unsent.OpenWindow()) << "its time has begun";
  EXPECT_TRUE(unsent.window_is_open());
  EXPECT_TRUE(unsent.Wrote(6));
  EXPECT_FALSE(unsent.window_is_open());
  unsent.Next();
  EXPECT_TRUE(unsent.OpenWindow());
  EXPECT_FALSE(unsent.Wrote(9)) << "what was taken before does not count";
  unsent.Next();
  EXPECT_TRUE(unsent.Wrote(11));
  unsent.Add("rest");
  unsent.Next();
  unsent.OpenWindow();
  EXPECT_TRUE(unsent.Wrote(4)) << "little, but all there is";
}

TEST(UnsentBytes, WhatIsBeingWrittenStandsStillWhenTheRestIsDropped) {
  UnsentBytes unsent(10);
  unsent.Add("first");
  const std::string_view next = unsent.Next();
  unsent.Add("second");
  unsent.DropWaiting();
  EXPECT_EQ(next, "first");
}

}  // namespace
}  // namespace kvlink::server
