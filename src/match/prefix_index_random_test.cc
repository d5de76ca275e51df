// PrefixIndex under random operations, beside a naive model.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "match/prefix_index.h"
#include "match/testing/tokens.h"

namespace kvlink::match {
namespace {

// The index beside a list of blocks that is searched from end to end.
class Naive {
 public:
  struct Block {
    size_t ns;
    BlockId parent;
    Tokens tokens;
  };
  std::map<BlockId, Block> blocks;

  BlockId FullChild(size_t ns, BlockId parent, const Tokens& tokens) const {
    for (const auto& [id, block] : blocks) {
      if (block.ns == ns && block.parent == parent && block.tokens == tokens) return id;
    }
    return kNoBlock;
  }
  uint32_t BestRows(size_t ns, BlockId parent, const Tokens& tokens) const {
    uint32_t best = 0;
    for (const auto& [id, block] : blocks) {
      if (block.ns == ns && block.parent == parent)
        best = std::max(best, Common(block.tokens, tokens));
    }
    return best;
  }
  bool HasChildren(BlockId parent) const {
    return std::ranges::any_of(blocks, [&](const auto& b) { return b.second.parent == parent; });
  }
  static uint32_t Common(const Tokens& a, const Tokens& b) {
    uint32_t rows = 0;
    while (rows < a.size() && rows < b.size() && a[rows] == b[rows]) ++rows;
    return rows;
  }
};

struct Setting {
  uint32_t tokens_per_block;
  int hash_bits;
};

class PrefixIndexRandomTest : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr size_t kNamespaces = 3;

  PrefixIndexRandomTest() {
    for (size_t i = 0; i < kNamespaces; ++i) {
      // Two salts of one tenant, and another tenant.
      roots_.push_back(keys_.MakeRoot({i < 2 ? "a" : "b", i == 1 ? "s" : ""}));
    }
  }
  Tokens RandomPrompt() {
    Tokens tokens(random_.Below(5 * kBlock));
    for (TokenId& token : tokens) token = random_.OneIn(6) ? 1 : 0;  // shares long prefixes
    return tokens;
  }
  static Tokens Piece(const Tokens& tokens, size_t at, size_t most) {
    at = std::min(at, tokens.size());
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    return {first, first + static_cast<std::ptrdiff_t>(std::min(most, tokens.size() - at))};
  }

  PrefixMatch CheckedFind(size_t ns, const Tokens& tokens) {
    const PrefixMatch match = index_.Find(roots_[ns], tokens);
    BlockId parent = kNoBlock;
    size_t at = 0;
    std::vector<BlockId> blocks;
    while (at + kBlock <= tokens.size()) {
      const BlockId id = naive_.FullChild(ns, parent, Piece(tokens, at, kBlock));
      if (id == kNoBlock) break;
      blocks.push_back(parent = id);
      at += kBlock;
    }
    EXPECT_EQ(match.blocks, blocks);
    EXPECT_EQ(match.has_next, at + kBlock <= tokens.size());
    const Tokens rest = Piece(tokens, at, kBlock);
    EXPECT_EQ(match.partial_rows, naive_.BestRows(ns, parent, rest));
    EXPECT_EQ(match.num_tokens, at + match.partial_rows);
    EXPECT_EQ(match.partial == kNoBlock, match.partial_rows == 0);
    if (match.partial != kNoBlock) {
      const Naive::Block& block = naive_.blocks.at(match.partial);
      EXPECT_EQ(block.ns, ns);
      EXPECT_EQ(block.parent, parent);
      EXPECT_EQ(Naive::Common(block.tokens, rest), match.partial_rows);
    }
    return match;
  }

  void StorePrompt() {
    const size_t ns = random_.Below(kNamespaces);
    const Tokens tokens = RandomPrompt();
    const PrefixMatch match = CheckedFind(ns, tokens);
    BlockId parent = match.blocks.empty() ? kNoBlock : match.blocks.back();
    for (size_t at = match.blocks.size() * kBlock; at < tokens.size(); at += kBlock) {
      const Tokens piece = Piece(tokens, at, kBlock);
      const BlockId id = TakeId();
      ASSERT_EQ(index_.Insert(id, roots_[ns], parent, piece), id);
      naive_.blocks[id] = {ns, parent, piece};
      parent = id;
    }
  }

  void InsertDuplicate() {
    if (naive_.blocks.empty()) return;
    const auto& [id, block] = Any();
    if (block.tokens.size() < kBlock) return;
    const BlockId other = TakeId();
    EXPECT_EQ(index_.Insert(other, roots_[block.ns], block.parent, block.tokens), id);
    free_ids_.push_back(other);
  }

  void GrowTail() {
    if (naive_.blocks.empty()) return;
    auto& [id, block] = Any();
    if (block.tokens.size() == kBlock) return;
    Tokens more(random_.Below(kBlock - block.tokens.size() + 1));
    for (TokenId& token : more) token = random_.OneIn(6) ? 1 : 0;
    const Tokens grown = block.tokens + more;
    const BlockId standing =
        grown.size() < kBlock ? kNoBlock : naive_.FullChild(block.ns, block.parent, grown);
    const BlockId grown_id = index_.Grow(id, more);
    if (standing == kNoBlock) {
      EXPECT_EQ(grown_id, id);
      block.tokens = grown;
    } else {
      EXPECT_EQ(grown_id, standing);
      Forget(id);
    }
  }

  void EraseLeaf() {
    if (naive_.blocks.empty()) return;
    const BlockId id = Any().first;
    EXPECT_EQ(index_.HasChildren(id), naive_.HasChildren(id));
    if (naive_.HasChildren(id)) return;
    index_.Erase(id);
    Forget(id);
  }

  std::pair<const BlockId, Naive::Block>& Any() {
    auto it = naive_.blocks.begin();
    std::advance(it, random_.Below(naive_.blocks.size()));
    return *it;
  }
  BlockId TakeId() {
    if (free_ids_.empty()) return next_id_++;
    const BlockId id = free_ids_.back();
    free_ids_.pop_back();
    return id;
  }
  void Forget(BlockId id) {
    free_ids_.push_back(id);
    naive_.blocks.erase(id);
  }

  const uint32_t kBlock = GetParam().tokens_per_block;
  KeyMaker keys_{"model", GetParam().hash_bits};
  PrefixIndex index_{kBlock, keys_};
  std::vector<Root> roots_;
  Naive naive_;
  base::Random random_{1};
  BlockId next_id_ = 0;
  std::vector<BlockId> free_ids_;
};

TEST_P(PrefixIndexRandomTest, DoesWhatASearchFromEndToEndDoes) {
  size_t most = 0;
  for (int step = 0; step < 4000 && !HasFailure(); ++step) {
    const bool filling = step / 300 % 2 == 0;
    most = std::max(most, index_.num_blocks());
    switch (random_.Below(filling ? 6 : 12)) {
      case 0:
        StorePrompt();
        break;
      case 1:
        CheckedFind(random_.Below(kNamespaces), RandomPrompt());
        break;
      case 2:
        InsertDuplicate();
        break;
      case 3:
      case 4:
        GrowTail();
        break;
      default:
        EraseLeaf();
    }
    ASSERT_EQ(index_.num_blocks(), naive_.blocks.size());
    std::set<size_t> namespaces;
    for (const auto& [id, block] : naive_.blocks) namespaces.insert(block.ns);
    ASSERT_EQ(index_.num_roots(), namespaces.size());
  }
  EXPECT_GT(most, 50u);
  while (!naive_.blocks.empty()) EraseLeaf();
  EXPECT_EQ(index_.num_blocks(), 0u);
  EXPECT_EQ(index_.num_roots(), 0u);
  EXPECT_EQ(index_.Find(roots_[0], RandomPrompt()).collisions, 0u) << "a bucket kept a block";
}

INSTANTIATE_TEST_SUITE_P(All, PrefixIndexRandomTest,
                         ::testing::Values(Setting{4, 128}, Setting{4, 3}, Setting{8, 8},
                                           Setting{32, 64}, Setting{128, 70}),
                         [](const auto& setting) {
                           return "Block" + std::to_string(setting.param.tokens_per_block) +
                                  "Bits" + std::to_string(setting.param.hash_bits);
                         });

}  // namespace
}  // namespace kvlink::match
