// Three real Redis Cluster nodes on the loopback, made once for all tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tier/redis_slots.h"
#include "tier/remote_tier.h"
#include "tier/testing/redis_process.h"
#include "tier/tier_files.h"

namespace kvlink::tier {
namespace {

std::string NameOf(uint64_t n) { return "kvlink:1:" + HexOfKey(NumberedKey(n)); }

class RemoteCluster : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (int i = 0; i < 3; ++i) {
      nodes_.push_back(std::make_unique<RedisProcess>(RedisSetup{.cluster = true}));
    }
    constexpr const char* kRanges[][2] = {{"0", "5460"}, {"5461", "10922"}, {"10923", "16383"}};
    for (int i = 0; i < 3; ++i) {
      nodes_[i]->Run({"CLUSTER", "ADDSLOTSRANGE", kRanges[i][0], kRanges[i][1]});
      nodes_[i]->Run({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    }
    for (int i = 1; i < 3; ++i) {
      const std::string port = std::to_string(nodes_[i]->port());
      const std::string bus = std::to_string(nodes_[i]->bus_port());
      nodes_[0]->Run({"CLUSTER", "MEET", "127.0.0.1", port, bus});
    }
    for (const auto& node : nodes_) {
      ASSERT_TRUE(Eventually([&node] {
        const RedisReply slots = node->Run({"CLUSTER", "SLOTS"});
        const RedisReply info = node->Run({"CLUSTER", "INFO"});
        return slots.elements.size() == 3 &&
               info.text.find("cluster_state:ok") != std::string::npos &&
               info.text.find("cluster_slots_assigned:16384") != std::string::npos;
      }));
    }
  }
  static void TearDownTestSuite() { nodes_.clear(); }

  static std::unique_ptr<BlockTier> Open(std::vector<size_t> through = {0}) {
    RemoteTierOptions options;
    for (const size_t node : through) options.endpoints.push_back(nodes_[node]->endpoint());
    return std::move(*OpenRemoteTier(options));
  }
  static std::string IdOf(size_t node) { return nodes_[node]->Run({"CLUSTER", "MYID"}).text; }
  // Which of the first thousand keys that node has.
  static uint64_t KeyOn(size_t node) {
    constexpr uint32_t kFirst[] = {0, 5461, 10923, kNumSlots};
    for (uint64_t n = 0;; ++n) {
      const uint32_t slot = SlotOf(NameOf(n));
      if (slot >= kFirst[node] && slot < kFirst[node + 1]) return n;
    }
  }
  static void SetSlot(uint32_t slot, size_t on, const std::string& state, size_t node) {
    const std::string text = std::to_string(slot), id = IdOf(node);
    EXPECT_EQ(nodes_[on]->Run({"CLUSTER", "SETSLOT", text, state, id}).text, "OK");
  }

  static std::vector<std::unique_ptr<RedisProcess>> nodes_;
};
std::vector<std::unique_ptr<RedisProcess>> RemoteCluster::nodes_;

TEST_F(RemoteCluster, BlocksSpreadOverAllNodesAndAreFoundThroughAny) {
  const auto writer = Open({1});
  std::vector<BlockKey> keys;
  std::vector<std::string> values;
  std::vector<TierPut> puts;
  for (uint64_t n = 0; n < 60; ++n) {
    keys.push_back(NumberedKey(n));
    values.push_back(RandomBytes(n, 30000));
  }
  for (uint64_t n = 0; n < 60; ++n) puts.push_back({keys[n], {}, 0, values[n]});
  for (const TierAnswer& answer : writer->Put(puts, Soon())) {
    ASSERT_EQ(answer.outcome, Outcome::kOk) << writer->LastError();
  }
  for (const auto& node : nodes_) EXPECT_GT(node->Run({"DBSIZE"}).integer, 5);
  const auto reader = Open({2, 0});
  const std::vector<TierAnswer> answers = reader->Get(keys, Soon());
  for (uint64_t n = 0; n < 60; ++n) EXPECT_EQ(answers[n].bytes, values[n]);
  uint64_t listed = 0;
  ASSERT_TRUE(reader
                  ->List([&listed](const TierEntry&) {
                    ++listed;
                    return true;
                  })
                  .ok());
  EXPECT_EQ(listed, 60u);
  for (const TierAnswer& answer : reader->Remove(keys, Soon())) {
    EXPECT_EQ(answer.outcome, Outcome::kOk);
  }
}

TEST_F(RemoteCluster, AgreesWithANaiveMapOverRandomOperations) {
  std::unique_ptr<BlockTier> tier = Open({0, 1, 2});
  CompareWithNaiveMap(tier, 5, 200, 5000);
  std::vector<BlockKey> keys;
  for (uint64_t n = 0; n < 40; ++n) keys.push_back(NumberedKey(n));
  tier->Remove(keys, Soon());
}

TEST_F(RemoteCluster, ASlotThatMovedIsFollowed) {
  const uint64_t n = KeyOn(0);
  const uint32_t slot = SlotOf(NameOf(n));
  const auto tier = Open();
  EXPECT_EQ(GetOne(*tier, NumberedKey(n)).outcome, Outcome::kMiss);  // learns the slots
  for (const size_t on : {1, 0, 2}) SetSlot(slot, on, "NODE", 1);
  EXPECT_EQ(PutOne(*tier, NumberedKey(n), "moved")[0].outcome, Outcome::kOk);
  EXPECT_EQ(GetOne(*tier, NumberedKey(n)).bytes, "moved") << tier->LastError();
  EXPECT_EQ(nodes_[1]->Run({"EXISTS", NameOf(n)}).integer, 1);
  tier->Remove(std::vector{NumberedKey(n)}, Soon());
  for (const size_t on : {1, 0, 2}) SetSlot(slot, on, "NODE", 0);
}

TEST_F(RemoteCluster, ASlotOnItsWayIsAskedFor) {
  const uint64_t n = KeyOn(0);
  const uint32_t slot = SlotOf(NameOf(n));
  SetSlot(slot, 1, "IMPORTING", 0);
  SetSlot(slot, 0, "MIGRATING", 1);
  const auto tier = Open();
  EXPECT_EQ(PutOne(*tier, NumberedKey(n), "on its way")[0].outcome, Outcome::kOk)
      << tier->LastError();
  EXPECT_EQ(GetOne(*tier, NumberedKey(n)).bytes, "on its way") << tier->LastError();
  tier->Remove(std::vector{NumberedKey(n)}, Soon());
  for (const size_t on : {0, 1}) {
    nodes_[on]->Run({"CLUSTER", "SETSLOT", std::to_string(slot), "STABLE"});
  }
}

TEST_F(RemoteCluster, ADeadNodeCostsItsOwnBlocksOnlyAndComesBack) {
  const auto tier = Open({0, 1, 2});
  for (size_t node = 0; node < 3; ++node) {
    ASSERT_EQ(PutOne(*tier, NumberedKey(KeyOn(node)), "x")[0].outcome, Outcome::kOk);
  }
  const std::vector<BlockKey> keys = {NumberedKey(KeyOn(0)), NumberedKey(KeyOn(1)),
                                      NumberedKey(KeyOn(2))};
  nodes_[2]->Kill();
  for (int i = 0; i < 2; ++i) {
    const std::vector<TierAnswer> answers = tier->Get(keys, In(std::chrono::seconds(2)));
    EXPECT_EQ(answers[0].bytes, "x");
    EXPECT_EQ(answers[1].bytes, "x");
    EXPECT_EQ(answers[2].outcome, Outcome::kError);
  }
  EXPECT_FALSE(tier->Ping(In(std::chrono::seconds(2))).ok());
  nodes_[2]->Start();  // empty; it finds the others by its nodes.conf
  ASSERT_TRUE(Eventually([&] { return tier->Ping(In(std::chrono::seconds(1))).ok(); }));
  ASSERT_TRUE(Eventually([&] {
    return PutOne(*tier, keys[2], "again")[0].outcome == Outcome::kOk;
  })) << tier->LastError();
  EXPECT_EQ(GetOne(*tier, keys[2]).bytes, "again");
}

}  // namespace
}  // namespace kvlink::tier
