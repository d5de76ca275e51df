#include "match/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace kvlink::match {
namespace {

// Adds room for one index more in steps of a quarter: the slack of doubling would double the memory
// per block.
template <typename T>
void GrowTo(std::vector<T>& vector, size_t size, const T& value) {
  if (size > vector.capacity()) vector.reserve(std::max(size, vector.size() + vector.size() / 4));
  if (size > vector.size()) vector.resize(size, value);
}

uint32_t CommonPrefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<uint32_t>(end - a.begin());
}

std::strong_ordering Compare(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

PrefixIndex::PrefixIndex(uint32_t tokens_per_block, const KeyMaker& keys)
    : tokens_per_block_(tokens_per_block),
      keys_(keys),
      buckets_(64, kNoBlock),
      children_(SiblingOrder{this}) {
  KVLINK_CHECK(tokens_per_block >= 1 && tokens_per_block <= kMaxTokensPerBlock)
      << "tokens_per_block " << tokens_per_block;
}

PrefixMatch PrefixIndex::Find(const Root& root, std::span<const TokenId> tokens) const {
  PrefixMatch match;
  BlockKey key = root.key;
  Parent parent = FindRoot(root);
  match.blocks.reserve(tokens.size() / tokens_per_block_);
  while (tokens.size() - match.num_tokens >= tokens_per_block_) {
    const auto block_tokens = tokens.subspan(match.num_tokens, tokens_per_block_);
    key = keys_.Next(key, block_tokens);
    const BlockId id = FindFull(parent, key, block_tokens, &match.collisions);
    if (id == kNoBlock) {
      match.has_next = true;
      match.next_key = key;
      break;
    }
    match.blocks.push_back(id);
    match.num_tokens += tokens_per_block_;
    parent = id;
  }
  FindPartial(parent, tokens.subspan(match.num_tokens), &match);
  return match;
}

BlockId PrefixIndex::FindFull(Parent parent, const BlockKey& key, std::span<const TokenId> tokens,
                              uint32_t* collisions) const {
  BlockId id = buckets_[key.lo & (buckets_.size() - 1)];
  for (; id != kNoBlock; id = entries_[id].next_in_bucket) {
    const Entry& entry = entries_[id];
    if (entry.key != key) continue;
    if (entry.parent == parent && std::ranges::equal(TokensOf(id), tokens)) return id;
    ++*collisions;
  }
  return kNoBlock;
}

// In lexicographic order, the longest common prefix with any sibling is with the last one before
// `tokens` or the first one after: whatever lies further away shares no more.
void PrefixIndex::FindPartial(Parent parent, std::span<const TokenId> tokens,
                              PrefixMatch* match) const {
  if (tokens.empty()) return;
  tokens = tokens.first(std::min<size_t>(tokens.size(), tokens_per_block_));
  const auto consider = [&](BlockId id) {
    if (entries_[id].parent != parent) return;
    const uint32_t rows = CommonPrefix(TokensOf(id), tokens);
    if (rows <= match->partial_rows) return;
    match->partial = id;
    match->partial_rows = rows;
  };
  const auto after = children_.lower_bound(Probe{parent, tokens});
  if (after != children_.end()) consider(*after);
  if (after != children_.begin()) consider(*std::prev(after));
  match->num_tokens += match->partial_rows;
}

BlockId PrefixIndex::Insert(BlockId id, const Root& root, BlockId parent,
                            std::span<const TokenId> tokens) {
  KVLINK_CHECK(!tokens.empty() && tokens.size() <= tokens_per_block_)
      << tokens.size() << " tokens for block " << id;
  KVLINK_CHECK(id < kRootBit && !Contains(id)) << "block " << id;
  KVLINK_CHECK(parent == kNoBlock || (Contains(parent) && IsFull(parent)))
      << "block " << id << " after block " << parent;
  const bool full = tokens.size() == tokens_per_block_;
  Parent above = parent == kNoBlock ? FindRoot(root) : parent;
  BlockKey key;
  if (full) {
    key = keys_.Next(parent == kNoBlock ? root.key : entries_[parent].key, tokens);
    uint32_t collisions = 0;
    const BlockId standing = FindFull(above, key, tokens, &collisions);
    if (standing != kNoBlock) return standing;
  }
  if (parent == kNoBlock) above = EnterRoot(root);
  GrowTo(entries_, id + size_t{1}, Entry{});
  GrowTo(tokens_, entries_.size() * tokens_per_block_, TokenId{0});
  std::ranges::copy(tokens, RowsOf(id).begin());
  entries_[id] = {.parent = above, .num_tokens = static_cast<uint32_t>(tokens.size())};
  children_.insert(id);
  if (full) AddFull(id, key);
  return id;
}

BlockId PrefixIndex::Grow(BlockId id, std::span<const TokenId> tokens) {
  KVLINK_CHECK(Contains(id)) << "block " << id;
  Entry& entry = entries_[id];
  KVLINK_CHECK(entry.num_tokens + tokens.size() <= tokens_per_block_)
      << tokens.size() << " more tokens for block " << id << ", which has " << entry.num_tokens;
  if (tokens.empty()) return id;
  auto node = children_.extract(id);  // before its place in the order changes
  std::ranges::copy(tokens, RowsOf(id).subspan(entry.num_tokens).begin());
  entry.num_tokens += static_cast<uint32_t>(tokens.size());
  children_.insert(std::move(node));
  if (!IsFull(id)) return id;

  const BlockKey key = keys_.Next(ParentKey(entry.parent), TokensOf(id));
  uint32_t collisions = 0;
  const BlockId standing = FindFull(entry.parent, key, TokensOf(id), &collisions);
  if (standing == kNoBlock) {
    AddFull(id, key);
    return id;
  }
  Remove(id);
  return standing;
}

void PrefixIndex::Erase(BlockId id) {
  KVLINK_CHECK(Contains(id)) << "block " << id;
  KVLINK_CHECK(!HasChildren(id)) << "block " << id;
  if (IsFull(id)) RemoveFull(id);
  Remove(id);
}

void PrefixIndex::Remove(BlockId id) {
  children_.erase(id);
  LeaveRoot(entries_[id].parent);
  entries_[id] = Entry{};
}

bool PrefixIndex::HasChildren(BlockId id) const {
  const auto first = children_.lower_bound(Probe{id, {}});
  return first != children_.end() && entries_[*first].parent == id;
}

std::span<const TokenId> PrefixIndex::TokensOf(BlockId id) const {
  return std::span(tokens_).subspan(size_t{id} * tokens_per_block_, entries_[id].num_tokens);
}

BlockId PrefixIndex::ParentOf(BlockId id) const {
  const Parent parent = entries_[id].parent;
  return (parent & kRootBit) != 0 ? kNoBlock : parent;
}

std::string_view PrefixIndex::ExtrasOf(BlockId id) const {
  const Parent parent = entries_[id].parent;
  return (parent & kRootBit) == 0 ? std::string_view() : root_numbers_[parent & ~kRootBit]->first;
}

const BlockKey& PrefixIndex::KeyOf(BlockId id) const {
  KVLINK_CHECK(Contains(id) && IsFull(id)) << "block " << id;
  return entries_[id].key;
}

void PrefixIndex::AddFull(BlockId id, const BlockKey& key) {
  entries_[id].key = key;
  if (++num_full_ > buckets_.size()) {
    Rehash();  // links `id` as well: it is in children_, and full
    return;
  }
  Link(id);
}

void PrefixIndex::RemoveFull(BlockId id) {
  const Entry& entry = entries_[id];
  BlockId* link = &buckets_[entry.key.lo & (buckets_.size() - 1)];
  while (*link != id) link = &entries_[*link].next_in_bucket;
  *link = entry.next_in_bucket;
  --num_full_;
}

void PrefixIndex::Link(BlockId id) {
  BlockId& bucket = buckets_[entries_[id].key.lo & (buckets_.size() - 1)];
  entries_[id].next_in_bucket = bucket;
  bucket = id;
}

void PrefixIndex::Rehash() {
  buckets_.assign(buckets_.size() * 2, kNoBlock);
  for (BlockId id = 0; id < entries_.size(); ++id) {
    if (IsFull(id)) Link(id);
  }
}

PrefixIndex::Parent PrefixIndex::FindRoot(const Root& root) const {
  const auto known = roots_.find(root.extras);
  return known == roots_.end() ? kUnknownRoot : (known->second.number | kRootBit);
}

PrefixIndex::Parent PrefixIndex::EnterRoot(const Root& root) {
  const auto [known, is_new] = roots_.try_emplace(root.extras);
  RootEntry& entry = known->second;
  if (is_new) {
    if (free_root_numbers_.empty()) {
      free_root_numbers_.push_back(static_cast<uint32_t>(root_numbers_.size()));
      root_numbers_.push_back(nullptr);
    }
    entry.number = free_root_numbers_.back();
    free_root_numbers_.pop_back();
    root_numbers_[entry.number] = &*known;
    entry.key = root.key;
  }
  ++entry.num_blocks;
  return entry.number | kRootBit;
}

void PrefixIndex::LeaveRoot(Parent parent) {
  if ((parent & kRootBit) == 0) return;
  Roots::pointer& slot = root_numbers_[parent & ~kRootBit];
  if (--slot->second.num_blocks > 0) return;
  free_root_numbers_.push_back(slot->second.number);
  roots_.erase(roots_.find(slot->first));
  slot = nullptr;
}

const BlockKey& PrefixIndex::ParentKey(Parent parent) const {
  return (parent & kRootBit) == 0 ? entries_[parent].key
                                  : root_numbers_[parent & ~kRootBit]->second.key;
}

size_t PrefixIndex::tracking_bytes() const {
  // Nodes of libstdc++'s containers with what malloc adds; strings longer than 15 bytes lie outside
  // their node.
  constexpr size_t kTreeNode = 48;
  constexpr size_t kRootNode = 16 + sizeof(Roots::value_type) + 16;
  size_t bytes = sizeof(*this) + entries_.capacity() * sizeof(Entry) +
                 tokens_.capacity() * sizeof(TokenId) + buckets_.capacity() * sizeof(BlockId) +
                 children_.size() * kTreeNode + root_numbers_.capacity() * sizeof(void*) +
                 free_root_numbers_.capacity() * sizeof(uint32_t) +
                 roots_.bucket_count() * sizeof(void*);
  for (const auto& [extras, root] : roots_) bytes += kRootNode + extras.capacity() + 16;
  return bytes;
}

bool PrefixIndex::SiblingOrder::operator()(BlockId a, BlockId b) const {
  const Probe pa = index->ProbeOf(a), pb = index->ProbeOf(b);
  if (pa.parent != pb.parent) return pa.parent < pb.parent;
  const auto order = Compare(pa.tokens, pb.tokens);
  return order != 0 ? order < 0 : a < b;
}

bool PrefixIndex::SiblingOrder::operator()(BlockId a, const Probe& b) const {
  const Probe pa = index->ProbeOf(a);
  return pa.parent != b.parent ? pa.parent < b.parent : Compare(pa.tokens, b.tokens) < 0;
}

bool PrefixIndex::SiblingOrder::operator()(const Probe& a, BlockId b) const {
  const Probe pb = index->ProbeOf(b);
  return a.parent != pb.parent ? a.parent < pb.parent : Compare(a.tokens, pb.tokens) <= 0;
}

}  // namespace kvlink::match
