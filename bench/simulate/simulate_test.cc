#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "block_cache.h"
#include "cluster.h"
#include "options.h"
#include "replay.h"
#include "report.h"
#include "trace.h"

namespace kvlink::simulate {
namespace {

using Ids = std::vector<uint64_t>;

// Requests a second apart, with prompts of whole blocks of four tokens.
Trace TraceOf(const std::vector<Ids>& prompts) {
  Trace trace(4);
  double time = 0;
  for (const Ids& ids : prompts) {
    const auto tokens = static_cast<uint32_t>(ids.size() * 4);
    EXPECT_TRUE(trace.Add(time++, tokens, 1, ids).ok());
  }
  return trace;
}

uint64_t HitsOf(const Trace& trace, Policy policy, uint64_t capacity) {
  const auto cache = MakeCache(policy, trace, capacity);
  uint64_t hits = 0;
  uint32_t now = 0;
  for (const TraceRequest& request : trace.requests()) {
    hits += PrefixHits(*cache, trace.PathOf(request));
    cache->Use(trace.PathOf(request), now++);
    EXPECT_LE(cache->num_blocks(), capacity);
  }
  return hits;
}

// Chains of conversations: each prompt starts anew, goes on with an earlier one, or branches off.
Trace RandomTrace(uint64_t seed, int requests, uint64_t longest) {
  base::Random random(seed);
  std::vector<Ids> prompts;
  uint64_t next_id = 1;
  for (int i = 0; i < requests; ++i) {
    Ids ids = {random.Below(2)};
    if (!prompts.empty() && !random.OneIn(3)) {
      ids = prompts[random.Below(prompts.size())];
      if (random.OneIn(3)) ids.resize(1 + random.Below(ids.size()));
    }
    while (ids.size() < longest && !random.OneIn(3)) ids.push_back(next_id++);
    prompts.push_back(ids);
  }
  return TraceOf(prompts);
}

TEST(Trace, SamePrefixesArePathsThroughTheSameNodes) {
  const Trace trace = TraceOf({{7, 8, 9}, {7, 8, 1}, {8, 9}});
  EXPECT_EQ(trace.num_nodes(), 6u);  // 8 and 9 behind nothing are other blocks than behind 7
  EXPECT_EQ(trace.PathOf(trace.requests()[0])[1], trace.PathOf(trace.requests()[1])[1]);
  EXPECT_EQ(trace.longest_path(), 3u);
}

TEST(Trace, APartialLastBlockIsNotShared) {
  Trace trace(4);
  ASSERT_TRUE(trace.Add(0, 11, 1, Ids{1, 2, 3}).ok());
  EXPECT_EQ(trace.requests()[0].num_blocks, 2u);
}

TEST(Trace, RefusesWhatIsOutOfOrderOrEmpty) {
  Trace trace(4);
  ASSERT_TRUE(trace.Add(5, 4, 1, Ids{1}).ok());
  EXPECT_FALSE(trace.Add(4, 4, 1, Ids{1}).ok());
  EXPECT_FALSE(trace.Add(6, 0, 1, Ids{}).ok());
}

class TraceFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("kvlink_simulate_" + std::to_string(::getpid()) + ".jsonl");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  Result<Trace> Read(const std::string& text, uint32_t max_input = 0) {
    std::ofstream(path_, std::ios::binary) << text;
    return ReadTrace(path_, max_input);
  }
  std::filesystem::path path_;
};

constexpr const char* kTwoRequests =
    "{\"timestamp\":0,\"input_length\":1100,\"output_length\":5,\"hash_ids\":[0,1,2]}\n"
    "{\"timestamp\":1500,\"input_length\":600,\"output_length\":7,\"hash_ids\":[0,3]}\n";

TEST_F(TraceFile, IsReadPlainAndGzipped) {
  const auto plain = Read(kTwoRequests);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->requests().size(), 2u);
  EXPECT_EQ(plain->requests()[1].arrival_s, 1.5);
  EXPECT_EQ(plain->num_nodes(), 2u);

  const gzFile file = gzopen(path_.c_str(), "wb");
  gzputs(file, kTwoRequests);
  gzclose(file);
  const auto gzipped = ReadTrace(path_);
  ASSERT_TRUE(gzipped.ok()) << gzipped.status().message();
  EXPECT_EQ(gzipped->input_tokens(), 1700u);
}

TEST_F(TraceFile, LeavesOutPromptsThatAreTooLong) {
  const auto trace = Read(kTwoRequests, 1000);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests().size(), 1u);
}

TEST_F(TraceFile, NamesTheLineThatIsNotInTheFormat) {
  const std::string good =
      "{\"timestamp\":0,\"input_length\":9,\"output_length\":5,\"hash_ids\":[]}\n";
  const std::map<std::string, std::string> bad = {
      {"[1]\n", "not a JSON object"},
      {"{\"timestamp\":\n", "not a JSON object"},
      {"{\"timestamp\":0,\"input_length\":-9,\"output_length\":5,\"hash_ids\":[]}\n",
       "input_length"},
      {"{\"timestamp\":0,\"input_length\":9,\"output_length\":5}\n", "hash_ids"},
      {"{\"timestamp\":0,\"input_length\":9,\"output_length\":5,\"hash_ids\":[-1]}\n", "hash_ids"},
      {"{\"timestamp\":\"x\",\"input_length\":9,\"output_length\":5,\"hash_ids\":[]}\n",
       "timestamp"},
  };
  for (const auto& [line, problem] : bad) {
    const auto trace = Read(good + line);
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.status().message().find(":2: "), std::string::npos) << trace.status().message();
    EXPECT_NE(trace.status().message().find(problem), std::string::npos)
        << trace.status().message();
  }
  EXPECT_FALSE(Read("").ok());
  EXPECT_EQ(ReadTrace("/no/such/file").status().code(), StatusCode::kNotFound);
}

TEST(Lru, EvictsTheLeastRecentAndOfOneRequestTheDeeperFirst) {
  // Three blocks. {1,2} then {3,4}: 4 and 3 need two pages, 2 goes (deeper than 1). {1,2}: hits 1.
  // Then 3 and 4 are the oldest: 4 goes for 2. {3,4}: hits 3.
  const Trace trace = TraceOf({{1, 2}, {3, 4}, {1, 2}, {3, 4}});
  EXPECT_EQ(HitsOf(trace, Policy::kLru, 3), 2u);
}

TEST(Lru, ACycleThatIsOneBlockTooLongNeverHits) {
  const Trace trace = TraceOf({{1}, {2}, {3}, {1}, {2}, {3}, {1}, {2}, {3}});
  EXPECT_EQ(HitsOf(trace, Policy::kLru, 2), 0u);
  EXPECT_EQ(HitsOf(trace, Policy::kLru, 3), 6u);
}

TEST(Belady, HoldsPartOfACycleThatDoesNotFit) {
  // Keeps 1 and 2; 3 is bypassed: 1, 2 hit in the second round. Then 1 is not used after the third
  // round's, so it hits, and 2 hits, and 3 does not: 4 of 6.
  const Trace trace = TraceOf({{1}, {2}, {3}, {1}, {2}, {3}, {1}, {2}, {3}});
  EXPECT_EQ(HitsOf(trace, Policy::kBelady, 2), 4u);
}

TEST(Belady, PrefersTheBlocksThatAreUsedAgainSooner) {
  // Two blocks. After {1,2} and {3}: 1, 2 are used at 3, 3 at 2. It keeps 3 and 1, not 2.
  const Trace trace = TraceOf({{1, 2}, {3}, {3}, {1, 2}});
  EXPECT_EQ(HitsOf(trace, Policy::kBelady, 2), 2u);
}

TEST(Kvlink, AFloodOfOneOffPromptsDoesNotFlushWhatWasUsedTwice) {
  std::vector<Ids> prompts = {{1, 2}, {1, 2}};
  for (uint64_t i = 0; i < 100; ++i) prompts.push_back({1000 + 2 * i, 1001 + 2 * i});
  prompts.push_back({1, 2});
  const Trace trace = TraceOf(prompts);
  EXPECT_EQ(HitsOf(trace, Policy::kKvlink, 10), 4u);
  EXPECT_EQ(HitsOf(trace, Policy::kLru, 10), 2u);
}

TEST(Policies, AllHitTheSameWhenEverythingFits) {
  const Trace trace = RandomTrace(5, 200, 8);
  const uint64_t all = HitsOf(trace, Policy::kBelady, trace.num_nodes());
  EXPECT_GT(all, 0u);
  EXPECT_EQ(HitsOf(trace, Policy::kLru, trace.num_nodes()), all);
  EXPECT_EQ(HitsOf(trace, Policy::kKvlink, trace.num_nodes()), all);
}

TEST(Policies, WhatIsHeldIsClosedUnderPrefixes) {
  const Trace trace = RandomTrace(3, 300, 6);
  for (const Policy policy : kPolicies) {
    const auto cache = MakeCache(policy, trace, 12);
    uint32_t now = 0;
    for (const TraceRequest& request : trace.requests()) {
      cache->Use(trace.PathOf(request), now++);
      for (NodeId node = 0; node < trace.num_nodes(); ++node) {
        if (!cache->Contains(node) || trace.ParentOf(node) == kNoNode) continue;
        ASSERT_TRUE(cache->Contains(trace.ParentOf(node))) << PolicyName(policy);
      }
    }
  }
}

TEST(Policies, NoneHitsMoreThanBelady) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Trace trace = RandomTrace(seed, 150, 7);
    for (const uint64_t capacity : {1, 2, 5, 7, 13, 40, 90}) {
      const uint64_t bound = HitsOf(trace, Policy::kBelady, capacity);
      EXPECT_GE(bound, HitsOf(trace, Policy::kLru, capacity)) << seed << " " << capacity;
      EXPECT_GE(bound, HitsOf(trace, Policy::kKvlink, capacity)) << seed << " " << capacity;
    }
  }
}

// The most hits that any choices give: all sets of blocks, as bits, that can be held after each
// request.
uint64_t MostHits(const Trace& trace, int capacity) {
  EXPECT_LE(trace.num_nodes(), 32u);
  std::map<uint32_t, uint64_t> reachable = {{0, 0}};
  for (const TraceRequest& request : trace.requests()) {
    std::map<uint32_t, uint64_t> next;
    for (const auto& [held, hits_before] : reachable) {
      uint64_t hits = hits_before;
      uint32_t pool = held;
      bool is_prefix = true;
      for (const NodeId node : trace.PathOf(request)) {
        is_prefix = is_prefix && (held >> node & 1) != 0;
        hits += is_prefix ? 1 : 0;
        pool |= 1u << node;
      }
      for (uint32_t kept = pool;; kept = (kept - 1) & pool) {
        if (std::popcount(kept) <= capacity) next[kept] = std::max(next[kept], hits);
        if (kept == 0) break;
      }
    }
    reachable = std::move(next);
  }
  uint64_t most = 0;
  for (const auto& [held, hits] : reachable) most = std::max(most, hits);
  return most;
}

TEST(Belady, IsAsGoodAsTryingEverything) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Trace trace = RandomTrace(100 + seed, 9, 3);
    for (const int capacity : {1, 2, 3, 4}) {
      EXPECT_EQ(HitsOf(trace, Policy::kBelady, static_cast<uint64_t>(capacity)),
                MostHits(trace, capacity))
          << "seed " << seed << ", capacity " << capacity;
    }
  }
}

TEST(Replay, TakesABlockFromTheFastestTierThatHasIt) {
  // RAM 1, cold 2, remote 4 under LRU, prompts of one block. The last five: 4 is the newest, in
  // RAM; 3 in cold; 2 in remote only, 1 likewise.
  const Trace trace = TraceOf({{1}, {2}, {3}, {4}, {4}});
  const Machine machine;
  EXPECT_EQ(Replay(trace, Policy::kLru, {.ram = 1, .cold = 2, .remote = 4}, machine).blocks.ram,
            1u);
  const Trace cold = TraceOf({{1}, {2}, {3}, {4}, {3}});
  const auto from_cold = Replay(cold, Policy::kLru, {.ram = 1, .cold = 2, .remote = 4}, machine);
  EXPECT_EQ(from_cold.blocks.cold, 1u);
  EXPECT_EQ(from_cold.blocks.cold_written, 4u);
  const Trace remote = TraceOf({{1}, {2}, {3}, {4}, {1}});
  const auto from_remote =
      Replay(remote, Policy::kLru, {.ram = 1, .cold = 2, .remote = 4}, machine);
  EXPECT_EQ(from_remote.blocks.remote, 1u);
  EXPECT_EQ(from_remote.blocks.remote_written, 4u);
  EXPECT_EQ(from_remote.blocks.cold_written, 5u);  // 1 is promoted
  EXPECT_EQ(from_remote.hit_tokens, 4u);
}

TEST(Replay, CountsTokensAndPrefillTime) {
  const Trace trace = TraceOf({{1, 2}, {1, 2}});
  const Machine machine{.prefill_rate = 2, .dear_position = 1e12};
  const auto result = Replay(trace, Policy::kKvlink, {.ram = 2}, machine);
  EXPECT_EQ(result.hit_tokens, 8u);
  EXPECT_DOUBLE_EQ(result.token_hit_rate(), 0.5);
  EXPECT_NEAR(result.cold_prefill_s, 8, 1e-6);
  EXPECT_NEAR(result.prefill_s, 4.5, 1e-6);  // the last row always runs
}

// A machine that prefills 4 tokens a second and decodes for nothing, a request a second.
ClusterOptions OneToken(Routing routing, uint32_t machines) {
  return {.routing = routing,
          .machines = machines,
          .machine = {.prefill_rate = 4, .dear_position = 1e12, .decode_rate = 1e12}};
}

TEST(Cluster, RequestsQueueInOrder) {
  // Each takes 2 s and they come every second: TTFT 2, 3, 4.
  const Trace trace = TraceOf({{1, 2}, {3, 4}, {5, 6}});
  const ClusterResult one = RunCluster(trace, OneToken(Routing::kLeastWait, 1));
  EXPECT_NEAR(one.p95_ttft_s, 4, 1e-6);
  EXPECT_NEAR(one.p50_ttft_s, 3, 1e-6);
  EXPECT_NEAR(one.utilisation, 1, 1e-6);
  EXPECT_NEAR(RunCluster(trace, OneToken(Routing::kLeastWait, 2)).p95_ttft_s, 2, 1e-6);
}

TEST(Cluster, APrefixAwareRouterGoesWhereTheBlocksAre) {
  // Two prompts in turn, an odd number of times, so that round robin on two machines keeps them
  // apart and on three does not.
  const Trace trace = TraceOf({{1, 2}, {3, 4}, {1, 2}, {3, 4}, {1, 2}, {3, 4}});
  ClusterOptions options = OneToken(Routing::kRoundRobin, 3);
  options.sizes = {.ram = 2};
  EXPECT_DOUBLE_EQ(RunCluster(trace, options).token_hit_rate, 0);
  options.routing = Routing::kPrefixAware;
  EXPECT_NEAR(RunCluster(trace, options).token_hit_rate, 4.0 / 6, 1e-9);
}

TEST(Cluster, ASharedRemoteTierMakesRoutingMatterLess) {
  const Trace trace = TraceOf({{1, 2}, {3, 4}, {1, 2}, {3, 4}, {1, 2}, {3, 4}});
  ClusterOptions options = OneToken(Routing::kSharedRemote, 3);
  options.sizes = {.ram = 2, .remote = 4};
  const ClusterResult result = RunCluster(trace, options);
  EXPECT_NEAR(result.token_hit_rate, 4.0 / 6, 1e-9);
  EXPECT_GT(result.network_bytes, 0);
}

TEST(Cluster, FindsTheFewestMachinesThatAreFastEnough) {
  std::vector<Ids> prompts;
  for (uint64_t i = 0; i < 40; ++i) prompts.push_back({4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
  const Trace trace = TraceOf(prompts);  // 4 s of work a second
  const ClusterOptions options = OneToken(Routing::kLeastWait, 1);
  EXPECT_EQ(MachinesNeeded(trace, options, 4.001, 10), 4u);
  EXPECT_EQ(MachinesNeeded(trace, options, 3.9, 10), 11u);
}

TEST(Report, RefusesACacheThatDoesNotHoldTheLongestPrompt) {
  const Trace trace = TraceOf({{1, 2, 3}});
  Options options;
  options.sizes = {2};
  const auto report = MakeReport(trace, options);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("--sizes: 2 blocks"), std::string::npos);
}

TEST(Report, HasARowForEverySizeTierPolicyAndRouting) {
  const Trace trace = RandomTrace(9, 120, 6);
  Options options;
  options.sizes = {8, 20};
  options.machine_sizes = {8};
  options.baseline_machines = 6;
  options.machine.prefill_rate = 10;
  const auto report = MakeReport(trace, options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->single.size(), 2u * 3);
  EXPECT_EQ(report->tiers.size(), 2u * 3 * 3);
  EXPECT_EQ(report->machines.size(), 1u + 3 * 2 + 3);
  const std::string markdown = ToMarkdown(*report, trace, options);
  for (const char* text : {"| belady |", "prefix-aware", "shared remote tier", "## Tiers"}) {
    EXPECT_NE(markdown.find(text), std::string::npos) << text;
  }
  EXPECT_NE(ToJson(*report, trace, options).find("\"unlimited_token_hit_rate\""),
            std::string::npos);
}

TEST(Options, NameWhatIsWrong) {
  EXPECT_FALSE(ParseOptions({}).ok());
  for (const auto& [name, value] : std::map<std::string, std::string>{{"--sizes", "1,,2"},
                                                                      {"--baseline-load", "1"},
                                                                      {"--prefill-rate", "-3"},
                                                                      {"--max-input", "x"},
                                                                      {"--frobnicate", "1"}}) {
    const auto options = ParseOptions({"trace", name, value});
    ASSERT_FALSE(options.ok()) << name;
    EXPECT_NE(options.status().message().find(name), std::string::npos);
  }
  const auto options = ParseOptions({"--sizes", "5,6", "trace", "--machine-sizes", "none"});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->sizes, (std::vector<uint64_t>{5, 6}));
  EXPECT_FALSE(options->run_machines);
}

}  // namespace
}  // namespace kvlink::simulate
