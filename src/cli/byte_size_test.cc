#include "cli/byte_size.h"

#include <gtest/gtest.h>

namespace kvlink::cli {
namespace {

TEST(ByteSize, AllSpellingsOfAUnitAreTheSamePowerOf1024) {
  for (const char* text :
       {"4G", "4g", "4GB", "4GiB", "4 GiB", "4096M", "4194304k", "4294967296", "4294967296B"}) {
    const auto size = ParseByteSize(text);
    ASSERT_TRUE(size.ok()) << text << ": " << size.status().message();
    EXPECT_EQ(*size, uint64_t{4} << 30) << text;
  }
}

TEST(ByteSize, FractionsAreTaken) { EXPECT_EQ(*ParseByteSize("1.5K"), 1536u); }

TEST(ByteSize, WhatIsNoSizeIsRefusedWithTheText) {
  for (const char* text : {"", "G", "-1", "4X", "4GiBB", "iB", "nan", "inf", "1e30", "four"}) {
    const auto size = ParseByteSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(ByteSize, FormattingKeepsThreeDigits) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1536), "1.50 KiB");
  EXPECT_EQ(FormatByteSize(uint64_t{12} << 20), "12.0 MiB");
  EXPECT_EQ(FormatByteSize(uint64_t{640} << 30), "640 GiB");
}

}  // namespace
}  // namespace kvlink::cli
