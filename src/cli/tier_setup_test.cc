#include "cli/tier_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace kvlink::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TierSetup : public ::testing::Test {
 protected:
  TierSetup() { setenv("XDG_CACHE_HOME", "/somewhere/cache", 1); }
  ~TierSetup() override { unsetenv("XDG_CACHE_HOME"); }

  std::string ErrorOf(const TierFlags& flags) {
    const auto tiers = ReadTierFlags(flags, true);
    EXPECT_FALSE(tiers.ok());
    return tiers.status().message();
  }
};

TEST_F(TierSetup, AServerHasAColdTierInTheUsersCacheFolder) {
  const auto tiers = ReadTierFlags({}, true);
  ASSERT_TRUE(tiers.ok());
  EXPECT_EQ(tiers->cold_dir, "/somewhere/cache/kvlink/cold");
  EXPECT_GT(tiers->cold_bytes, 0u);
  EXPECT_LE(tiers->cold_bytes, kDefaultColdBytes);
}

TEST_F(TierSetup, NothingIsOnDiskUnlessAskedForWhereThatIsNoDefault) {
  EXPECT_FALSE(ReadTierFlags({}, false)->any());
  EXPECT_EQ(ReadTierFlags({.cold_dir = "/d"}, false)->cold_dir, "/d");
}

TEST_F(TierSetup, EveryBlockIsWrittenWhereThatIsAskedFor) {
  EXPECT_EQ(ReadTierFlags({}, true)->write_head_start, TierOptions{}.write_head_start);
  EXPECT_GT(ReadTierFlags({.writes = "all"}, true)->write_head_start, std::chrono::hours(1000));
}

TEST_F(TierSetup, ColdCanBeSwitchedOff) {
  EXPECT_FALSE(ReadTierFlags({.no_cold = true}, true)->any());
  EXPECT_THAT(ErrorOf({.cold_dir = "/d", .no_cold = true}), HasSubstr("--no-cold"));
}

TEST_F(TierSetup, SizesAndAddressesThatCannotBeUsedAreNamed) {
  EXPECT_THAT(ErrorOf({.cold_size = "1K"}), HasSubstr("--cold-size is 1.00 KiB"));
  EXPECT_THAT(ErrorOf({.remote = "http://host"}), HasSubstr("--remote"));
  EXPECT_THAT(ErrorOf({.remote_ca = "/ca.pem"}), HasSubstr("--remote-ca"));
  EXPECT_THAT(ErrorOf({.remote = "redis://host", .remote_ca = "/ca.pem"}), HasSubstr("rediss://"));
}

TEST_F(TierSetup, APasswordIsNotShown) {
  const auto tiers =
      ReadTierFlags({.cold_dir = "/d", .remote = "redis://me:secret@host:7000"}, true);
  ASSERT_TRUE(tiers.ok());
  const std::string text = DescribeTiers(*tiers);
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, HasSubstr("remote redis://host:7000"));
  EXPECT_THAT(text, HasSubstr(" in /d"));
  EXPECT_EQ(DescribeTiers({}), "none");
}

}  // namespace
}  // namespace kvlink::cli
