#include "link/borrowing_sequence.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "cache/half.h"
#include "cache/row_copy.h"
#include "cache/row_deviation.h"

namespace kvlink::link {
namespace {

void AcquireAll(cache::BlockGraph& graph, std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) graph.Acquire(id);
}

// Leaf first.
void ReleaseAll(cache::BlockGraph& graph, std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) graph.Release(blocks[i]);
}

}  // namespace

BorrowingSequence::~BorrowingSequence() {
  const base::WriterLock lock(state_->mutex);
  state_->sequence_bytes -= counted_bytes_;
  state_->sequence_pages -= counted_pages_;
  cache::BlockGraph& graph = state_->store->graph();
  graph.SetNow(state_->options.clock());
  ReleaseAll(graph, own_);
  ReleaseAll(graph, donor_);
  ReleaseAll(graph, exact_);
}

Status BorrowingSequence::Begin(uint32_t num_tokens, const match::PrefixMatch& match,
                                std::span<const BlockId> donor_blocks,
                                std::unique_ptr<Attempt> attempt) {
  id_ = ++state_->last_sequence_id;
  const SimilarPlan& plan = attempt->plan();
  bands_ = verify::BandsOf(state_->layers);
  loan_ = {.exact_rows = match.num_tokens,
           .num_tokens = num_tokens,
           .spans = plan.spans,
           .computed = {},
           .is_copied = !bands_.empty()};
  (loan_.is_copied ? selected_ : loan_.computed) = plan.selection.computed;
  BlockStore& store = *state_->store;
  cache::BlockGraph& graph = store.graph();
  std::vector<BlockId> exact = match.blocks;
  if (match.partial != kNoBlock) exact.push_back(match.partial);
  const auto donor = donor_blocks.first((loan_.DonorRows() + block_size() - 1) / block_size());
  AcquireAll(graph, exact);  // so that making room does not evict them
  AcquireAll(graph, donor);
  const uint32_t pages = MissingPages(num_tokens + 1);
  const Status room = store.MakeRoom(store.OwnerOf(tenant_), pages, 0, state_->options.clock());
  if (!room.ok()) {
    ReleaseAll(graph, donor);
    ReleaseAll(graph, exact);
    return room;
  }
  for (const BlockId id : exact) graph.CountUse(id);
  for (size_t i = 0; i < donor.size(); ++i) {  // those that both share were counted
    if (i >= exact.size() || exact[i] != donor[i]) graph.CountUse(donor[i]);
  }
  store.CountNoteUse(static_cast<BlockId>(plan.donor));
  exact_ = std::move(exact);
  donor_.assign(donor.begin(), donor.end());
  AddOwnPages(pages);
  num_ready_ = loan_.exact_rows;
  attempt_ = std::move(attempt);
  RebuildTable();
  return Status::Ok();
}

uint32_t BorrowingSequence::MissingPages(uint32_t num_tokens) const {
  const uint32_t rows = loan_.OwnRowsBefore(num_tokens);
  const uint32_t pages = (rows + block_size() - 1) / block_size();
  return pages - std::min(pages, static_cast<uint32_t>(own_.size()));
}

Status BorrowingSequence::Reserve(uint32_t num_tokens) {
  if (num_tokens <= capacity_) return Status::Ok();
  const base::WriterLock lock(state_->mutex);
  return ReserveLocked(num_tokens);
}

Status BorrowingSequence::ReserveLocked(uint32_t num_tokens) {
  const uint32_t pages = MissingPages(num_tokens);
  BlockStore& store = *state_->store;
  const Status room = store.MakeRoom(store.OwnerOf(tenant_), pages, 0, state_->options.clock());
  if (!room.ok()) return room;
  AddOwnPages(pages);
  RebuildTable();
  return Status::Ok();
}

void BorrowingSequence::AddOwnPages(uint32_t count) {
  const cache::OwnerId owner = state_->store->OwnerOf(tenant_);
  for (uint32_t i = 0; i < count; ++i) {
    own_.push_back(state_->store->AddPage(kNoBlock, id_, owner));
    state_->store->graph().SetTainted(own_.back());
  }
}

void BorrowingSequence::Commit(std::span<const TokenId> tokens) {
  KVLINK_CHECK(num_ready_ + tokens.size() <= capacity_)
      << "sequence " << id_ << ": " << tokens.size() << " rows after " << num_ready_
      << " of a capacity of " << capacity_;
  num_ready_ += static_cast<uint32_t>(tokens.size());
  // The prompt's own rows count with the verdict.
  if (num_ready_ > loan_.num_tokens) {
    const uint64_t generated = num_ready_ - loan_.num_tokens;
    state_->gate->CountComputed(std::min<uint64_t>(generated, tokens.size()));
  }
}

Verdict BorrowingSequence::CheckFirstToken(std::span<const float> logits) {
  KVLINK_CHECK(attempt_ != nullptr) << "sequence " << id_ << " has its verdict, or needs none";
  KVLINK_CHECK(num_ready_ >= loan_.num_tokens)
      << "sequence " << id_ << ": " << num_ready_ << " of " << loan_.num_tokens << " rows";
  Verdict verdict = attempt_->Judge(logits, MeasureDeviation());
  if (verdict.action == Verdict::Action::kEnlarge) {
    if (Enlarge(attempt_->selection())) return verdict;
    verdict = attempt_->GiveUp(SimilarReason::kNoRoom);
  }
  attempt_.reset();
  if (loan_.is_copied) GiveDonorBack();
  return verdict;
}

std::optional<LayerBand> BorrowingSequence::NextBand() {
  if (!runs_in_bands()) return std::nullopt;
  if (next_band_ == 0) {
    CopyDonor();
  } else if (const verify::Band& before = bands_[next_band_ - 1]; before.measures) {
    deviation_ = MeasureLayer(before.end_layer);
    attempt_->Reselect(deviation_, before.budget_share, /*joins=*/next_band_ > 1);
    selected_ = attempt_->selection().computed;
  }
  if (next_band_ == bands_.size()) return std::nullopt;
  const verify::Band& band = bands_[next_band_++];
  LayerBand next{.first_layer = band.first_layer,
                 .end_layer = band.end_layer,
                 .rows = {},
                 .writes_next = band.measures};
  if (band.all_rows) {
    next.rows.push_back({loan_.exact_rows, loan_.num_tokens - loan_.exact_rows});
  } else {
    next.rows = selected_;
  }
  return next;
}

bool BorrowingSequence::ReadCheckpoint(uint32_t layer, uint32_t position,
                                       std::span<float> out) const {
  const KvShape& shape = state_->options.shape;
  const std::vector<uint32_t>& layers = state_->layers.checkpoints;
  const auto found = std::ranges::find(layers, layer);
  const auto span = std::ranges::find_if(loan_.spans, [position](const ReuseSpan& s) {
    return position >= s.position && position < s.end();
  });
  if (found == layers.end() || span == loan_.spans.end() || donor_.empty()) return false;
  const size_t bytes = out.size() * sizeof(uint16_t);
  if (bytes * layers.size() != shape.checkpoint_bytes) return false;
  const uint32_t row = span->donor_position + (position - span->position);
  const std::byte* from = table_.blocks[donor_block() + row / block_size()].page +
                          shape.checkpoints_offset() +
                          (row % block_size()) * shape.checkpoint_bytes +
                          static_cast<size_t>(found - layers.begin()) * bytes;
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, from + i * sizeof(half), sizeof(half));
    out[i] = cache::FromF16(half);
  }
  return true;
}

// No lock: nobody else sees the own pages, and the donor's rows never change.
void BorrowingSequence::CopyDonor() {
  if (std::exchange(has_copies_, true)) return;
  const uint32_t rows = block_size();
  for (const ReuseSpan& span : loan_.spans) {
    for (uint32_t i = 0; i < span.num_rows; ++i) {
      const uint32_t own = span.position + i - loan_.exact_rows, donor = span.donor_position + i;
      cache::CopyRow(state_->options.shape, table_.blocks[donor_block() + donor / rows],
                     donor % rows, table_.blocks[own_block() + own / rows], own % rows);
    }
  }
}

void BorrowingSequence::GiveDonorBack() {
  const base::WriterLock lock(state_->mutex);
  ReleaseAll(state_->store->graph(), donor_);
  donor_.clear();
  RebuildTable();
}

// All computed rows run again, in the same pages and further ones: nobody else reads them yet.
bool BorrowingSequence::Enlarge(const Selection& selection) {
  if (loan_.is_copied) {  // all rows have their place
    selected_ = selection.computed;
    next_band_ = 0;
    num_ready_ = loan_.exact_rows;
    return true;
  }
  const base::WriterLock lock(state_->mutex);
  std::vector<Selection::Range> before = std::exchange(loan_.computed, selection.computed);
  const uint32_t ready = std::exchange(num_ready_, loan_.exact_rows);
  if (ReserveLocked(loan_.num_tokens + 1).ok()) return true;
  loan_.computed = std::move(before);
  num_ready_ = ready;
  return false;
}

// By how much the V of each row that runs in place of the donor's differs from it. No lock: the
// rows are this sequence's own, and the donor's never change.
std::vector<float> BorrowingSequence::MeasureDeviation() const {
  if (loan_.is_copied) {
    if (!deviation_.empty()) return deviation_;
    // The first layer behind the re-entry that has seen the new rows.
    return MeasureLayer(std::min(bands_.back().first_layer + 1, bands_.back().end_layer - 1));
  }
  std::vector<float> deviation(loan_.num_tokens, std::numeric_limits<float>::quiet_NaN());
  const uint32_t rows = block_size();
  uint32_t own = 0;
  size_t next = 0;
  for (const Selection::Range& range : loan_.computed) {
    for (uint32_t p = range.position; p < range.position + range.num_rows; ++p, ++own) {
      while (next < loan_.spans.size() && loan_.spans[next].end() <= p) ++next;
      if (next == loan_.spans.size() || loan_.spans[next].position > p) continue;
      const ReuseSpan& span = loan_.spans[next];
      const uint32_t donor = span.donor_position + (p - span.position);
      deviation[p] = static_cast<float>(cache::ValueDeviation(
          state_->options.shape, table_.blocks[own_block() + own / rows], own % rows,
          table_.blocks[donor_block() + donor / rows], donor % rows));
    }
  }
  return deviation;
}

// Of all rows of the spans, in one layer.
std::vector<float> BorrowingSequence::MeasureLayer(uint32_t layer) const {
  std::vector<float> deviation(loan_.num_tokens, std::numeric_limits<float>::quiet_NaN());
  const uint32_t rows = block_size();
  for (const ReuseSpan& span : loan_.spans) {
    for (uint32_t i = 0; i < span.num_rows; ++i) {
      const uint32_t own = span.position + i - loan_.exact_rows, donor = span.donor_position + i;
      deviation[span.position + i] = static_cast<float>(cache::ValueDeviation(
          state_->options.shape, layer, table_.blocks[own_block() + own / rows], own % rows,
          table_.blocks[donor_block() + donor / rows], donor % rows));
    }
  }
  return deviation;
}

Result<std::unique_ptr<Sequence>> BorrowingSequence::Fork(uint32_t num_tokens, uint32_t) {
  if (num_tokens > num_ready_) {
    return Status(StatusCode::kInvalidArgument, "fork at token " + std::to_string(num_tokens) +
                                                    " of sequence " + std::to_string(id_) +
                                                    ", which has " + std::to_string(num_ready_) +
                                                    " rows ready");
  }
  if (attempt_ != nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  "fork of sequence " + std::to_string(id_) + " before its first token is checked");
  }
  auto branch = std::make_unique<BorrowingSequence>(state_, tenant_);
  {
    const base::WriterLock lock(state_->mutex);
    const Status forked = branch->StartBranch(*this, num_tokens);
    if (!forked.ok()) return forked;
  }
  // As in PendingCopy: nobody reads or frees these pages meanwhile.
  const uint32_t own_rows = loan_.OwnRowsBefore(num_tokens), tail = own_rows % block_size();
  if (tail > 0) {
    const size_t index = own_rows / block_size();
    cache::CopyRows(state_->options.shape, table_.blocks[own_block() + index],
                    branch->table_.blocks[branch->own_block() + index], 0, tail);
  }
  return std::unique_ptr<Sequence>(std::move(branch));
}

// Full own pages are shared, the one that both would go on in is copied.
Status BorrowingSequence::StartBranch(const BorrowingSequence& source, uint32_t num_tokens) {
  id_ = ++state_->last_sequence_id;
  is_branch_ = true;
  loan_ = source.loan_.CutAt(num_tokens);
  const uint32_t own_rows = loan_.OwnRowsBefore(num_tokens);
  const uint32_t shared = own_rows / block_size();
  const uint32_t copied = own_rows % block_size() > 0 ? 1 : 0;
  BlockStore& store = *state_->store;
  const Status room = store.MakeRoom(store.OwnerOf(tenant_), copied, 0, state_->options.clock());
  if (!room.ok()) return room;
  const auto exact_blocks = (loan_.exact_rows + block_size() - 1) / block_size();
  exact_.assign(source.exact_.begin(), source.exact_.begin() + exact_blocks);
  const auto donor_blocks =
      loan_.is_copied ? 0 : (loan_.DonorRows() + block_size() - 1) / block_size();
  donor_.assign(source.donor_.begin(), source.donor_.begin() + donor_blocks);
  own_.assign(source.own_.begin(), source.own_.begin() + shared);
  AcquireAll(store.graph(), exact_);
  AcquireAll(store.graph(), donor_);
  AcquireAll(store.graph(), own_);
  AddOwnPages(copied);
  num_ready_ = num_tokens;
  RebuildTable();
  return Status::Ok();
}

void BorrowingSequence::RebuildTable() {
  const cache::BlockGraph& graph = state_->store->graph();
  table_.blocks.clear();
  table_.blocks.reserve(own_block() + own_.capacity());
  for (const auto* blocks : {&exact_, &donor_, &own_}) {
    for (const BlockId id : *blocks) table_.blocks.push_back(graph.View(id));
  }
  const auto own_capacity = static_cast<uint32_t>(own_.size()) * block_size();
  capacity_ = loan_.num_tokens + own_capacity - loan_.OwnRowsBefore(loan_.num_tokens);
  table_.spans = loan_.SpansOf(capacity_, donor_block(), own_block(), block_size());
  state_->store->NotePeak();
  state_->sequence_bytes -= counted_bytes_;
  counted_bytes_ =
      sizeof(*this) + (exact_.capacity() + donor_.capacity() + own_.capacity()) * sizeof(BlockId) +
      table_.blocks.capacity() * sizeof(BlockView) + table_.spans.capacity() * sizeof(Span) +
      loan_.spans.capacity() * sizeof(ReuseSpan) +
      (loan_.computed.capacity() + selected_.capacity()) * sizeof(Selection::Range) +
      deviation_.capacity() * sizeof(float);
  state_->sequence_bytes += counted_bytes_;
  const uint64_t pages = (uint64_t{capacity_} + block_size() - 1) / block_size();
  state_->sequence_pages += pages - counted_pages_;  // modulo 2^64
  counted_pages_ = pages;
}

}  // namespace kvlink::link
