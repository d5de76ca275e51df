// BlockList: the blocks that are in memory at one moment, as people and tools see them.
//
// A copy of what the cache knows of each block, taken in one go, so that it is consistent: what a
// block needs is in it, and its counts add up to those of CacheStats of the same moment. It holds
// no tokens; Cache::ShowBlock has those of some blocks, asked for one by one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink {

// Whose blocks.
struct BlockFilter {
  std::string tenant;      // Namespace::tenant, all salts
  bool everybody = false;  // of all tenants, and pages that are nobody's (notes of donors)
};

enum class BlockKind : uint8_t {
  kFull,     // findable, with all its rows
  kTail,     // findable, and may grow
  kPrivate,  // not findable: being computed, reserved, or of a request that stores nothing
  kNote,     // no rows: what was seen of prompts that others may borrow from
};
const char* BlockKindName(BlockKind kind);

struct ListedBlock {
  uint64_t id = 0;                // of this block alone, as long as the process runs; above 0
  uint64_t parent = 0, base = 0;  // ids; 0: the first of its chain; no difference block
  BlockKind kind = BlockKind::kFull;
  uint32_t space = 0;  // in BlockList::spaces
  uint32_t depth = 0;  // blocks before it in its chain
  uint32_t rows = 0;   // tokens whose rows it holds
  uint32_t children = 0, differences = 0;
  // Sequences that use it now (the same one twice, when it borrows from its own prefix), and
  // requests that ever did, the one that computed it included.
  uint32_t users = 0, uses = 0;
  uint64_t writer = 0;   // the sequence that may write rows into it now; 0: none
  uint32_t tiers = 0;    // bit t: BlockList::tiers[t] has it, too, as far as is known
  bool tainted = false;  // computed on a similar prompt's rows
  std::chrono::milliseconds pinned_for{0};    // 0: not pinned
  std::chrono::milliseconds age{0}, idle{0};  // since it was taken, and since its last use
};

struct BlockList {
  struct Space {
    std::string tenant;  // empty: nobody's
    std::string salt;    // empty: none, or not known, as of blocks that are private
  };
  uint32_t tokens_per_block = 0;
  uint64_t page_bytes = 0, difference_bytes = 0;  // what a block, or a difference block, takes
  std::vector<std::string> tiers;                 // by bit of ListedBlock::tiers
  std::vector<Space> spaces;
  std::vector<ListedBlock> blocks;  // ascending ids: the order in which they were made

  uint64_t BytesOf(const ListedBlock& block) const {
    return block.base != 0 ? difference_bytes : page_bytes;
  }
};

// Some consecutive blocks of a chain that end in `list.blocks.back()`, and their tokens.
struct ShownBlocks {
  BlockList list;
  std::vector<TokenId> tokens;  // none of blocks that are private
};

inline const char* BlockKindName(BlockKind kind) {
  switch (kind) {
    case BlockKind::kFull:
      return "full";
    case BlockKind::kTail:
      return "tail";
    case BlockKind::kPrivate:
      return "private";
    case BlockKind::kNote:
      return "note";
  }
  return "unknown";
}

}  // namespace kvlink
