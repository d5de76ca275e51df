// What a look into the cache shows, to whom, and that it adds up.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "link/operations_harness.h"
#include "link/similar_harness.h"
#include "link/tier_harness.h"

namespace kvlink::link {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlock = 32;
const BlockFilter kEverybody{.tenant = {}, .everybody = true};

const ListedBlock* Find(const BlockList& list, uint64_t id) {
  const auto found = std::find_if(list.blocks.begin(), list.blocks.end(),
                                  [id](const ListedBlock& block) { return block.id == id; });
  return found == list.blocks.end() ? nullptr : &*found;
}

// The list and the statistics were made at the same moment.
void ExpectAddsUp(const BlockList& list, const CacheStats& stats) {
  std::map<uint64_t, uint32_t> children, differences;
  uint64_t in_use = 0, cached = 0, shared = 0, pinned = 0, last = 0;
  for (const ListedBlock& block : list.blocks) {
    ASSERT_GT(block.id, last) << "ids ascend, and none is there twice";
    last = block.id;
    ASSERT_LT(block.space, list.spaces.size());
    const uint64_t bytes = list.BytesOf(block);
    (block.users > 0 ? in_use : cached) += bytes;
    if (block.base == 0 && block.users > 1) shared += bytes;
    if (block.pinned_for.count() > 0) pinned += bytes;
    if (block.base != 0) ++differences[block.base];
    if (block.parent == 0) {
      ASSERT_EQ(block.depth, 0u);
      continue;
    }
    ++children[block.parent];
    const ListedBlock* const parent = Find(list, block.parent);
    ASSERT_NE(parent, nullptr) << "parent " << block.parent << " of " << block.id;
    ASSERT_EQ(parent->depth + 1, block.depth);
    ASSERT_EQ(list.spaces[parent->space].tenant, list.spaces[block.space].tenant);
  }
  ASSERT_EQ(in_use, stats.in_use_bytes);
  ASSERT_EQ(cached, stats.cached_bytes);
  ASSERT_EQ(shared, stats.shared_bytes);
  ASSERT_LE(pinned, stats.pinned_bytes);  // which counts pins that are over until room is made
  for (const ListedBlock& block : list.blocks) {
    ASSERT_EQ(block.children, children[block.id]);
    ASSERT_EQ(block.differences, differences[block.id]);
  }
}

class ListBlocksTest : public ::testing::Test {
 protected:
  ListBlocksTest() { harness_.Create(); }
  BlockList List(const BlockFilter& filter = kEverybody) const {
    return harness_.cache->ListBlocks(filter);
  }
  CacheHarness harness_{kBlock, 100};
};

TEST_F(ListBlocksTest, AChainIsListedFromItsFirstBlockWithRowsUsersAndTimes) {
  const Namespace ns{.tenant = "acme", .salt = "s"};
  const Tokens prompt = RandomTokens(1, 2 * kBlock + 5);
  harness_.Serve(prompt, {}, ns);
  harness_.clock.Advance(seconds(7));
  Branch again = harness_.Begin(prompt, ns);
  harness_.clock.Advance(seconds(2));
  const BlockList list = List();
  ASSERT_EQ(list.blocks.size(), 3u);
  EXPECT_EQ(list.tokens_per_block, kBlock);
  for (uint32_t i = 0; i < 3; ++i) {
    const ListedBlock& block = list.blocks[i];
    EXPECT_EQ(block.parent, i == 0 ? 0 : list.blocks[i - 1].id);
    EXPECT_EQ(block.depth, i);
    EXPECT_EQ(block.rows, i < 2 ? kBlock : 5u);
    EXPECT_EQ(block.kind, i < 2 ? BlockKind::kFull : BlockKind::kTail);
    EXPECT_EQ(block.users, 1u);
    EXPECT_EQ(block.uses, 2u);
    EXPECT_EQ(block.writer, i < 2 ? 0 : again->id());
    EXPECT_EQ(block.age, seconds(9));
    EXPECT_EQ(block.idle, seconds(0)) << "it is in use";
    EXPECT_FALSE(block.tainted);
    EXPECT_EQ(list.spaces[block.space].tenant, "acme");
    EXPECT_EQ(list.spaces[block.space].salt, "s");
  }
  again.Release();
  harness_.clock.Advance(milliseconds(1500));
  EXPECT_EQ(List().blocks.front().idle, milliseconds(1500));
  EXPECT_EQ(List().blocks.front().users, 0u);
}

TEST_F(ListBlocksTest, ATenantSeesItsOwnBlocksAloneThoseOfARequestThatStoresNothingToo) {
  Branch acme = harness_.Begin(RandomTokens(1, 50), {.tenant = "acme", .salt = ""});
  LookupRequest hidden = harness_.RequestOf(acme.tokens(), {.tenant = "rival", .salt = ""});
  hidden.store = false;
  auto rival = harness_.TryBegin(hidden);
  ASSERT_TRUE(rival.ok());
  rival->ComputePrompt();
  const BlockList of_acme = List({.tenant = "acme"}), of_rival = List({.tenant = "rival"});
  EXPECT_EQ(of_acme.blocks.size(), 2u);
  EXPECT_EQ(of_rival.blocks.size(), 2u);
  EXPECT_EQ(List().blocks.size(), 4u);
  EXPECT_TRUE(List({.tenant = "nobody"}).blocks.empty());
  EXPECT_TRUE(List({.tenant = ""}).blocks.empty());
  for (const ListedBlock& block : of_rival.blocks) {
    EXPECT_EQ(block.kind, BlockKind::kPrivate);
    EXPECT_EQ(of_rival.spaces[block.space].tenant, "rival");
    const auto shown = harness_.cache->ShowBlock(block.id, 1, {.tenant = "acme"});
    EXPECT_EQ(shown.status().code(), StatusCode::kNotFound) << "another tenant's";
    EXPECT_TRUE(harness_.cache->ShowBlock(block.id, 1, {.tenant = "rival"})->tokens.empty());
  }
}

TEST_F(ListBlocksTest, ABlockIsShownWithTheTokensOfThoseBeforeItUntilItIsGone) {
  const Tokens prompt = RandomTokens(1, 3 * kBlock + 4);
  harness_.Serve(prompt);
  const BlockList list = List();
  ASSERT_EQ(list.blocks.size(), 4u);
  const uint64_t third = list.blocks[2].id;
  const auto tokens = [&](uint64_t id, uint32_t last) {
    return harness_.cache->ShowBlock(id, last, kEverybody)->tokens;
  };
  EXPECT_EQ(tokens(third, 1), Tokens(prompt.begin() + 2 * kBlock, prompt.begin() + 3 * kBlock));
  EXPECT_EQ(tokens(third, 2), Tokens(prompt.begin() + kBlock, prompt.begin() + 3 * kBlock));
  EXPECT_EQ(tokens(list.blocks[3].id, 99), prompt);
  const auto shown = harness_.cache->ShowBlock(third, 2, kEverybody);
  ASSERT_EQ(shown->list.blocks.size(), 2u);
  EXPECT_EQ(shown->list.blocks.back().id, third);
  harness_.cache->Clear();
  harness_.Serve(RandomTokens(2, 3 * kBlock + 4));  // takes over the numbers, not the ids
  EXPECT_EQ(harness_.cache->ShowBlock(third, 1, kEverybody).status().code(), StatusCode::kNotFound);
}

TEST_F(ListBlocksTest, UnpinningAPromptKeepsThePinOfTheOneThatItBeginsWith) {
  const Tokens system = RandomTokens(1, 2 * kBlock + 5);
  const Tokens chat = system + RandomTokens(2, kBlock);
  harness_.Serve(chat);
  Cache& cache = *harness_.cache;
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(system), seconds(60)), 2 * kBlock + 5);
  const uint64_t held = cache.Stats().pinned_bytes;
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(chat)), 0u) << "it was not pinned";
  EXPECT_EQ(cache.Stats().pinned_bytes, held);
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(chat), seconds(60)), 3 * kBlock + 5);
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(chat), seconds(30)), 3 * kBlock + 5);
  EXPECT_EQ(List().blocks.back().pinned_for, seconds(30)) << "it began anew";
  EXPECT_EQ(List().blocks.front().pinned_for, seconds(60));
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(chat)), 5u) << "one ends both";
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(chat)), 0u);
  EXPECT_EQ(cache.Stats().pinned_bytes, held);
  EXPECT_EQ(cache.Unpin(harness_.RequestOf(system, {.tenant = "b", .salt = ""})).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(system)), 2 * kBlock + 5);
  EXPECT_EQ(cache.Stats().pinned_bytes, 0u);
}

// The budget ended inside the longer one, where the shorter one ends.
TEST_F(ListBlocksTest, APinThatTheBudgetCutOffIsStillItsPromptsOwn) {
  harness_.options.pin_budget = 0.035;  // of 100 pages
  harness_.Create();
  const Tokens longer = RandomTokens(1, 5 * kBlock), shorter = FirstOf(longer, 3 * kBlock);
  harness_.Serve(longer);
  Cache& cache = *harness_.cache;
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(longer), seconds(60)), 3 * kBlock);
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(shorter), seconds(60)), 3 * kBlock);
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(longer)), 0u);
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(shorter)), 3 * kBlock);
}

TEST_F(ListBlocksTest, UnpinningEndsThePinOfOnePromptAndKeepsWhatAnotherNeeds) {
  const Tokens system = RandomTokens(1, 2 * kBlock);
  const Tokens chat = system + RandomTokens(2, kBlock + 3);
  harness_.Serve(chat);
  Cache& cache = *harness_.cache;
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(chat), seconds(60)), 3 * kBlock + 3);
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(system), seconds(60)), 2 * kBlock);
  EXPECT_EQ(List().blocks.front().pinned_for, seconds(60));
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(system)), 0u) << "the chat needs it";
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(chat)), 3 * kBlock + 3);
  EXPECT_EQ(cache.Stats().pinned_bytes, 0u);
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(chat)), 0u) << "nothing is pinned any more";
  const Tokens unknown = RandomTokens(9, 40);
  EXPECT_EQ(cache.Unpin(harness_.RequestOf(unknown)).status().code(), StatusCode::kNotFound);
}

// A chat's first question is in the same block as the end of the system message, mostly.
TEST_F(ListBlocksTest, UnpinningAPromptThatOnlyBeginsAsAPinnedOneKeepsThatPin) {
  const Tokens pinned = RandomTokens(1, 3 * kBlock + 10);
  const Tokens other = FirstOf(pinned, 2 * kBlock + 5) + RandomTokens(2, 20);
  harness_.Serve(pinned);
  Cache& cache = *harness_.cache;
  ASSERT_EQ(*cache.Pin(harness_.RequestOf(pinned), seconds(60)), 3 * kBlock + 10);
  const uint64_t held = cache.Stats().pinned_bytes;
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(other)), 0u);
  EXPECT_EQ(cache.Stats().pinned_bytes, held);
  // What it pins itself it can unpin.
  harness_.Serve(other);
  EXPECT_EQ(*cache.Pin(harness_.RequestOf(other), seconds(60)), 2 * kBlock + 25);
  EXPECT_GT(*cache.Unpin(harness_.RequestOf(other)), 0u);
  EXPECT_EQ(cache.Stats().pinned_bytes, held);
  EXPECT_EQ(*cache.Unpin(harness_.RequestOf(pinned)), 3 * kBlock + 10);
  EXPECT_EQ(cache.Stats().pinned_bytes, 0u);
}

TEST_F(ListBlocksTest, WithoutSharingEverySequenceWouldHoldItsOwnCopy) {
  const Tokens prompt = RandomTokens(1, 10 * kBlock);
  std::vector<Branch> branches;
  for (uint64_t i = 0; i < 5; ++i) {
    branches.push_back(harness_.Begin(prompt + RandomTokens(10 + i, 5)));
    branches.back().ComputePrompt();
  }
  const CacheStats stats = harness_.cache->Stats();
  EXPECT_EQ(stats.without_sharing_bytes, 5 * 11 * stats.page_bytes);
  EXPECT_EQ(stats.in_use_bytes, (10 + 5) * stats.page_bytes);
  EXPECT_EQ(stats.shared_bytes, 10 * stats.page_bytes);
  branches.clear();
  EXPECT_EQ(harness_.cache->Stats().without_sharing_bytes, 0u);
}

TEST(ListBlocksOfSimilarReuse, OwnPagesOfABorrowerAreTaintedAndNotesAreNobodys) {
  SimilarHarness harness(kBlock, 400);
  harness.Create();
  const Namespace ns{.tenant = "acme", .salt = ""};
  const Tokens policy = RandomTokens(2, 1000);
  Running donor = harness.Start(harness.RequestOf(RandomTokens(3, 6) + policy, ns));
  harness.Compute(donor);
  const CacheStats before = harness.cache->Stats();
  Running run = harness.Start(RandomTokens(4, 6) + policy, ns);
  ASSERT_TRUE(run.tainted) << SimilarReasonName(run.plan.similar_reason);
  harness.Compute(run);
  const BlockList list = harness.cache->ListBlocks({.tenant = "acme"});
  uint64_t tainted = 0;
  for (const ListedBlock& block : list.blocks) {
    if (!block.tainted) continue;
    ++tainted;
    EXPECT_EQ(block.kind, BlockKind::kPrivate);
    EXPECT_EQ(block.writer, run->id());
    EXPECT_TRUE(harness.cache->ShowBlock(block.id, 1, kEverybody)->tokens.empty());
  }
  const CacheStats stats = harness.cache->Stats();
  EXPECT_GT(tainted, 0u);
  EXPECT_EQ(tainted * stats.page_bytes, stats.in_use_bytes - before.in_use_bytes);
  const uint64_t pages = (run->capacity() + kBlock - 1) / kBlock;
  EXPECT_EQ(stats.without_sharing_bytes - before.without_sharing_bytes, pages * stats.page_bytes);
  run.sequence.reset();
  for (const ListedBlock& block : harness.cache->ListBlocks(kEverybody).blocks) {
    EXPECT_FALSE(block.tainted);
  }
}

TEST(ListBlocksOfTiers, ABlockThatATierHasTooNamesIt) {
  TierHarness harness(8, 40, KvType::kF16, {"cold", "remote"});
  harness.options.tiers.write_head_start = milliseconds(1'000'000);  // everything is written
  harness.options.tiers.may_leave_ram = [](const Namespace& ns) { return ns.tenant != "secret"; };
  harness.Create();
  harness.Serve(RandomTokens(1, 20));
  harness.Serve(RandomTokens(1, 20), {}, {.tenant = "secret", .salt = ""});
  harness.DrainAll();
  const BlockList list = harness.cache->ListBlocks(kEverybody);
  EXPECT_EQ(list.tiers, (std::vector<std::string>{"cold", "remote"}));
  ASSERT_EQ(list.blocks.size(), 6u);
  for (const ListedBlock& block : list.blocks) {
    const bool may_leave = list.spaces[block.space].tenant != "secret";
    EXPECT_EQ(block.tiers, may_leave && block.kind == BlockKind::kFull ? 3u : 0u);
  }
}

const OperationsSetting kSettings[] = {
    {.name = "Pressure"},
    {.name = "ManyDifferences", .tokens_per_block = 16, .cow_copy_threshold = 0.5},
    {.name = "SharingOff", .sharing = Sharing::kOff},
};

class RandomLists : public ::testing::TestWithParam<OperationsSetting> {};

TEST_P(RandomLists, AfterAnyOperationTheListAddsUpToTheStatistics) {
  base::Random random(3);
  OperationsHarness operations(GetParam(), KvType::kF16,
                               [&](uint64_t bound) { return random.Below(bound); });
  Cache& cache = *operations.harness().cache;
  uint64_t most_saved = 0;
  for (int step = 0; step < 1500; ++step) {
    ASSERT_NO_FATAL_FAILURE(operations.Step()) << "step " << step;
    uint64_t pages = 0;
    for (const LiveBranch& live : operations.live()) pages += live.branch->table().blocks.size();
    const CacheStats stats = cache.Stats();
    ASSERT_EQ(stats.without_sharing_bytes, pages * stats.page_bytes) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(ExpectAddsUp(cache.ListBlocks(kEverybody), stats)) << "step " << step;
    ASSERT_GE(stats.in_use_bytes, stats.shared_bytes);
    if (stats.without_sharing_bytes > stats.in_use_bytes) {
      most_saved = std::max(most_saved, stats.without_sharing_bytes - stats.in_use_bytes);
    }
  }
  EXPECT_EQ(most_saved > 0, GetParam().sharing == Sharing::kExact);
}

TEST_P(RandomLists, OthersMayLookWhileTheEngineWorks) {
  base::Random random(4);
  OperationsHarness operations(GetParam(), KvType::kF16,
                               [&](uint64_t bound) { return random.Below(bound); });
  Cache& cache = *operations.harness().cache;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> looks{0};
  std::thread reader([&] {
    while (!stop) {
      const BlockList list = cache.ListBlocks({.tenant = "a"});
      for (const ListedBlock& block : list.blocks) {
        if (list.spaces[block.space].tenant != "a") ADD_FAILURE() << "another tenant's block";
      }
      if (!list.blocks.empty()) (void)cache.ShowBlock(list.blocks.back().id, 4, {.tenant = "a"});
      ++looks;
      std::this_thread::yield();  // or it could keep the writer out for long
    }
  });
  for (int step = 0; step < 300; ++step) operations.Step();
  while (looks == 0) std::this_thread::yield();
  stop = true;
  reader.join();
}

INSTANTIATE_TEST_SUITE_P(Settings, RandomLists, ::testing::ValuesIn(kSettings),
                         [](const auto& setting) { return std::string(setting.param.name); });

// Twenty thousand blocks: the list is complete, and a look takes well under what a step of an
// engine does.
TEST(ListBlocksOfALargeCache, IsComplete) {
  CacheHarness harness(8, 22000);
  harness.options.poison = false;
  harness.Create();
  const Tokens system = RandomTokens(1, 80);
  for (uint64_t i = 0; i < 200; ++i) {
    const Tokens prompt = system + RandomTokens(2 + i, 100 * 8);
    auto sequence = harness.cache->Begin(harness.RequestOf(prompt), harness.Lookup(prompt));
    ASSERT_TRUE(sequence.ok());
    (*sequence)->Commit(std::span(prompt).subspan((*sequence)->num_ready()));
  }
  const auto start = std::chrono::steady_clock::now();
  const BlockList list = harness.cache->ListBlocks(kEverybody);
  const auto took = std::chrono::steady_clock::now() - start;
  const auto looked = std::chrono::steady_clock::now();
  EXPECT_TRUE(harness.cache->ListBlocks({.tenant = "nobody"}).blocks.empty());
  RecordProperty("look_us", static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(
                                                 std::chrono::steady_clock::now() - looked)
                                                 .count()));
  EXPECT_EQ(list.blocks.size(), 10u + 200u * 100u);
  RecordProperty(
      "list_us",
      static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
  ASSERT_NO_FATAL_FAILURE({
    std::set<uint64_t> ids;
    for (const ListedBlock& block : list.blocks) ids.insert(block.id);
    EXPECT_EQ(ids.size(), list.blocks.size());
  });
  EXPECT_EQ(list.blocks[9].children, 200u) << "the last block that all share";
}

}  // namespace
}  // namespace kvlink::link
