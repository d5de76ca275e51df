#include "link/donors.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvlink::link {

void Donors::Announce(uint64_t leader, const match::Root& root, std::span<const TokenId> tokens) {
  match::Sketch sketch = SketchOf(tokens);
  if (!pending_.Add(leader, root, sketch)) return;
  prompts_[leader] = {root, std::move(sketch), {tokens.begin(), tokens.end()}};
}

void Donors::Settle(uint64_t leader, BlockId block) {
  const auto found = prompts_.find(leader);
  if (found == prompts_.end()) return;
  resident_.Add(block, found->second.root, found->second.sketch);
  Drop(leader);
}

void Donors::Drop(uint64_t leader) {
  if (prompts_.erase(leader) > 0) pending_.Erase(leader);
}

void Donors::Evicted(BlockId id, BlockId parent, uint32_t rows_left) {
  if (parent == kNoBlock) {
    resident_.Erase(id);
  } else {
    resident_.Move(id, parent, rows_left);
  }
}

void Donors::GoneOver(BlockId from, BlockId to) {
  resident_.Move(from, to, resident_.RowsOf(from));
}

std::optional<match::DonorMatch> Donors::FindPending(const match::Root& root,
                                                     const match::Sketch& sketch,
                                                     uint32_t exact_tokens) const {
  if (prompts_.empty()) return std::nullopt;
  return pending_.Find(root, sketch, exact_tokens);
}

std::span<const TokenId> Donors::TokensOfPending(uint64_t leader) const {
  const auto found = prompts_.find(leader);
  KVLINK_CHECK(found != prompts_.end()) << "sequence " << leader << " computes no donor";
  return found->second.tokens;
}

size_t Donors::tracking_bytes() const {
  constexpr size_t kNode = 56;
  size_t bytes = sizeof(*this) + classes_.tracking_bytes() + resident_.tracking_bytes() +
                 pending_.tracking_bytes() + prompts_.bucket_count() * sizeof(void*);
  for (const auto& [leader, prompt] : prompts_) {
    bytes += kNode + sizeof(Pending) + prompt.root.extras.capacity() +
             prompt.tokens.capacity() * sizeof(TokenId) +
             prompt.sketch.anchors.capacity() * sizeof(match::Anchor);
  }
  return bytes;
}

DonorChain ReadDonor(const match::PrefixIndex& index, BlockId last, uint32_t num_rows) {
  DonorChain chain;
  for (BlockId id = last; id != kNoBlock; id = index.ParentOf(id)) chain.blocks.push_back(id);
  std::ranges::reverse(chain.blocks);
  chain.tokens.reserve(num_rows + kMaxTokensPerBlock);
  for (const BlockId id : chain.blocks) {
    const std::span<const TokenId> tokens = index.TokensOf(id);
    chain.tokens.insert(chain.tokens.end(), tokens.begin(), tokens.end());
  }
  KVLINK_CHECK(chain.tokens.size() >= num_rows)
      << "donor " << last << " has " << chain.tokens.size() << " of " << num_rows << " rows";
  chain.tokens.resize(num_rows);
  return chain;
}

}  // namespace kvlink::link
