// Peers that are no Redis, or one that went mad: what they send costs an error, and neither memory
// nor time without end.
#include <gtest/gtest.h>

#include "tier/redis_slots.h"
#include "tier/remote_tier.h"
#include "tier/testing/fake_redis.h"
#include "tier/testing/tier_world.h"
#include "tier/tier_files.h"

namespace kvlink::tier {
namespace {

using Command = std::vector<std::string>;
using std::chrono::milliseconds;

std::unique_ptr<BlockTier> Open(uint16_t port) {
  RemoteTierOptions options;
  options.endpoints = {{"127.0.0.1", port}};
  options.time_to_live = std::chrono::seconds(0);
  return std::move(*OpenRemoteTier(options));
}

// One Redis without a cluster, but for GET.
FakeRedis::Answer AloneBut(FakeRedis::Reply get) {
  return [get](const Command& command) -> FakeRedis::Reply {
    if (command[0] == "GET") return get;
    return {"-ERR This instance has cluster support disabled\r\n", ""};
  };
}

TierAnswer GetOne(BlockTier& tier, TimePoint deadline) {
  const BlockKey key = NumberedKey(1);
  return std::move(tier.Get({&key, 1}, deadline).front());
}

// Neither a value without end, nor one that comes without a pause and is late, holds a call.
TEST(RemoteHostile, AValueThatNeverEndsIsGivenUpAtTheDeadline) {
  const FakeRedis peer(AloneBut({"$9000000000000000000\r\n", std::string(1 << 16, 'x')}));
  const auto tier = Open(peer.port());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(GetOne(*tier, In(milliseconds(60))).outcome, Outcome::kError);
  }
  EXPECT_LT(peer.bytes_sent(), uint64_t{3} << 29);  // two values of Redis' longest, and a buffer
}

TEST(RemoteHostile, AnArrayThatSaysItHasBillionsOfElementsIsRefused) {
  const FakeRedis peer(AloneBut({"*2147483647\r\n", ""}));
  const auto tier = Open(peer.port());
  const TierAnswer answer = GetOne(*tier, Soon());
  EXPECT_EQ(answer.outcome, Outcome::kError);
  EXPECT_EQ(answer.reason, ErrorReason::kProtocol);
}

TEST(RemoteHostile, RepliesThatAreNoneAreProtocolErrors) {
  for (const char* bytes : {"nonsense\r\n", "$x\r\n",
                            "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"
                            "*1\r\n*1\r\n",
                            ":7\r\n", "-ERR whatever\r\n", "$-7\r\n", "+OK\r\n"}) {
    const FakeRedis peer(AloneBut({bytes, ""}));
    const auto tier = Open(peer.port());
    const TierAnswer answer = GetOne(*tier, Soon());
    if (answer.outcome == Outcome::kOk) {
      EXPECT_EQ(answer.bytes, "OK");  // text is text; the codec looks at it
    } else {
      EXPECT_EQ(answer.reason, ErrorReason::kProtocol) << bytes;
    }
  }
}

TEST(RemoteHostile, WhatIsNoAnswerToAWriteIsAnErrorOfThatBlock) {
  const FakeRedis peer([](const Command& command) -> FakeRedis::Reply {
    if (command[0] != "SET") return {"-ERR This instance has cluster support disabled\r\n", ""};
    return {command[2] == "good" ? "+OK\r\n" : command[2] == "odd" ? ":1\r\n" : "+QUEUED\r\n", ""};
  });
  const auto tier = Open(peer.port());
  std::vector<TierPut> items;
  for (const char* bytes : {"good", "odd", "later"}) {
    items.push_back({NumberedKey(items.size()), {}, 1, bytes});
  }
  const std::vector<TierAnswer> answers = tier->Put(items, Soon());
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].outcome, Outcome::kOk) << tier->LastError();
  EXPECT_EQ(answers[1].reason, ErrorReason::kProtocol);
  EXPECT_EQ(answers[2].reason, ErrorReason::kProtocol);
}

TEST(RemoteHostile, AListingThatIsNoneIsAnErrorAndHasAnEnd) {
  const std::string one_name = "*2\r\n$1\r\n0\r\n*1\r\n$3\r\nabc\r\n";
  const std::pair<std::string, std::string> answers[] = {
      {"+nonsense\r\n", ":1\r\n"},
      {"-ERR no such command\r\n", ":1\r\n"},
      {"*1\r\n$1\r\n0\r\n", ":1\r\n"},
      {"*2\r\n:0\r\n*0\r\n", ":1\r\n"},  // a cursor that is none, again and again
      {one_name, "-NOAUTH Authentication required.\r\n"},
  };
  for (const auto& [scan, length] : answers) {
    const FakeRedis peer([&](const Command& command) -> FakeRedis::Reply {
      if (command[0] == "SCAN") return {scan, ""};
      if (command[0] == "STRLEN") return {length, ""};
      return {"-ERR This instance has cluster support disabled\r\n", ""};
    });
    const auto tier = Open(peer.port());
    const Status status = tier->List([](const TierEntry&) { return true; });
    EXPECT_FALSE(status.ok()) << scan;
    EXPECT_NE(tier->LastError(), "") << scan;
  }
}

TEST(RemoteHostile, NamesThatAreNoKeysAreLeftOutOfAListing) {
  const FakeRedis peer([](const Command& command) -> FakeRedis::Reply {
    if (command[0] == "SCAN") {
      return {"*2\r\n$1\r\n0\r\n*3\r\n$2\r\nab\r\n$14\r\nkvlink:1:nokey\r\n$41\r\nkvlink:1:" +
                  HexOfKey(NumberedKey(5)) + "\r\n",
              ""};
    }
    if (command[0] == "STRLEN") return {":77\r\n", ""};
    return {"-ERR This instance has cluster support disabled\r\n", ""};
  });
  const auto tier = Open(peer.port());
  std::vector<TierEntry> entries;
  const Status status = tier->List([&entries](const TierEntry& entry) {
    entries.push_back(entry);
    return true;
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].key, NumberedKey(5));
  EXPECT_EQ(entries[0].bytes, 77u);
}

// A node sends a command on to one that the others do not list (it joins), while another node's
// failure makes the client learn the nodes again.
TEST(RemoteHostile, ANodeNamedByAskIsAskedAlsoWhenTheNodesAreLearntAnewBefore) {
  const FakeRedis joining([](const Command& command) -> FakeRedis::Reply {
    return {command[0] == "GET" ? "$1\r\nx\r\n" : "+OK\r\n", ""};
  });
  const FakeRedis second([](const Command&) -> FakeRedis::Reply {
    return {"-CLUSTERDOWN The cluster is down\r\n", ""};
  });
  const std::string joins = std::to_string(joining.port());
  std::string slots;
  const FakeRedis first([&](const Command& command) -> FakeRedis::Reply {
    return {command[0] == "GET" ? "-ASK 1 127.0.0.1:" + joins + "\r\n" : slots, ""};
  });
  const auto range = [](int from, int to, const FakeRedis& node) {
    return "*3\r\n:" + std::to_string(from) + "\r\n:" + std::to_string(to) +
           "\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + std::to_string(node.port()) + "\r\n";
  };
  slots = "*2\r\n" + range(0, 8191, first) + range(8192, 16383, second);
  const auto tier = Open(first.port());
  const auto key_below = [](bool below) {
    for (uint64_t n = 0;; ++n) {
      const BlockKey key = NumberedKey(n);
      if ((SlotOf("kvlink:1:" + HexOfKey(key)) < 8192) == below) return key;
    }
  };
  const std::vector<BlockKey> keys = {key_below(true), key_below(false)};
  const std::vector<TierAnswer> answers = tier->Get(keys, Soon());
  EXPECT_EQ(answers[0].bytes, "x") << tier->LastError();
  EXPECT_EQ(answers[1].reason, ErrorReason::kUnavailable);
}

}  // namespace
}  // namespace kvlink::tier
