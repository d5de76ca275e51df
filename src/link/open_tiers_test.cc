// A cache on the tiers that its options name, and what is said of options that name none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "link/cache_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 8;
using ::testing::HasSubstr;

class OpenTiersTest : public ::testing::Test {
 protected:
  OpenTiersTest() : folder_("open_tiers_test-" + std::to_string(::getpid())) {
    std::filesystem::remove_all(folder_);
    harness_.options.tiers.cold_bytes = uint64_t{32} << 20;
    // A load is late when a second has passed, and pays; every block is worth writing.
    harness_.options.similar_model.prefill_us_per_row = 100'000;
    harness_.options.tiers.write_share = 1;
    harness_.options.tiers.write_head_start = std::chrono::seconds(60);
  }
  ~OpenTiersTest() override {
    harness_.cache.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Refusal() {
    const auto created = CreateCache(harness_.options);
    EXPECT_FALSE(created.ok());
    EXPECT_EQ(created.status().code(), StatusCode::kInvalidArgument);
    return created.status().message();
  }
  // Rows of the prompt that a plan would find, wherever they are.
  uint32_t Findable(const Tokens& prompt) {
    const Plan plan = harness_.Lookup(prompt);
    return plan.exact_tokens + plan.loadable_tokens;
  }

  const std::string folder_;
  CacheHarness harness_{kBlock, 64};
};

TEST_F(OpenTiersTest, BlocksInTheFolderAreFoundAfterARestart) {
  const Tokens prompt = RandomTokens(1, 4 * kBlock + 1);
  harness_.options.tiers.cold_dir = folder_;
  harness_.Create();
  ASSERT_NE(harness_.cache, nullptr);
  harness_.Serve(prompt);
  EXPECT_TRUE(harness_.cache->Drain(std::chrono::seconds(60)));
  ASSERT_EQ(harness_.cache->Tiers().size(), 1u);
  harness_.cache.reset();
  harness_.Create();
  ASSERT_NE(harness_.cache, nullptr);
  EXPECT_EQ(Findable(prompt), 4 * kBlock);
}

// Acceptance 28: the blocks are there, for another model file, KV type or processor.
TEST_F(OpenTiersTest, AMissThatTheModelBeforeWouldHaveHitSaysSo) {
  const Namespace mine{.tenant = "mine", .salt = "s"};
  const Tokens prompt = RandomTokens(1, 4 * kBlock + 1);
  harness_.options.tiers.cold_dir = folder_;
  harness_.Create();
  ASSERT_NE(harness_.cache, nullptr);
  harness_.Serve(prompt, {}, mine);
  EXPECT_TRUE(harness_.cache->Drain(std::chrono::seconds(60)));
  harness_.cache.reset();
  harness_.options.model_fingerprint = "another model";
  harness_.Create();
  ASSERT_NE(harness_.cache, nullptr);
  const auto reason = [&](const Tokens& tokens, const Namespace& ns) {
    const Plan plan = harness_.Lookup(tokens, ns);
    EXPECT_EQ(plan.exact_tokens + plan.partial_tokens + plan.loadable_tokens, 0u);
    return plan.miss_reason;
  };
  EXPECT_EQ(reason(prompt, mine), MissReason::kNamespace);
  EXPECT_EQ(reason(FirstOf(prompt, kBlock) + RandomTokens(2, 9), mine), MissReason::kNamespace);
  EXPECT_EQ(reason(RandomTokens(3, 40), mine), MissReason::kCold);
  EXPECT_EQ(reason(FirstOf(prompt, kBlock - 1), mine), MissReason::kCold);
  // Nobody is told of another's.
  EXPECT_EQ(reason(prompt, {.tenant = "other", .salt = "s"}), MissReason::kCold);
  EXPECT_EQ(reason(prompt, {.tenant = "mine", .salt = "t"}), MissReason::kCold);
  EXPECT_EQ(reason(prompt, {.tenant = "mine", .salt = ""}), MissReason::kCold);
  // Behind a head that prompts of both models have.
  harness_.Serve(FirstOf(prompt, kBlock) + RandomTokens(4, 20), {}, mine);
  EXPECT_EQ(harness_.Lookup(prompt, mine).miss_reason, MissReason::kNamespace);
  EXPECT_EQ(harness_.Lookup(FirstOf(prompt, kBlock) + RandomTokens(5, 20), mine).miss_reason,
            MissReason::kDiverged);
  harness_.Serve(prompt, {}, mine);
  EXPECT_EQ(harness_.Lookup(prompt, mine).miss_reason, MissReason::kNone);
}

TEST_F(OpenTiersTest, WithoutTiersThereAreNone) {
  harness_.Create();
  EXPECT_TRUE(harness_.cache->Tiers().empty());
}

TEST_F(OpenTiersTest, ARemoteIsTakenUnseenAndItsAddressIsChecked) {
  harness_.options.tiers.remote_url = "redis://127.0.0.1:1";  // nobody is there
  harness_.Create();
  ASSERT_NE(harness_.cache, nullptr);
  EXPECT_EQ(harness_.cache->Tiers().size(), 1u);
  harness_.options.tiers.remote_url = "http://h";
  EXPECT_THAT(Refusal(), HasSubstr("redis://"));
  harness_.options.tiers.remote_url = "rediss://127.0.0.1:1";
  harness_.options.tiers.remote_ca_file = folder_ + "/nothing.pem";
  EXPECT_THAT(Refusal(), HasSubstr("nothing.pem"));
}

TEST_F(OpenTiersTest, AColdTierThatCannotBeIsRefused) {
  harness_.options.tiers.cold_dir = folder_;
  harness_.options.tiers.cold_bytes = 1 << 10;
  const auto created = CreateCache(harness_.options);
  ASSERT_FALSE(created.ok());
  EXPECT_THAT(created.status().message(), HasSubstr("1024"));
}

}  // namespace
}  // namespace kvlink::link
