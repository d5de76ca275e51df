// Redis without a Redis: URLs, slots, error replies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tier/redis_connection.h"
#include "tier/redis_slots.h"
#include "tier/remote_tier.h"

namespace kvlink::tier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RemoteUrl, ReadsHostsPortsAndPassword) {
  Result<RemoteTierOptions> options = ParseRemoteUrl("redis://localhost");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->endpoints, (std::vector<RemoteEndpoint>{{"localhost", 6379}}));
  EXPECT_FALSE(options->tls);
  EXPECT_EQ(options->password, "");

  options = ParseRemoteUrl("rediss://me:p%40ss%3Aw@a.example:7000,10.0.0.2:7001,[::1]:7002,b/");
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_TRUE(options->tls);
  EXPECT_EQ(options->user, "me");
  EXPECT_EQ(options->password, "p@ss:w");
  EXPECT_EQ(options->endpoints,
            (std::vector<RemoteEndpoint>{
                {"a.example", 7000}, {"10.0.0.2", 7001}, {"::1", 7002}, {"b", 6379}}));

  options = ParseRemoteUrl("redis://:se@cret@h:1/0");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->password, "se@cret");
  EXPECT_EQ(options->endpoints[0].port, 1);
}

TEST(RemoteUrl, SaysWhatIsWrongAndNeverThePassword) {
  const auto expect = [](std::string_view url, const char* why) {
    const Result<RemoteTierOptions> options = ParseRemoteUrl(url);
    ASSERT_FALSE(options.ok()) << url;
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(options.status().message(), AllOf(HasSubstr(why), Not(HasSubstr("secret")))) << url;
  };
  expect("", "redis://");
  expect("http://:secret@h", "neither redis:// nor rediss://");
  expect("redis://", "no host");
  expect("redis://:secret@", "no host");
  expect("redis://h:0", "'h:0' has no port between 1 and 65535");
  expect("redis://h:65536", "65536");
  expect("redis://h:12x", "h:12x");
  expect("redis://h:", "has no port");
  expect("redis://[::1", "no ']'");
  expect("redis://[::1]7000", "has no port");
  expect("redis://a,,b", "no host");
  expect("redis://secret@h", "no ':' before '@'");
  expect("redis://:secret%4@h", "hexadecimal");
  expect("redis://:@h", "password is empty");
  expect("redis://h/3", "'/3' behind the hosts");
  expect("redis://h?ca=x", "'?ca=x'");
}

// The Redis Cluster Specification gives the CRC of "123456789".
TEST(RedisSlots, AKeysSlotIsTheOneOfTheSpecification) {
  static_assert(Crc16("123456789") == 0x31C3);
  EXPECT_EQ(SlotOf("foo"), 12182u);  // as CLUSTER KEYSLOT foo says
  EXPECT_EQ(SlotOf(""), 0u);
}

TEST(RedisSlots, UnassignedSlotsAreAskedOfTheFirstNode) {
  RedisSlots slots;
  const uint32_t a = slots.AddNode({"a", 1}), b = slots.AddNode({"b", 1});
  EXPECT_EQ(slots.AddNode({"b", 1}), b);
  EXPECT_EQ(slots.num_nodes(), 2u);
  slots.Assign(100, kNumSlots - 1, b);
  EXPECT_EQ(slots.NodeOf(99), a);
  EXPECT_EQ(slots.NodeOf(100), b);
  EXPECT_EQ(slots.NodeOf(kNumSlots - 1), b);
  slots.ForgetSlots();
  EXPECT_EQ(slots.NodeOf(100), a);
}

TEST(RedisConnection, KnowsWhatErrorRepliesSayAboutTheServer) {
  const auto reason = [](const char* text) { return FailureOfErrorReply(text, "h:1").reason; };
  EXPECT_EQ(reason("NOAUTH Authentication required."), ErrorReason::kAuth);
  EXPECT_EQ(reason("WRONGPASS invalid username-password pair"), ErrorReason::kAuth);
  EXPECT_EQ(reason("OOM command not allowed when used memory > 'maxmemory'."), ErrorReason::kFull);
  EXPECT_EQ(reason("LOADING Redis is loading the dataset in memory"), ErrorReason::kUnavailable);
  EXPECT_EQ(reason("CLUSTERDOWN The cluster is down"), ErrorReason::kUnavailable);
  EXPECT_EQ(reason("MISCONF Redis is configured to save RDB snapshots"), ErrorReason::kIo);
  EXPECT_EQ(reason("ERR unknown command"), ErrorReason::kNone);
  EXPECT_EQ(FailureOfErrorReply("OOM full", "h:1").message, "h:1: OOM full");
}

}  // namespace
}  // namespace kvlink::tier
