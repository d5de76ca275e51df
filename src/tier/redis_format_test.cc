// Redis without a Redis: URLs, slots, error replies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tier/redis_reply.h"
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

  options = ParseRemoteUrl("redis://us%C3%a9r:%2f%7E%00@h");
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->user, "us\xC3\xA9r");
  EXPECT_EQ(options->password, std::string("/~\0", 3));

  options = ParseRemoteUrl("redis://:se@cret@h:1/0");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->password, "se@cret");
  EXPECT_EQ(options->endpoints[0].port, 1);
}

TEST(RemoteUrl, SaysWhatIsWrongAndNeverThePassword) {
  const auto expect = [](const std::string& url, const char* why) {
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
  for (const char* login : {":secret%4", ":secret%", ":secret%4g", ":secret%G4", ":secret%-4",
                            "me%x0:secret", "%:secret"}) {
    expect("redis://" + std::string(login) + "@h", "hexadecimal");
  }
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

std::optional<RedisReply> OneReply(const std::string& bytes) {
  ReplyReader reader;
  RedisReply reply;
  EXPECT_TRUE(reader.Feed(bytes.data(), bytes.size()));
  if (reader.Next(&reply) != ReplyReader::Step::kReply) return std::nullopt;
  return reply;
}

TEST(ReplyReader, TakesRepliesThatComeByteByByte) {
  const std::string bytes = "+OK\r\n*3\r\n:-7\r\n$-1\r\n*1\r\n$5\r\na\r\nb!\r\n-ERR x\r\n";
  ReplyReader reader;
  std::vector<RedisReply> replies;
  for (const char byte : bytes) {
    ASSERT_TRUE(reader.Feed(&byte, 1));
    RedisReply reply;
    if (reader.Next(&reply) == ReplyReader::Step::kReply) replies.push_back(reply);
  }
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].text, "OK");
  ASSERT_EQ(replies[1].elements.size(), 3u);
  EXPECT_EQ(replies[1].elements[0].integer, -7);
  EXPECT_EQ(replies[1].elements[1].type, RedisReply::Type::kNil);
  ASSERT_EQ(replies[1].elements[2].elements.size(), 1u);
  EXPECT_EQ(replies[1].elements[2].elements[0].text, "a\r\nb!");
  EXPECT_EQ(replies[2].type, RedisReply::Type::kError);
}

TEST(ReplyReader, StaysBrokenBehindWhatIsNoReply) {
  ReplyReader reader;
  RedisReply reply;
  const std::string bytes = "hello\r\n+OK\r\n";
  ASSERT_TRUE(reader.Feed(bytes.data(), bytes.size()));
  EXPECT_EQ(reader.Next(&reply), ReplyReader::Step::kBroken);
  EXPECT_NE(reader.error(), "");
  EXPECT_EQ(reader.Next(&reply), ReplyReader::Step::kBroken);
  EXPECT_FALSE(reader.Feed(bytes.data(), bytes.size()));
}

// Each alone is within the limit; an array in an array costs memory before its elements came.
TEST(ReplyReader, CountsElementsOfArraysWithinArraysTogether) {
  const std::string half = "*" + std::to_string(ReplyReader::kMostElements / 2 + 1) + "\r\n";
  ReplyReader reader;
  RedisReply reply;
  ASSERT_TRUE(reader.Feed(half.data(), half.size()));
  EXPECT_EQ(reader.Next(&reply), ReplyReader::Step::kMore);
  ASSERT_TRUE(reader.Feed(half.data(), half.size()));
  EXPECT_EQ(reader.Next(&reply), ReplyReader::Step::kBroken);
}

TEST(RedisRedirect, SaysWhoHasTheSlot) {
  auto redirect = ParseRedirect("MOVED 3999 127.0.0.1:6381", "me");
  ASSERT_TRUE(redirect);
  EXPECT_FALSE(redirect->once);
  EXPECT_EQ(redirect->slot, 3999u);
  EXPECT_EQ(redirect->endpoint, (RemoteEndpoint{"127.0.0.1", 6381}));
  redirect = ParseRedirect("ASK 0 :7000", "me");
  ASSERT_TRUE(redirect);
  EXPECT_TRUE(redirect->once);
  EXPECT_EQ(redirect->endpoint, (RemoteEndpoint{"me", 7000}));
  redirect = ParseRedirect("MOVED 1 ::1:7000", "me");
  ASSERT_TRUE(redirect);
  EXPECT_EQ(redirect->endpoint, (RemoteEndpoint{"::1", 7000}));
  for (const char* error :
       {"", "MOVED", "MOVED 1", "MOVED 16384 h:1", "MOVED -1 h:1", "MOVED x h:1", "MOVED 1 h",
        "MOVED 1 h:0", "MOVED 1 h:65536", "ASK 1 h:1x", "moved 1 h:1", "ERR MOVED 1 h:1"}) {
    EXPECT_FALSE(ParseRedirect(error, "me")) << error;
  }
}

TEST(RedisSlots, AreReadFromTheAnswerOfANode) {
  const auto whole = OneReply(
      "*2\r\n*3\r\n:0\r\n:99\r\n*2\r\n$1\r\na\r\n:7000\r\n"
      "*4\r\n:100\r\n:16383\r\n*2\r\n$0\r\n\r\n:7001\r\n*2\r\n$1\r\nr\r\n:7002\r\n");
  ASSERT_TRUE(whole);
  RedisSlots slots;
  ASSERT_TRUE(ReadSlots(*whole, "asked", &slots).ok());
  EXPECT_EQ(slots.endpoint(slots.NodeOf(99)), (RemoteEndpoint{"a", 7000}));
  EXPECT_EQ(slots.endpoint(slots.NodeOf(100)), (RemoteEndpoint{"asked", 7001}));
  EXPECT_EQ(slots.num_nodes(), 2u);  // replicas are not asked
}

TEST(RedisSlots, ThatAreOutOfRangeAreRefusedAndNothingIsTaken) {
  const auto refuse = [](const std::string& bytes, ErrorReason reason) {
    const auto reply = OneReply(bytes);
    ASSERT_TRUE(reply) << bytes;
    RedisSlots slots;
    const Failure failure = ReadSlots(*reply, "asked", &slots);
    EXPECT_EQ(failure.reason, reason) << bytes;
    EXPECT_THAT(failure.message, HasSubstr("asked")) << bytes;
    EXPECT_EQ(slots.num_nodes(), 0u) << bytes;
  };
  const auto range = [](const char* first, const char* last, const char* port) {
    return std::string("*1\r\n*3\r\n:") + first + "\r\n:" + last + "\r\n*2\r\n+h\r\n:" + port +
           "\r\n";
  };
  refuse(range("5", "4", "1"), ErrorReason::kProtocol);
  refuse(range("-1", "4", "1"), ErrorReason::kProtocol);
  refuse(range("0", "16384", "1"), ErrorReason::kProtocol);
  refuse(range("0", "1", "0"), ErrorReason::kProtocol);
  refuse(range("0", "1", "65536"), ErrorReason::kProtocol);
  refuse("*1\r\n:1\r\n", ErrorReason::kProtocol);
  refuse("*1\r\n*2\r\n:0\r\n:1\r\n", ErrorReason::kProtocol);
  refuse("*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+h\r\n", ErrorReason::kProtocol);
  refuse("*0\r\n", ErrorReason::kUnavailable);
}

TEST(RedisReply, KnowsWhatErrorRepliesSayAboutTheServer) {
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
