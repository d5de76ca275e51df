#include "cli/bench_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlink::cli {
namespace {

TEST(BenchOps, AListIsTakenApart) {
  const auto ops = ParseOps("prefill:512,decode:2048,shared:10x2048,distinct:4x64");
  ASSERT_TRUE(ops.ok()) << ops.status().message();
  ASSERT_EQ(ops->size(), 4u);
  EXPECT_EQ((*ops)[0].kind, OpSpec::Kind::kPrefill);
  EXPECT_EQ((*ops)[0].context, 512u);
  EXPECT_EQ((*ops)[1].kind, OpSpec::Kind::kDecode);
  EXPECT_EQ((*ops)[2].kind, OpSpec::Kind::kShared);
  EXPECT_EQ((*ops)[2].sequences, 10u);
  EXPECT_EQ((*ops)[2].context, 2048u);
  EXPECT_EQ((*ops)[3].kind, OpSpec::Kind::kDistinct);
  EXPECT_EQ((*ops)[3].name, "distinct:4x64");
}

TEST(BenchOps, WhatIsNoOperationIsNamed) {
  for (const char* part : {"", "prefill", "prefill:", "prefill:0", "prefill:-1", "decode:2x64",
                           "shared:10", "shared:x64", "shared:10x", "sharedd:1x1", "prefill:1k"}) {
    const auto ops = ParseOps("decode:16," + std::string(part));
    ASSERT_FALSE(ops.ok()) << part;
    EXPECT_THAT(ops.status().message(),
                testing::HasSubstr("--synthetic: '" + std::string(part) + "'"));
  }
}

}  // namespace
}  // namespace kvlink::cli
