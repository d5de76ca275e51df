// The part of Conductor that keeps prompts in memory: a pin for each prompt that has one, whatever
// other prompts share its blocks.
#include <string>
#include <vector>

#include "link/conductor.h"
#include "link/lookup.h"
#include "tier/chain_digest.h"

namespace kvlink::link {
namespace {

// A pin of a prompt whose first block is pinned already costs no page, but memory.
constexpr size_t kMostPins = 65536;

cache::PinKey PinKeyOf(const match::Root& root, std::span<const TokenId> tokens) {
  return tier::AddressOf(tier::NextDigest(tier::RootDigest(root.extras), tokens));
}

// The prompt's resident blocks that a pin of it holds. A block that goes on otherwise than the
// prompt does is another's.
std::vector<BlockId> BlocksToPin(const BlockStore& store, const LookupRequest& request,
                                 const match::PrefixMatch& match) {
  std::vector<BlockId> blocks = match.blocks;
  if (match.partial != kNoBlock &&
      (match.num_tokens == request.tokens.size() ||
       match.partial_rows == store.index().TokensOf(match.partial).size())) {
    blocks.push_back(match.partial);
  }
  return blocks;
}

}  // namespace

Result<uint32_t> Conductor::Pin(const LookupRequest& request, std::chrono::milliseconds ttl) {
  if (ttl.count() <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  "a pin's time to live must be above 0 ms, not " + std::to_string(ttl.count()));
  }
  const match::Root root = state_->keys.MakeRoot(request.ns);
  const cache::PinKey key = PinKeyOf(root, request.tokens);
  const base::TimePoint now = state_->options.clock();
  const auto budget = static_cast<uint64_t>(state_->options.pin_budget *
                                            static_cast<double>(state_->options.budget_bytes));
  const base::WriterLock lock(state_->mutex);
  BlockStore& store = *state_->store;
  cache::BlockGraph& graph = store.graph();
  graph.ExpirePins(now);
  const match::PrefixMatch match = FindPrompt(*state_, request, root);
  const std::vector<BlockId> blocks = BlocksToPin(store, request, match);
  if (blocks.empty()) return 0u;
  graph.Unpin(key);  // its time begins anew
  uint64_t bytes = store.pinned_bytes();
  cache::PinnedPrompt pin{.until = now + ttl};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [pages, fragments] = graph.CostOfPin(blocks[i]);
    bytes += store.BytesOf(pages, fragments);
    if (bytes > budget) break;
    pin.end = blocks[i];
    pin.tokens += i < match.blocks.size() ? shape().tokens_per_block : match.partial_rows;
  }
  if (pin.end == kNoBlock) {
    return Status(StatusCode::kResourceExhausted,
                  "pins hold " + std::to_string(store.pinned_bytes()) + " of " +
                      std::to_string(budget) + " bytes: not one more block fits");
  }
  if (graph.num_pins() >= kMostPins) {
    return Status(StatusCode::kResourceExhausted,
                  "there are " + std::to_string(kMostPins) + " pins, and no more are kept");
  }
  graph.Pin(key, pin);
  return pin.tokens;
}

Result<uint32_t> Conductor::Unpin(const LookupRequest& request) {
  const match::Root root = state_->keys.MakeRoot(request.ns);
  const cache::PinKey key = PinKeyOf(root, request.tokens);
  const base::WriterLock lock(state_->mutex);
  cache::BlockGraph& graph = state_->store->graph();
  graph.ExpirePins(state_->options.clock());
  if (const auto unpinned = graph.Unpin(key)) return *unpinned;
  if (FindPrompt(*state_, request, root).num_tokens > 0) return 0u;
  return Status(
      StatusCode::kNotFound,
      "none of the prompt's " + std::to_string(request.tokens.size()) + " tokens is in memory");
}

}  // namespace kvlink::link
