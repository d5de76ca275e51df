#include "server/request_trace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvlink::server {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kHeader = "00-" + kTrace + "-" + kParent + "-01";

TEST(RequestTrace, AValidTraceparentIsTakenApartAndGetsASpanOfItsOwn) {
  const auto context = ParseTraceContext(kHeader, "", 0xabcdef);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kParent);
  EXPECT_EQ(context->flags, 1);
  EXPECT_EQ(context->span_id, "0000000000abcdef");
  EXPECT_EQ(context->Response(), "00-" + kTrace + "-0000000000abcdef-01");
}

TEST(RequestTrace, ASpanIsNeverZero) {
  EXPECT_EQ(ParseTraceContext(kHeader, "", 0)->span_id, "0000000000000001");
}

TEST(RequestTrace, WhatIsNoTraceparentCountsAsAbsent) {
  const std::vector<std::string> bad = {
      "",
      "00-" + kTrace + "-" + kParent,                            // no flags
      kHeader + "-more",                                         // version 00 has four fields
      kHeader + "0",                                             //
      "ff-" + kTrace + "-" + kParent + "-01",                    // forbidden version
      "0g-" + kTrace + "-" + kParent + "-01",                    //
      "00-" + std::string(32, '0') + "-" + kParent + "-01",      // a trace of zeros
      "00-" + kTrace + "-" + std::string(16, '0') + "-01",       // a parent of zeros
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01",  // capitals
      "00_" + kTrace + "-" + kParent + "-01",
      "00-" + kTrace + "_" + kParent + "-01",
      "00-" + kTrace + "-" + kParent + "_01",
      "00-" + kTrace + "-" + kParent + "-0x",
      "01-" + kTrace + "-" + kParent + "-01x",  // a later version goes on with a dash
  };
  for (const std::string& header : bad) {
    EXPECT_FALSE(ParseTraceContext(header, "", 1).has_value()) << header;
  }
}

TEST(RequestTrace, ALaterVersionIsReadAsTheFirst) {
  const auto context = ParseTraceContext("cc-" + kTrace + "-" + kParent + "-09-more", "", 5);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->Response(), "00-" + kTrace + "-0000000000000005-01");  // unknown flags off
}

TEST(RequestTrace, TracestateIsKeptWhenValidAndDroppedWithoutTheParentOtherwise) {
  EXPECT_EQ(ParseTraceContext(kHeader, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", 1)->state,
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(ParseTraceContext(kHeader, "rojo=1,rojo=2", 1)->state, "");
  EXPECT_FALSE(ParseTraceContext("nonsense", "rojo=1", 1).has_value());
}

TEST(RequestTrace, TracestateFollowsItsGrammar) {
  for (const char* good : {"a=1", " a=1 , b=2 ", "a=1,,b=2", "0tenant@sys=x y", "a_-*/=~!"}) {
    EXPECT_TRUE(IsTraceState(good)) << good;
  }
  for (const char* bad : {"", ",", "a", "A=1", "a=", "=1", "a=1=2", "a@b@c=1", "a@=1", "a=\x01",
                          "a=\xc3\xa9", "a b=1"}) {
    EXPECT_FALSE(IsTraceState(bad)) << bad;
  }
  std::string many;
  for (int i = 0; i < 32; ++i) many += (i == 0 ? "k" : ",k") + std::to_string(i) + "=v";
  EXPECT_TRUE(IsTraceState(many));
  EXPECT_FALSE(IsTraceState(many + ",k32=v"));
  EXPECT_FALSE(IsTraceState("a=" + std::string(257, 'x')));
}

TEST(RequestTrace, ARequestIdHasNothingThatCouldBreakALine) {
  for (const char* good : {"a", "7f3c-21", "req_1:2/3+4=5@6~7", "A.b"}) {
    EXPECT_TRUE(IsRequestId(good)) << good;
  }
  for (const char* bad : {"", "a b", "a\nb", "a\r", "a\"b", "caf\xc3\xa9", "a;b", "<x>", "a,b"}) {
    EXPECT_FALSE(IsRequestId(bad)) << bad;
  }
  EXPECT_TRUE(IsRequestId(std::string(128, 'x')));
  EXPECT_FALSE(IsRequestId(std::string(129, 'x')));
}

}  // namespace
}  // namespace kvlink::server
