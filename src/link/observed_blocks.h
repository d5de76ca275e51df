// ObservedBlocks: tells a BlockObserver of the full blocks that the index gains and loses.
#pragma once

#include <optional>
#include <span>

#include "kvlink/block_observer.h"
#include "match/block_key.h"
#include "match/prefix_index.h"

namespace kvlink::link {

class ObservedBlocks {
 public:
  // `observer` null: nobody is told.
  ObservedBlocks(BlockObserver* observer, const match::KeyMaker& keys)
      : observer_(observer), plain_root_(keys.MakeRoot({}).key) {}

  // Requires of all: `id` is in the index, and full.
  void Stored(const match::PrefixIndex& index, BlockId id, const match::Root& root) const {
    if (observer_ == nullptr) return;
    StoredBlock block{.hash = HashOf(index.KeyOf(id)), .tokens = index.TokensOf(id)};
    const BlockId parent = index.ParentOf(id);
    if (parent != kNoBlock) block.parent = HashOf(index.KeyOf(parent));
    if (root.key != plain_root_) block.name_space = HashOf(root.key);
    observer_->Stored(block);
  }
  void Removed(const match::PrefixIndex& index, BlockId id) const {
    if (observer_ != nullptr) observer_->Removed(HashOf(index.KeyOf(id)));
  }
  void Cleared() const {
    if (observer_ != nullptr) observer_->Cleared();
  }

 private:
  static BlockHash HashOf(const base::BlockKey& key) { return {key.lo, key.hi}; }

  BlockObserver* observer_;
  base::BlockKey plain_root_;  // of the namespace without tenant and salt
};

}  // namespace kvlink::link
