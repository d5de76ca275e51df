// PrefixIndex: which blocks hold the K and V of a prompt's first tokens. The exact part of the
// MatchMaker.
//
//   (extras) root ── block ── block ── block        full blocks: one probe of a hash table each
//                      └── block          └┄┄ tail  siblings in lexicographic order: the longest
//                                                 common prefix is with one of two neighbours
//
// Invariants
//   1. A block is reported only after its tokens, its parent and, at the root, the namespace's
//      extras were compared. An equal key with anything else is a collision: skipped and counted.
//      Truncated keys make lookups slow, never wrong.
//   2. A block's parent is in the index and full as long as the block is; only leaves are erased.
//   3. No two full blocks have the same parent and tokens (the first one stands for both).
// Threads: const members may run at the same time; everything else needs the index alone.
// Cost: Find is O(1) a block, plus O(log blocks) once where the prompt diverges. About 240 bytes a
// block of 32 tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvlink/cache.h"
#include "match/block_key.h"

namespace kvlink::match {

struct PrefixMatch {
  std::vector<BlockId> blocks;  // full blocks, from the first token on
  // Shares the next `partial_rows` tokens, and no block shares more.
  BlockId partial = kNoBlock;
  uint32_t partial_rows = 0;
  uint32_t num_tokens = 0;  // covered by both: index of the first token that is not
  bool has_next = false;    // tokens for a further full block follow `blocks`; then its key is
  BlockKey next_key;        //   (for "evicted" and "in flight")
  uint32_t collisions = 0;
};

class PrefixIndex {
 public:
  PrefixIndex(uint32_t tokens_per_block, const KeyMaker& keys);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  PrefixMatch Find(const Root& root, std::span<const TokenId> tokens) const;

  // Adds block `id` (small integers: memory goes with the largest) after `parent`, or at the root
  // with kNoBlock; `root` is the root of the chain. `tokens`: 1 to tokens_per_block; fewer than
  // that is a tail, which may grow. Returns `id`, or the full block that already stands for these
  // tokens: then `id` was not added, and the caller shares that one.
  BlockId Insert(BlockId id, const Root& root, BlockId parent, std::span<const TokenId> tokens);
  // Appends tokens to a tail. Returns `id`, or the full block that already stands for these tokens:
  // then `id` was erased.
  BlockId Grow(BlockId id, std::span<const TokenId> tokens);
  // Requires: `id` is in the index and has no children.
  void Erase(BlockId id);

  bool Contains(BlockId id) const { return id < entries_.size() && entries_[id].num_tokens > 0; }
  bool HasChildren(BlockId id) const;
  bool IsFull(BlockId id) const { return entries_[id].num_tokens == tokens_per_block_; }
  std::span<const TokenId> TokensOf(BlockId id) const;
  BlockId ParentOf(BlockId id) const;  // kNoBlock at the root
  // The root's extras of a block that hangs off it directly; else empty. Requires: Contains(id).
  std::string_view ExtrasOf(BlockId id) const;
  const BlockKey& KeyOf(BlockId id) const;  // Requires: IsFull(id)
  const KeyMaker& keys() const { return keys_; }
  size_t num_blocks() const { return children_.size(); }
  size_t num_roots() const { return roots_.size(); }
  size_t tracking_bytes() const;

 private:
  // A parent reference: a block, or, with the top bit, a root.
  using Parent = uint32_t;
  static constexpr Parent kRootBit = 0x80000000u;
  static constexpr Parent kUnknownRoot = 0xffffffffu;

  struct Entry {
    BlockKey key;  // of a full block
    Parent parent = 0;
    BlockId next_in_bucket = kNoBlock;
    uint32_t num_tokens = 0;  // 0: no such block
  };
  struct RootEntry {
    uint32_t number = 0;
    uint32_t num_blocks = 0;  // that hang off it directly; the root goes with the last one
    BlockKey key;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return base::Hash64(text); }
  };
  using Roots = std::unordered_map<std::string, RootEntry, TextHash, std::equal_to<>>;

  // What children_ orders by, then by id; a Probe stands before every block of its tokens.
  struct Probe {
    Parent parent;
    std::span<const TokenId> tokens;
  };
  struct SiblingOrder {
    using is_transparent = void;
    const PrefixIndex* index;
    bool operator()(BlockId a, BlockId b) const;
    bool operator()(BlockId a, const Probe& b) const;
    bool operator()(const Probe& a, BlockId b) const;
  };

  BlockId FindFull(Parent parent, const BlockKey& key, std::span<const TokenId> tokens,
                   uint32_t* collisions) const;
  void FindPartial(Parent parent, std::span<const TokenId> tokens, PrefixMatch* match) const;
  Parent FindRoot(const Root& root) const;
  Parent EnterRoot(const Root& root);
  void LeaveRoot(Parent parent);
  void AddFull(BlockId id, const BlockKey& key);
  void RemoveFull(BlockId id);
  void Remove(BlockId id);
  void Link(BlockId id);
  void Rehash();
  std::span<TokenId> RowsOf(BlockId id) {
    return std::span(tokens_).subspan(size_t{id} * tokens_per_block_, tokens_per_block_);
  }
  const BlockKey& ParentKey(Parent parent) const;
  Probe ProbeOf(BlockId id) const { return {entries_[id].parent, TokensOf(id)}; }

  const uint32_t tokens_per_block_;
  const KeyMaker keys_;
  std::vector<Entry> entries_;    // by BlockId
  std::vector<TokenId> tokens_;   // tokens_per_block a BlockId
  std::vector<BlockId> buckets_;  // by the low bits of the key: first full block; a power of two
  size_t num_full_ = 0;
  std::set<BlockId, SiblingOrder> children_;
  Roots roots_;
  std::vector<Roots::pointer> root_numbers_;  // by number
  std::vector<uint32_t> free_root_numbers_;
};

}  // namespace kvlink::match
