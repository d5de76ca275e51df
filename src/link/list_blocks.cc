#include "link/list_blocks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvlink::link {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr uint32_t kUnknown = ~0u, kNoRoot = ~0u - 1;

milliseconds Positive(base::TimePoint::duration time) {
  return std::max(duration_cast<milliseconds>(time), milliseconds(0));
}

// Rounded up: what is pinned is pinned for some time.
milliseconds PinnedFor(base::TimePoint until, base::TimePoint now) {
  return until <= now ? milliseconds(0) : std::chrono::ceil<milliseconds>(until - now);
}

// A block as the lock was held.
struct Seen {
  ListedBlock block;  // id 0: there is none; its space, tiers and the ids it points at come later
  BlockId parent = kNoBlock, base = kNoBlock;
  uint32_t tenant = 0;       // in Look::tenants
  uint32_t root = kUnknown;  // in Look::roots
  std::optional<tier::BlockKey> address;
};

// One look at everything.
struct Look {
  std::vector<Seen> seen;            // by BlockId
  std::vector<std::string> tenants;  // empty: nobody's
  std::vector<std::string> roots;    // extras
};

// Numbers what is seen again and again; by address, as the owner of it stands still under the lock.
class Numbers {
 public:
  uint32_t Of(std::string_view text, std::vector<std::string>* texts) {
    const auto [known, is_new] =
        numbers_.try_emplace(text.data(), static_cast<uint32_t>(texts->size()));
    if (is_new) texts->emplace_back(text);
    return known->second;
  }

 private:
  std::unordered_map<const char*, uint32_t> numbers_;
};

BlockKind KindOf(const BlockStore& store, BlockId id) {
  if (store.index().Contains(id)) {
    return store.index().IsFull(id) ? BlockKind::kFull : BlockKind::kTail;
  }
  return store.IsNotePage(id) ? BlockKind::kNote : BlockKind::kPrivate;
}

Seen LookAt(const CacheState& state, BlockId id, base::TimePoint now)
    KVLINK_REQUIRES_SHARED(state.mutex) {
  const cache::Block& block = state.store->graph()[id];
  Seen seen;
  seen.parent = block.parent;
  seen.base = block.base;
  if (state.tiers != nullptr) seen.address = state.tiers->AddressOf(id);
  ListedBlock& listed = seen.block;
  listed.id = block.serial;
  listed.kind = KindOf(*state.store, id);
  listed.depth = block.depth;
  listed.rows = listed.kind == BlockKind::kNote ? 0 : block.rows;
  listed.children = block.children;
  listed.differences = block.differences;
  listed.users = block.users;
  listed.uses = block.times_used;
  listed.writer = block.appender;
  listed.tainted = block.tainted;
  listed.age = Positive(now - block.made);
  listed.idle = block.users > 0 ? milliseconds(0) : Positive(now - block.used);
  return seen;
}

Look LookAround(const CacheState& state) {
  const base::TimePoint now = state.options.clock();
  Look look;
  Numbers tenants, roots;
  const base::ReaderLock lock(state.mutex);
  const BlockStore& store = *state.store;
  const std::vector<base::TimePoint> pinned_until = store.graph().PinnedUntil();
  look.seen.resize(store.graph().end_id());
  for (BlockId id = 0; id < look.seen.size(); ++id) {
    if (!store.graph()[id].present) continue;
    Seen& seen = look.seen[id] = LookAt(state, id, now);
    if (!pinned_until.empty()) seen.block.pinned_for = PinnedFor(pinned_until[id], now);
    seen.tenant = tenants.Of(store.TenantOf(id), &look.tenants);
    if (!store.index().Contains(id)) continue;
    const std::string_view extras = store.index().ExtrasOf(id);
    if (!extras.empty()) seen.root = roots.Of(extras, &look.roots);
  }
  return look;
}

// The root of the block's chain: known of its first block, if that is findable, and noted for all
// on the way there.
uint32_t RootOf(BlockId id, Look* look) {
  std::vector<BlockId> way;
  while (id != kNoBlock && look->seen[id].root == kUnknown) {
    way.push_back(id);
    id = look->seen[id].parent;
  }
  const uint32_t root = id == kNoBlock ? kNoRoot : look->seen[id].root;
  for (const BlockId below : way) look->seen[below].root = root;
  return root;
}

// The list's spaces, by tenant and root.
class Spaces {
 public:
  Spaces(const CacheState& state, const Look& look, BlockList* list)
      : state_(state), look_(look), list_(*list) {}
  uint32_t Of(uint32_t tenant, uint32_t root) {
    const auto [known, is_new] =
        numbers_.try_emplace(std::pair(tenant, root), static_cast<uint32_t>(list_.spaces.size()));
    if (is_new) {
      BlockList::Space space{.tenant = look_.tenants[tenant], .salt = {}};
      if (root != kNoRoot) space.salt = state_.keys.SaltOf(look_.roots[root]);
      list_.spaces.push_back(std::move(space));
    }
    return known->second;
  }

 private:
  const CacheState& state_;
  const Look& look_;
  BlockList& list_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers_;
};

uint32_t TiersOf(const CacheState& state, const Seen& seen) {
  return seen.address ? state.tiers->store().Find(*seen.address).present : 0;
}

BlockList EmptyList(const CacheState& state) {
  const KvShape& shape = state.options.shape;
  BlockList list;
  list.tokens_per_block = shape.tokens_per_block;
  list.page_bytes = shape.page_bytes();
  const uint32_t rows =
      cache::DifferenceCapacity(shape.tokens_per_block, state.options.cow_copy_threshold);
  list.difference_bytes = DifferenceView::CellsBytes(shape, rows);
  if (state.tiers != nullptr) {
    for (uint32_t t = 0; t < state.tiers->store().num_tiers(); ++t) {
      list.tiers.push_back(state.tiers->name(t));
    }
  }
  return list;
}

// A page that belongs to nobody, such as notes, has the empty tenant's number, too.
bool IsFor(const BlockFilter& filter, const Look& look, const Seen& seen) {
  if (filter.everybody) return true;
  return seen.block.kind != BlockKind::kNote && look.tenants[seen.tenant] == filter.tenant;
}

// False: one of them is gone.
bool AppendTokens(const CacheState& state, const std::vector<ListedBlock>& chain,
                  std::vector<TokenId>* tokens) {
  std::unordered_map<uint64_t, BlockId> ids;
  for (const ListedBlock& listed : chain) ids[listed.id] = kNoBlock;
  const base::ReaderLock lock(state.mutex);
  const BlockStore& store = *state.store;
  for (BlockId id = 0; id < store.graph().end_id(); ++id) {
    if (!store.graph()[id].present) continue;
    const auto wanted = ids.find(store.graph()[id].serial);
    if (wanted != ids.end()) wanted->second = id;
  }
  for (const ListedBlock& listed : chain) {
    const BlockId id = ids[listed.id];
    if (id == kNoBlock) return false;
    if (!store.index().Contains(id)) continue;
    const auto of_block = store.index().TokensOf(id);
    tokens->insert(tokens->end(), of_block.begin(), of_block.end());
  }
  return true;
}

}  // namespace

BlockList ListBlocks(const CacheState& state, const BlockFilter& filter) {
  BlockList list = EmptyList(state);
  Look look = LookAround(state);
  Spaces spaces(state, look, &list);
  const auto serial = [&](BlockId id) { return id == kNoBlock ? 0 : look.seen[id].block.id; };
  for (BlockId id = 0; id < look.seen.size(); ++id) {
    Seen& seen = look.seen[id];
    if (seen.block.id == 0 || !IsFor(filter, look, seen)) continue;
    const uint32_t root = RootOf(id, &look);
    seen.block.space = spaces.Of(seen.tenant, root);
    seen.block.parent = serial(seen.parent);
    seen.block.base = serial(seen.base);
    seen.block.tiers = TiersOf(state, seen);
    list.blocks.push_back(seen.block);
  }
  std::sort(list.blocks.begin(), list.blocks.end(),
            [](const ListedBlock& a, const ListedBlock& b) { return a.id < b.id; });
  return list;
}

Result<ShownBlocks> ShowBlock(const CacheState& state, uint64_t id, uint32_t last,
                              const BlockFilter& filter) {
  const auto gone = [&] {
    return Status(StatusCode::kNotFound,
                  "there is no block " + std::to_string(id) + " in memory (any more)");
  };
  ShownBlocks shown;
  shown.list = ListBlocks(state, filter);
  std::vector<ListedBlock>& blocks = shown.list.blocks;
  const auto find = [&](uint64_t wanted) {
    const auto found = std::lower_bound(
        blocks.begin(), blocks.end(), wanted,
        [](const ListedBlock& block, uint64_t serial) { return block.id < serial; });
    return found != blocks.end() && found->id == wanted ? &*found : nullptr;
  };
  std::vector<ListedBlock> chain;
  for (const ListedBlock* block = find(id); block != nullptr && chain.size() < last;
       block = find(block->parent)) {
    chain.push_back(*block);
  }
  if (chain.empty()) return gone();
  std::reverse(chain.begin(), chain.end());
  if (!AppendTokens(state, chain, &shown.tokens)) return gone();
  blocks = std::move(chain);
  return shown;
}

}  // namespace kvlink::link
