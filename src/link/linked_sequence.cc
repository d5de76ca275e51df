#include "link/linked_sequence.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "cache/row_copy.h"

namespace kvlink::link {

LinkedSequence::LinkedSequence(std::shared_ptr<CacheState> state, match::Root root, bool store,
                               bool may_leave_ram)
    : state_(std::move(state)),
      root_(std::move(root)),
      store_(store),
      may_leave_ram_(may_leave_ram) {}

// Release: leaf first. What an index knows stays as evictable cache, the rest is freed.
LinkedSequence::~LinkedSequence() {
  const base::WriterLock lock(state_->mutex);
  state_->in_flight.RetireAll(id_);
  if (donor_rows_ > 0) state_->donors->Drop(id_);
  state_->sequence_bytes -= counted_bytes_;
  state_->sequence_pages -= counted_pages_;
  cache::BlockGraph& graph = state_->store->graph();
  graph.SetNow(Now());
  for (auto id = chain_.rbegin(); id != chain_.rend(); ++id) {
    if (graph[*id].appender == id_) graph.SetAppender(*id, 0);
    graph.Release(*id);
  }
}

Status LinkedSequence::Begin(const LookupRequest& request, const match::PrefixMatch& match) {
  id_ = ++state_->last_sequence_id;
  const auto size = static_cast<uint32_t>(request.tokens.size());
  const auto first_row = static_cast<uint32_t>(match.blocks.size()) * block_size();
  const uint64_t end = uint64_t{size} + std::max(request.max_new_tokens, 1u);
  const Status started = StartFrom(
      {.full = match.blocks,
       .tail = match.partial,
       .tail_rows = match.partial_rows,
       .end_row = static_cast<uint32_t>(std::min<uint64_t>(end - first_row, block_size())),
       .may_take_over = store_,
       .is_request = true},
      size + 1);
  if (!started.ok()) return started;
  if (store_) {
    const auto tail = request.tokens.subspan(first_row, match.partial_rows);
    tail_tokens_.assign(tail.begin(), tail.end());
    Announce(request.tokens);
  }
  return Status::Ok();
}

// Before:  ... <- full blocks <- tail                (others use or cached them)
// After:   the same, used by this sequence too, then either the tail itself (in place), or
//          ... <- full blocks <- own tail            (a difference over the tail, or a copy of its
//                                  ^- reserved pages  first rows)
Status LinkedSequence::StartFrom(const Prefix& prefix, uint32_t room_for) {
  BlockStore& store = *state_->store;
  cache::BlockGraph& graph = store.graph();
  cache::CopyOnWrite cow;
  if (prefix.tail != kNoBlock) {
    cow = cache::DecideCopyOnWrite(graph, prefix.tail, prefix.tail_rows, prefix.end_row,
                                   block_size(), store.difference_capacity(), prefix.may_take_over);
  }
  const bool has_tail = prefix.tail != kNoBlock;
  const auto shared = static_cast<uint32_t>(prefix.full.size()) + (has_tail ? 1 : 0);
  const uint32_t blocks = std::max(shared, (room_for + block_size() - 1) / block_size());
  const bool copies = has_tail && cow.place == cache::WritePlace::kFullCopy;
  const bool differs = has_tail && cow.place == cache::WritePlace::kDifference;

  std::vector<BlockId> held;
  held.reserve(blocks);
  held.assign(prefix.full.begin(), prefix.full.end());
  if (has_tail) held.push_back(prefix.tail);
  for (const BlockId id : held) graph.Acquire(id);  // so that making room does not evict it
  const Status room = store.MakeRoom(store.OwnerOf(root_.tenant),
                                     blocks - shared + (copies ? 1 : 0), differs ? 1 : 0, Now());
  if (!room.ok()) {
    for (auto id = held.rbegin(); id != held.rend(); ++id) graph.Release(*id);
    return room;
  }
  if (prefix.is_request) {
    for (const BlockId id : held) graph.CountUse(id);
  }
  chain_ = std::move(held);
  if (has_tail && cow.place == cache::WritePlace::kInPlace) {
    graph.SetAppender(prefix.tail, id_);
  } else if (has_tail) {
    std::optional<PendingCopy> copy;
    chain_.back() = store.AddCopyOnWrite(cow, prefix.tail, id_, &copy);
    if (copy) copies_.push_back(*copy);
    graph.Release(prefix.tail);
  }
  num_ready_ = static_cast<uint32_t>(prefix.full.size()) * block_size() + prefix.tail_rows;
  AppendPages(blocks - shared);
  return Status::Ok();
}

Status LinkedSequence::BeginLoad(std::span<const TokenId> tokens, const match::PrefixMatch& match) {
  id_ = ++state_->last_sequence_id;
  const Status started = StartFrom({.full = match.blocks}, static_cast<uint32_t>(tokens.size()));
  if (started.ok()) Announce(tokens);
  return started;
}

void LinkedSequence::CommitLoaded(std::span<const TokenId> tokens) {
  const base::WriterLock lock(state_->mutex);
  CommitRows(tokens);
  state_->tiers->FreshAreWritten();
}

void LinkedSequence::EndLoad() {
  state_->in_flight.RetireAll(id_);
  cache::BlockGraph& graph = state_->store->graph();
  while (chain_.size() > num_ready_ / block_size()) {
    graph.SetAppender(chain_.back(), 0);
    graph.Release(chain_.back());
    chain_.pop_back();
  }
  RebuildTable();
}

void LinkedSequence::FinishCopies() {
  for (const PendingCopy& copy : copies_) {
    cache::CopyRows(state_->options.shape, copy.from, copy.to, copy.first_row, copy.num_rows);
  }
  copies_.clear();
}

void LinkedSequence::Announce(std::span<const TokenId> tokens) {
  const size_t ready_blocks = num_ready_ / block_size();
  base::BlockKey key =
      ready_blocks == 0 ? root_.key : state_->store->index().KeyOf(chain_[ready_blocks - 1]);
  for (size_t at = ready_blocks * block_size(); at + block_size() <= tokens.size();
       at += block_size()) {
    key = state_->keys.Next(key, tokens.subspan(at, block_size()));
    state_->in_flight.Announce(key, id_);
  }
}

void LinkedSequence::BecomeDonor(std::span<const TokenId> prompt) {
  if (!store_ || num_ready_ >= prompt.size()) return;
  donor_rows_ = static_cast<uint32_t>(prompt.size());
  state_->donors->Announce(id_, root_, prompt);
  state_->in_flight.Announce(Donors::KeyOf(id_), id_);
}

Status LinkedSequence::Reserve(uint32_t num_tokens) {
  if (num_tokens <= capacity_) return Status::Ok();
  const base::WriterLock lock(state_->mutex);
  return ReserveLocked(num_tokens);
}

Status LinkedSequence::ReserveLocked(uint32_t num_tokens) {
  const auto present = static_cast<uint32_t>(chain_.size());
  const uint32_t blocks = std::max(present, (num_tokens + block_size() - 1) / block_size());
  const bool outgrown = capacity_ < present * block_size();  // the tail is a difference block
  BlockStore& store = *state_->store;
  const Status room =
      store.MakeRoom(store.OwnerOf(root_.tenant), blocks - present + (outgrown ? 1 : 0), 0, Now());
  if (!room.ok()) return room;
  if (outgrown) ReplaceTailByFullCopy();
  AppendPages(blocks - present);
  return Status::Ok();
}

void LinkedSequence::AppendPages(uint32_t count) {
  const cache::OwnerId owner = state_->store->OwnerOf(root_.tenant);
  for (uint32_t i = 0; i < count; ++i) {
    chain_.push_back(state_->store->AddPage(chain_.empty() ? kNoBlock : chain_.back(), id_, owner));
  }
  RebuildTable();
}

// The sequence writes more than it announced at Begin or Fork, where a difference block was chosen.
void LinkedSequence::ReplaceTailByFullCopy() {
  BlockStore& store = *state_->store;
  cache::BlockGraph& graph = store.graph();
  const BlockId old = chain_.back();
  const uint32_t rows = graph[old].rows;
  std::optional<PendingCopy> copy;
  chain_.back() = store.AddCopyOnWrite(
      {.place = cache::WritePlace::kFullCopy, .copy_from = 0, .shared_rows = rows}, old, id_,
      &copy);
  if (copy) copies_.push_back(*copy);
  FinishCopies();  // before the old block may go
  graph.SetAppender(old, 0);
  graph.Release(old);
}

void LinkedSequence::Commit(std::span<const TokenId> tokens) {
  KVLINK_CHECK(num_ready_ + tokens.size() <= capacity_)
      << "sequence " << id_ << ": " << tokens.size() << " rows after " << num_ready_
      << " of a capacity of " << capacity_;
  if (state_->gate) state_->gate->CountComputed(tokens.size());
  std::vector<PendingWrite> writes;
  {
    const base::WriterLock lock(state_->mutex);
    CommitRows(tokens);
    if (state_->tiers) writes = state_->tiers->TakeFresh(*state_->store);
  }
  if (!writes.empty()) WriteBehind(std::move(writes));
}

// Without the lock: the blocks are in this sequence's chain, so that nobody evicts them, and full.
void LinkedSequence::WriteBehind(std::vector<PendingWrite> writes) {
  const std::vector<BlockId> refused = state_->tiers->Write(state_->options.shape, writes);
  if (refused.empty()) return;
  const base::WriterLock lock(state_->mutex);
  state_->tiers->PutBack(refused);
}

void LinkedSequence::CommitRows(std::span<const TokenId> tokens) {
  while (!tokens.empty()) {
    const uint32_t free_rows = block_size() - num_ready_ % block_size();
    const auto now = tokens.first(std::min<size_t>(tokens.size(), free_rows));
    CommitToBlock(now);
    tokens = tokens.subspan(now.size());
  }
}

void LinkedSequence::CommitToBlock(std::span<const TokenId> tokens) {
  const size_t index = num_ready_ / block_size();
  num_ready_ += static_cast<uint32_t>(tokens.size());
  BlockStore& store = *state_->store;
  const BlockId id = chain_[index];
  store.graph().SetRows(id, num_ready_ - static_cast<uint32_t>(index) * block_size());
  if (!store_) return;
  tail_tokens_.insert(tail_tokens_.end(), tokens.begin(), tokens.end());
  const BlockId standing =
      store.Publish(id, root_, tail_tokens_, static_cast<uint32_t>(tokens.size()), may_leave_ram_);
  if (standing != id) GoOverTo(index, standing);
  if (donor_rows_ > 0 && num_ready_ >= donor_rows_) {
    lent_rows_ = std::exchange(donor_rows_, 0);
    state_->donors->Settle(id_, standing);
    store.DropNote(standing);  // of a prompt that ended in the same block
    state_->in_flight.Retire(Donors::KeyOf(id_), id_);
  }
  if (tail_tokens_.size() < block_size()) return;
  tail_tokens_.clear();
  state_->in_flight.Retire(store.index().KeyOf(standing), id_);
}

void LinkedSequence::RecordTail(const PromptTail& tail, std::span<const float> logits) {
  if (lent_rows_ == 0) return;
  KVLINK_CHECK(tail.received.empty() || tail.received.size() == lent_rows_)
      << "attention of " << tail.received.size() << " of " << lent_rows_ << " rows";
  const DonorNote note = MakeNote(lent_rows_, tail, logits);
  const base::WriterLock lock(state_->mutex);
  const BlockId donor = chain_[(std::exchange(lent_rows_, 0) - 1) / block_size()];
  if (!state_->donors->resident().Contains(donor)) return;
  state_->store->KeepNote(donor, note, Now());
}

// Somebody else computed the same block first: its rows are equal in every bit.
//
// Before:  parent <- standing       After:  parent <- standing <- next
//          parent <- own <- next            (own is freed, unless a difference block needs it)
void LinkedSequence::GoOverTo(size_t index, BlockId standing) {
  cache::BlockGraph& graph = state_->store->graph();
  const BlockId own = chain_[index];
  graph.Acquire(standing);
  graph.CountUse(standing);
  if (index + 1 < chain_.size()) graph.Reparent(chain_[index + 1], standing);
  graph.SetAppender(own, 0);
  graph.Release(own);
  chain_[index] = standing;
  table_.blocks[index] = graph.View(standing);
  state_->store->NotePeak();  // its own block may stay in use, under somebody's difference
}

Verdict LinkedSequence::CheckFirstToken(std::span<const float>) {
  KVLINK_CHECK(false) << "sequence " << id_ << " borrows no rows";
  return {};
}

Result<std::unique_ptr<Sequence>> LinkedSequence::Fork(uint32_t num_tokens,
                                                       uint32_t max_new_tokens) {
  if (num_tokens > num_ready_) {
    return Status(StatusCode::kInvalidArgument, "fork at token " + std::to_string(num_tokens) +
                                                    " of sequence " + std::to_string(id_) +
                                                    ", which has " + std::to_string(num_ready_) +
                                                    " rows ready");
  }
  auto branch = std::make_unique<LinkedSequence>(state_, root_, store_, may_leave_ram_);
  {
    const base::WriterLock lock(state_->mutex);
    const Status forked = branch->StartBranch(*this, num_tokens, max_new_tokens);
    if (!forked.ok()) return forked;
  }
  branch->FinishCopies();
  return std::unique_ptr<Sequence>(std::move(branch));
}

Status LinkedSequence::StartBranch(const LinkedSequence& source, uint32_t num_tokens,
                                   uint32_t max_new_tokens) {
  id_ = ++state_->last_sequence_id;
  if (state_->options.sharing == Sharing::kOff) return CopyAllFrom(source, num_tokens);
  const uint32_t num_full = num_tokens / block_size(), tail_rows = num_tokens % block_size();
  Prefix prefix{.full = std::span(source.chain_).first(num_full)};
  if (tail_rows > 0) {
    const uint64_t end = uint64_t{tail_rows} + std::max(max_new_tokens, 1u);
    prefix.tail = source.chain_[num_full];
    prefix.tail_rows = tail_rows;
    prefix.end_row = static_cast<uint32_t>(std::min<uint64_t>(end, block_size()));
  }
  const Status started = StartFrom(prefix, num_tokens);
  if (!started.ok() || !store_ || tail_rows == 0) return started;
  const bool tail_is_full = num_full < source.num_ready_ / block_size();
  const auto tokens = tail_is_full ? state_->store->index().TokensOf(prefix.tail)
                                   : std::span<const TokenId>(source.tail_tokens_);
  tail_tokens_.assign(tokens.begin(), tokens.begin() + tail_rows);
  return started;
}

// Sharing is off: a branch has a copy of every row.
Status LinkedSequence::CopyAllFrom(const LinkedSequence& source, uint32_t num_tokens) {
  BlockStore& store = *state_->store;
  const uint32_t blocks = (num_tokens + block_size() - 1) / block_size();
  const cache::OwnerId owner = store.OwnerOf(root_.tenant);
  const Status room = store.MakeRoom(owner, blocks, 0, Now());
  if (!room.ok()) return room;
  chain_.reserve(blocks);
  for (uint32_t i = 0; i < blocks; ++i) {
    const uint32_t rows = std::min(block_size(), num_tokens - i * block_size());
    chain_.push_back(store.AddPage(i == 0 ? kNoBlock : chain_.back(), id_, owner));
    store.graph().SetRows(chain_.back(), rows);
    copies_.push_back(
        {store.graph().View(source.chain_[i]), store.graph().View(chain_.back()), 0, rows});
  }
  num_ready_ = num_tokens;
  RebuildTable();
  return Status::Ok();
}

void LinkedSequence::RebuildTable() {
  const cache::BlockGraph& graph = state_->store->graph();
  table_.blocks.clear();
  table_.blocks.reserve(chain_.capacity());
  for (const BlockId id : chain_) table_.blocks.push_back(graph.View(id));
  capacity_ = 0;
  table_.spans.clear();
  if (!chain_.empty()) {
    capacity_ = static_cast<uint32_t>(chain_.size() - 1) * block_size() +
                cache::EndRow(graph[chain_.back()], block_size());
    table_.spans.push_back({.num_rows = capacity_});
  }
  state_->store->NotePeak();
  state_->sequence_bytes -= counted_bytes_;
  counted_bytes_ = sizeof(*this) + chain_.capacity() * sizeof(BlockId) +
                   table_.blocks.capacity() * sizeof(BlockView) +
                   tail_tokens_.capacity() * sizeof(TokenId);
  state_->sequence_bytes += counted_bytes_;
  state_->sequence_pages += chain_.size() - counted_pages_;  // modulo 2^64
  counted_pages_ = chain_.size();
}

}  // namespace kvlink::link
