#include "block_cache.h"

#include <algorithm>
#include <compare>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "cache/block_graph.h"
#include "match/evicted_keys.h"
#include "pool/page_pool.h"

namespace kvlink::simulate {
namespace {

class GraphCache final : public BlockCache {
 public:
  GraphCache(const Trace& trace, uint64_t capacity)
      : tokens_(trace.block_tokens()),
        capacity_(capacity),
        pool_(MakePool(capacity)),
        graph_(tokens_, capacity),
        evicted_(capacity / 2),
        block_of_(trace.num_nodes(), kNoBlock) {}

  bool Contains(NodeId node) const override { return block_of_[node] != kNoBlock; }
  uint64_t num_blocks() const override { return graph_.counts().blocks; }

  // As link does: Begin holds what was found, makes room and counts the use; Commit keeps the new
  // blocks, and counts those that were evicted not long ago as used before; Release goes from the
  // leaf up.
  uint32_t Use(std::span<const NodeId> path, uint32_t) override {
    path = path.first(std::min<size_t>(path.size(), capacity_));
    held_.clear();
    const uint32_t hits = PrefixHits(*this, path);
    for (uint32_t i = 0; i < hits; ++i) held_.push_back(block_of_[path[i]]);
    for (const BlockId id : held_) graph_.Acquire(id);
    MakeRoom(path.size() - hits);
    for (const BlockId id : held_) graph_.CountUse(id);
    for (size_t i = hits; i < path.size(); ++i) Add(path[i]);
    for (size_t i = hits; i < path.size(); ++i) {
      graph_.SetRows(held_[i], tokens_);
      graph_.Keep(held_[i]);
      if (evicted_.Contains(KeyOf(path[i]))) graph_.CountUse(held_[i]);
    }
    for (auto id = held_.rbegin(); id != held_.rend(); ++id) {
      graph_.SetAppender(*id, 0);
      graph_.Release(*id);
    }
    return static_cast<uint32_t>(path.size()) - hits;
  }

 private:
  static base::BlockKey KeyOf(NodeId node) {
    uint64_t state = node;
    return {base::SplitMix64(state), base::SplitMix64(state)};
  }

  // Pages without content: the graph's, at the least size there is.
  static std::unique_ptr<pool::PagePool> MakePool(uint64_t capacity) {
    auto pool = pool::PagePool::Create(
        {.page_bytes = kTileAlignment, .budget_bytes = capacity * kTileAlignment});
    KVLINK_CHECK(pool.ok()) << pool.status().message();
    return std::move(pool).value();
  }

  void MakeRoom(uint64_t pages) {
    while (pool_->Counts().free < pages) {
      const std::optional<BlockId> victim = graph_.Victim();
      KVLINK_CHECK(victim.has_value()) << "no victim for " << pages << " pages";
      block_of_[node_of_[*victim]] = kNoBlock;
      evicted_.Add(KeyOf(node_of_[*victim]));
      graph_.Forget(*victim);
    }
  }

  void Add(NodeId node) {
    auto page = pool_->AllocatePage();
    KVLINK_CHECK(page.ok()) << page.status().message();
    const BlockId id =
        graph_.Add(std::move(page).value(), held_.empty() ? kNoBlock : held_.back(), kAppender);
    held_.push_back(id);
    block_of_[node] = id;
    if (node_of_.size() <= id) node_of_.resize(id + 1, kNoNode);
    node_of_[id] = node;
  }

  static constexpr uint64_t kAppender = 1;
  const uint32_t tokens_;
  const uint64_t capacity_;
  const std::unique_ptr<pool::PagePool> pool_;  // outlives the graph's references
  cache::BlockGraph graph_;
  match::EvictedKeys evicted_;
  std::vector<BlockId> block_of_;  // by node
  std::vector<NodeId> node_of_;    // by block
  std::vector<BlockId> held_;
};

class LruCache final : public BlockCache {
 public:
  LruCache(const Trace& trace, uint64_t capacity)
      : capacity_(capacity),
        links_(trace.num_nodes() + 1),
        end_(static_cast<uint32_t>(trace.num_nodes())) {
    links_[end_] = {end_, end_, true};
  }

  bool Contains(NodeId node) const override { return links_[node].is_in; }
  uint64_t num_blocks() const override { return size_; }

  uint32_t Use(std::span<const NodeId> path, uint32_t) override {
    path = path.first(std::min<size_t>(path.size(), capacity_));
    const uint32_t hits = PrefixHits(*this, path);
    for (uint32_t i = 0; i < hits; ++i) Unlink(path[i]);
    while (size_ + path.size() > capacity_) {
      const uint32_t victim = links_[end_].previous;
      KVLINK_CHECK(victim != end_) << "no victim for " << path.size() << " blocks";
      Unlink(victim);
    }
    // The root last, so that it is the most recent.
    for (auto node = path.rbegin(); node != path.rend(); ++node) LinkFirst(*node);
    return static_cast<uint32_t>(path.size()) - hits;
  }

 private:
  struct Link {
    uint32_t previous = 0, next = 0;
    bool is_in = false;
  };
  void Unlink(uint32_t node) {
    links_[links_[node].previous].next = links_[node].next;
    links_[links_[node].next].previous = links_[node].previous;
    links_[node].is_in = false;
    --size_;
  }
  void LinkFirst(uint32_t node) {
    const uint32_t next = links_[end_].next;
    links_[node] = {end_, next, true};
    links_[next].previous = node;
    links_[end_].next = node;
    ++size_;
  }

  const uint64_t capacity_;
  std::vector<Link> links_;  // by node; a ring, the last is its end
  const uint32_t end_;
  uint64_t size_ = 0;
};

class BeladyCache final : public BlockCache {
 public:
  BeladyCache(const Trace& trace, uint64_t capacity)
      : trace_(trace),
        capacity_(capacity),
        users_(trace.UsersOfNodes()),
        next_user_(trace.num_nodes(), 0),
        held_until_(trace.num_nodes(), kNotHeld) {}

  bool Contains(NodeId node) const override { return held_until_[node] != kNotHeld; }
  uint64_t num_blocks() const override { return order_.size(); }

  uint32_t Use(std::span<const NodeId> path, uint32_t now) override {
    uint32_t written = 0;
    for (const NodeId node : path) {
      const uint32_t next = NextUse(node, now);
      const bool is_held = Contains(node);
      if (is_held) Drop(node);
      if (next == kNever) continue;
      if (order_.size() >= capacity_) {
        const Key last = *order_.rbegin();
        if (KeyOf(node, next) > last) continue;  // bypass
        Drop(last.node);
      }
      held_until_[node] = next;
      order_.insert(KeyOf(node, next));
      written += is_held ? 0 : 1;
    }
    return written;
  }

 private:
  struct Key {  // the largest goes first
    uint32_t next_use = 0, depth = 0;
    NodeId node = kNoNode;
    auto operator<=>(const Key&) const = default;
  };
  static constexpr uint32_t kNever = 0xffffffffu, kNotHeld = 0xfffffffeu;

  Key KeyOf(NodeId node, uint32_t next) const { return {next, trace_.DepthOf(node), node}; }
  uint32_t NextUse(NodeId node, uint32_t now) {
    const std::vector<uint32_t>& users = users_[node];
    uint32_t& at = next_user_[node];
    while (at < users.size() && users[at] <= now) ++at;
    return at < users.size() ? users[at] : kNever;
  }
  void Drop(NodeId node) {
    order_.erase(KeyOf(node, held_until_[node]));
    held_until_[node] = kNotHeld;
  }

  const Trace& trace_;
  const uint64_t capacity_;
  const std::vector<std::vector<uint32_t>> users_;  // by node
  std::vector<uint32_t> next_user_;                 // by node: position in users_
  std::vector<uint32_t> held_until_;                // by node: its next use
  std::set<Key> order_;
};

}  // namespace

const char* PolicyName(Policy policy) {
  switch (policy) {
    case Policy::kKvlink:
      return "kvlink";
    case Policy::kLru:
      return "lru";
    case Policy::kBelady:
      return "belady";
  }
  return "unknown";
}

uint32_t PrefixHits(const BlockCache& cache, std::span<const NodeId> path) {
  uint32_t hits = 0;
  while (hits < path.size() && cache.Contains(path[hits])) ++hits;
  return hits;
}

std::unique_ptr<BlockCache> MakeCache(Policy policy, const Trace& trace, uint64_t capacity) {
  KVLINK_CHECK(capacity > 0) << "a cache of no blocks";
  switch (policy) {
    case Policy::kKvlink:
      return std::make_unique<GraphCache>(trace, capacity);
    case Policy::kLru:
      return std::make_unique<LruCache>(trace, capacity);
    case Policy::kBelady:
      return std::make_unique<BeladyCache>(trace, capacity);
  }
  return nullptr;
}

}  // namespace kvlink::simulate
