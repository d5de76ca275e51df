#include "match/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "match/testing/tokens.h"

namespace kvlink::match {
namespace {

Tokens Range(TokenId first, size_t count) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

// An index of blocks of four tokens with one namespace, that stores prompts as `link` does.
class PrefixIndexTest : public ::testing::Test {
 protected:
  // Stores what of the prompt is not there yet, the tail included. Returns its blocks.
  std::vector<BlockId> Store(const Tokens& tokens) {
    const PrefixMatch match = index_.Find(root_, tokens);
    std::vector<BlockId> blocks = match.blocks;
    for (size_t at = blocks.size() * 4; at < tokens.size(); at += 4) {
      const auto piece = std::span(tokens).subspan(at, std::min<size_t>(4, tokens.size() - at));
      blocks.push_back(
          index_.Insert(next_id_++, root_, blocks.empty() ? kNoBlock : blocks.back(), piece));
    }
    return blocks;
  }
  PrefixMatch Find(const Tokens& tokens) const { return index_.Find(root_, tokens); }

  KeyMaker keys_{"model"};
  PrefixIndex index_{4, keys_};
  Root root_ = keys_.MakeRoot({"tenant", "salt"});
  BlockId next_id_ = 0;
};

TEST_F(PrefixIndexTest, FindsNothingInAnEmptyIndex) {
  const PrefixMatch match = Find(Range(0, 9));
  EXPECT_TRUE(match.blocks.empty());
  EXPECT_EQ(match.partial, kNoBlock);
  EXPECT_EQ(match.num_tokens, 0u);
  EXPECT_TRUE(match.has_next);
  EXPECT_EQ(match.next_key, keys_.Next(root_.key, Range(0, 4)));
}

TEST_F(PrefixIndexTest, FindsTheWholeChainOfAStoredPrompt) {
  const std::vector<BlockId> blocks = Store(Range(0, 12));
  const PrefixMatch match = Find(Range(0, 12));
  EXPECT_EQ(match.blocks, blocks);
  EXPECT_EQ(match.partial, kNoBlock);
  EXPECT_EQ(match.num_tokens, 12u);
  EXPECT_FALSE(match.has_next);
}

TEST_F(PrefixIndexTest, MatchesRowsInsideTheFirstDivergentBlock) {
  const std::vector<BlockId> blocks = Store(Range(0, 12));
  const PrefixMatch match = Find(Range(0, 7) + Tokens{99, 8, 9});
  EXPECT_EQ(match.blocks, std::vector<BlockId>{blocks[0]});
  EXPECT_EQ(match.partial, blocks[1]);
  EXPECT_EQ(match.partial_rows, 3u);
  EXPECT_EQ(match.num_tokens, 7u);
  EXPECT_EQ(match.next_key, keys_.Next(index_.KeyOf(blocks[0]), Tokens{4, 5, 6, 99}));
}

TEST_F(PrefixIndexTest, MatchesAPromptThatEndsInsideABlock) {
  const std::vector<BlockId> blocks = Store(Range(0, 12));
  const PrefixMatch match = Find(Range(0, 10));
  EXPECT_EQ(match.blocks.size(), 2u);
  EXPECT_EQ(match.partial, blocks[2]);
  EXPECT_EQ(match.num_tokens, 10u);
  EXPECT_FALSE(match.has_next);
}

TEST_F(PrefixIndexTest, MatchesATailThatIsNotFullYet) {
  const std::vector<BlockId> blocks = Store(Range(0, 6));
  const PrefixMatch match = Find(Range(0, 12));
  EXPECT_EQ(match.partial, blocks[1]);
  EXPECT_EQ(match.partial_rows, 2u);
}

TEST_F(PrefixIndexTest, TheLongestOfManySiblingsWins) {
  Store(Range(0, 4));
  for (TokenId i = 0; i < 1000; ++i) Store(Range(0, 4) + Tokens{7, 100 + i, 8, 9});
  const BlockId best = Store(Range(0, 4) + Tokens{7, 5000, 5001, 1}).back();
  for (TokenId i = 0; i < 1000; ++i) Store(Range(0, 4) + Tokens{7, 10000 + i, 8, 9});
  const PrefixMatch match = Find(Range(0, 4) + Tokens{7, 5000, 5001, 2});
  EXPECT_EQ(match.partial, best);
  EXPECT_EQ(match.partial_rows, 3u);
}

TEST_F(PrefixIndexTest, AGrownTailIsFoundWithItsNewTokensAndAsABlockOnceFull) {
  const std::vector<BlockId> blocks = Store(Range(0, 5));
  EXPECT_EQ(index_.Grow(blocks[1], Tokens{5}), blocks[1]);
  EXPECT_EQ(Find(Range(0, 8)).partial_rows, 2u);
  EXPECT_FALSE(index_.IsFull(blocks[1]));
  EXPECT_EQ(index_.Grow(blocks[1], Tokens{6, 7}), blocks[1]);
  EXPECT_EQ(Find(Range(0, 8)).blocks, blocks);
}

TEST_F(PrefixIndexTest, InsertingWhatStandsReturnsTheStandingBlock) {
  const std::vector<BlockId> blocks = Store(Range(0, 8));
  EXPECT_EQ(index_.Insert(77, root_, blocks[0], Range(4, 4)), blocks[1]);
  EXPECT_FALSE(index_.Contains(77));
  EXPECT_EQ(index_.num_blocks(), 2u);
}

TEST_F(PrefixIndexTest, GrowingIntoWhatStandsErasesTheTailAndReturnsTheStandingBlock) {
  const std::vector<BlockId> blocks = Store(Range(0, 8));
  ASSERT_EQ(index_.Insert(77, root_, blocks[0], Range(4, 3)), 77u);
  EXPECT_EQ(index_.Grow(77, Tokens{7}), blocks[1]);
  EXPECT_FALSE(index_.Contains(77));
  EXPECT_EQ(index_.num_blocks(), 2u);
}

TEST_F(PrefixIndexTest, AnErasedBlockIsNotFoundButItsKeyIsTold) {
  const std::vector<BlockId> blocks = Store(Range(0, 8));
  const BlockKey key = index_.KeyOf(blocks[1]);
  index_.Erase(blocks[1]);
  const PrefixMatch match = Find(Range(0, 8));
  EXPECT_EQ(match.num_tokens, 4u);
  EXPECT_EQ(match.next_key, key);
}

TEST_F(PrefixIndexTest, KnowsParentsAndChildren) {
  const std::vector<BlockId> blocks = Store(Range(0, 6));
  EXPECT_EQ(index_.ParentOf(blocks[0]), kNoBlock);
  EXPECT_EQ(index_.ParentOf(blocks[1]), blocks[0]);
  EXPECT_TRUE(index_.HasChildren(blocks[0]));
  EXPECT_FALSE(index_.HasChildren(blocks[1]));
}

using PrefixIndexDeathTest = PrefixIndexTest;

TEST_F(PrefixIndexDeathTest, RefusesToEraseAParentBeforeItsChild) {
  const std::vector<BlockId> blocks = Store(Range(0, 8));
  EXPECT_DEATH(index_.Erase(blocks[0]), "HasChildren");
}

TEST_F(PrefixIndexDeathTest, RefusesAChildOfATail) {
  const std::vector<BlockId> blocks = Store(Range(0, 6));
  EXPECT_DEATH(index_.Insert(77, root_, blocks[1], Range(6, 4)), "IsFull");
}

TEST_F(PrefixIndexTest, TheSameTenantHitsAndAnotherDoesNot) {
  Store(Range(0, 8));
  EXPECT_EQ(Find(Range(0, 8)).num_tokens, 8u);
  const PrefixMatch foreign = index_.Find(keys_.MakeRoot({"other", "salt"}), Range(0, 8));
  EXPECT_EQ(foreign.num_tokens, 0u);
}

TEST_F(PrefixIndexTest, AnotherSaltOfTheTenantHitsNothing) {
  Store(Range(0, 8));
  EXPECT_EQ(index_.Find(keys_.MakeRoot({"tenant", "another"}), Range(0, 8)).num_tokens, 0u);
}

TEST_F(PrefixIndexTest, ForgetsANamespaceWithItsLastBlock) {
  const std::vector<BlockId> blocks = Store(Range(0, 6));
  EXPECT_EQ(index_.num_roots(), 1u);
  index_.Erase(blocks[1]);
  EXPECT_EQ(index_.num_roots(), 1u);
  index_.Erase(blocks[0]);
  EXPECT_EQ(index_.num_roots(), 0u);
}

TEST(KeyMaker, KeepsNamespacesApart) {
  const KeyMaker keys("model");
  std::set<BlockKey> roots;
  const std::vector<Namespace> all = {{"org_1", "2345"}, {"org_12345", ""}, {"", "org_12345"},
                                      {"X", ""},         {"", "X"},         {"", ""}};
  for (const Namespace& ns : all) roots.insert(keys.MakeRoot(ns).key);
  for (const Namespace& ns : all) roots.insert(KeyMaker("other model").MakeRoot(ns).key);
  EXPECT_EQ(roots.size(), 2 * all.size());
}

TEST(KeyMaker, CutsKeysToTheBitsAskedFor) {
  const KeyMaker keys("model", 8);
  for (TokenId i = 0; i < 100; ++i) {
    const BlockKey key = keys.Next({}, Tokens{i});
    EXPECT_LT(key.lo, 256u);
    EXPECT_EQ(key.hi, 0u);
  }
}

TEST(PrefixIndexCollisions, ATenantWhoseKeysCollideWithAnothersGetsNothingOfIt) {
  const KeyMaker keys("model", 1);  // two keys in all
  PrefixIndex index(4, keys);
  const Tokens tokens = Range(0, 4);
  const Root mine = keys.MakeRoot({"a", ""});
  index.Insert(0, mine, kNoBlock, tokens);
  uint32_t collisions = 0;
  for (int i = 0; i < 20; ++i) {
    const Root other = keys.MakeRoot({"tenant " + std::to_string(i), ""});
    index.Insert(static_cast<BlockId>(1 + i), other, kNoBlock, Range(100 + i, 4));  // known
    const PrefixMatch match = index.Find(other, tokens);
    EXPECT_EQ(match.num_tokens, 0u);
    collisions += match.collisions;
  }
  EXPECT_GT(collisions, 0u);
  EXPECT_EQ(index.Find(mine, tokens).num_tokens, 4u);
}

// Acceptance 4. Every stored block knows which tenant and prefix it was computed for; what Find
// returns must be that.
TEST(PrefixIndexCollisions, EightBitsAndThousandsOfPromptsGiveNoWrongAndNoForeignHit) {
  constexpr uint32_t kBlock = 8;
  const KeyMaker keys("model", 8);
  PrefixIndex index(kBlock, keys);
  const std::array<Root, 2> roots = {keys.MakeRoot({"a", ""}), keys.MakeRoot({"b", ""})};
  struct Origin {
    size_t tenant;
    Tokens prefix;  // up to and with this block
  };
  std::vector<Origin> origins;
  base::Random random(4);
  std::vector<Tokens> prompts;
  uint64_t hits = 0, collisions = 0;
  for (int i = 0; i < 4000; ++i) {
    Tokens prompt = prompts.empty() || random.OneIn(4) ? Tokens() : prompts[random.Below(i)];
    prompt.resize(random.Below(prompt.size() + 1));
    while (prompt.size() < 24 + random.Below(16)) {
      prompt.push_back(static_cast<TokenId>(random.Below(50)));
    }
    prompts.push_back(prompt);
    for (const size_t tenant : {random.Below(2), random.Below(2)}) {  // equal prompts among them
      const PrefixMatch match = index.Find(roots[tenant], prompt);
      hits += match.blocks.size();
      collisions += match.collisions;
      std::vector<BlockId> blocks = match.blocks;
      if (match.partial != kNoBlock) blocks.push_back(match.partial);
      for (size_t b = 0; b < blocks.size(); ++b) {
        const Origin& origin = origins[blocks[b]];
        const size_t sure = std::min<size_t>((b + 1) * kBlock, match.num_tokens);
        ASSERT_EQ(origin.tenant, tenant);
        ASSERT_TRUE(std::equal(prompt.begin(), prompt.begin() + sure, origin.prefix.begin()));
      }
      BlockId parent = match.blocks.empty() ? kNoBlock : match.blocks.back();
      for (size_t at = match.blocks.size() * kBlock; at + kBlock <= prompt.size(); at += kBlock) {
        const auto id = static_cast<BlockId>(origins.size());
        origins.push_back({tenant, Tokens(prompt.begin(), prompt.begin() + at + kBlock)});
        parent = index.Insert(id, roots[tenant], parent, std::span(prompt).subspan(at, kBlock));
        ASSERT_EQ(parent, id);
      }
    }
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(collisions, 1000u);
}

TEST(PrefixIndexMemory, TakesLittleMoreThanTheTokensOfABlock) {
  const KeyMaker keys("model");
  PrefixIndex index(32, keys);
  const Root root = keys.MakeRoot({"tenant", ""});
  constexpr BlockId kBlocks = 20000;
  BlockId parent = kNoBlock;
  for (BlockId id = 0; id < kBlocks; ++id) {
    parent = index.Insert(id, root, id % 64 == 0 ? kNoBlock : parent,
                          Range(static_cast<TokenId>(id) * 32, 32));
  }
  EXPECT_GT(index.tracking_bytes(), kBlocks * 32 * sizeof(TokenId));
  EXPECT_LT(index.tracking_bytes(), kBlocks * 320u);
}

TEST(PrefixIndexThreads, LookupsRunTogether) {
  const KeyMaker keys("model");
  PrefixIndex index(4, keys);
  const Root root = keys.MakeRoot({});
  index.Insert(0, root, kNoBlock, Range(0, 4));
  index.Insert(1, root, 0, Range(4, 4));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) EXPECT_EQ(index.Find(root, Range(0, 8)).num_tokens, 8u);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvlink::match
