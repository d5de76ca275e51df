#include "kernel/attention_tile.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numbers>
#include <utility>

#include "hwy/aligned_allocator.h"

#include "base/check.h"

namespace kvlink::kernel {
namespace {

// Group g of `num_groups` nearly equal groups of rows.
struct Groups {
  uint32_t num_rows, num_groups;

  Groups(uint32_t rows, uint32_t max_height)
      : num_rows(rows), num_groups((rows + max_height - 1) / max_height) {}
  uint32_t begin(uint32_t g) const { return num_rows * g / num_groups; }
  uint32_t height(uint32_t g) const { return begin(g + 1) - begin(g); }
};

size_t FloatsOfElements(size_t elements) { return (elements + 1) / 2; }

}  // namespace

void AlignedFloats::Free::operator()(float* p) const { hwy::FreeAlignedBytes(p, nullptr, nullptr); }

void AlignedFloats::Reserve(size_t size) {
  if (size <= size_) return;
  data_.reset(
      static_cast<float*>(hwy::AllocateAlignedBytes(size * sizeof(float), nullptr, nullptr)));
  KVLINK_CHECK(data_ != nullptr) << "no memory for " << size << " floats";
  size_ = size;
}

TileWorker::TileWorker(const TileShape& shape, const AttentionParams& params,
                       const TileKernels& kernels, bool prefetch)
    : shape_(shape),
      rope_(params.rope),
      kernels_(kernels),
      score_scale_(params.scale * std::numbers::log2e_v<float>),
      prefetch_(prefetch),
      dims_(shape.kv.head_dim),
      record_floats_(RecordFloats(shape.kv.head_dim)) {
  const size_t rows = size_t{shape.max_queries} * shape.heads_per_kv;
  queries_.Reserve(rows * dims_);
  scores_.Reserve(rows * kScoreStride);
  sum_.Reserve(rows * record_floats_);
  chunk_.Reserve(rows * record_floats_);
  // Loads of K may run a vector over its end.
  keys_.Reserve(FloatsOfElements(size_t{dims_} * shape.kv.tokens_per_block + 64));
  values_.Reserve(FloatsOfElements(size_t{kChunkTokens} * dims_));
  pieces_.reserve(kChunkTokens);
  next_pieces_.reserve(kChunkTokens);
  runs_.reserve(kChunkTokens);
}

void TileWorker::Begin(const QueryTile& tile, const TileInput& input) {
  tile_ = &tile;
  input_ = input;
  num_rows_ = tile.num_queries * shape_.heads_per_kv;
  packed_shift_ = 0;
}

uint32_t TileWorker::chunk_tokens(uint32_t chunk) const { return visible(num_rows_ - 1, chunk); }

uint32_t TileWorker::visible(uint32_t row, uint32_t chunk) const {
  const uint32_t limit = input_.queries[row / shape_.heads_per_kv].limit;
  const uint32_t begin = chunk * kChunkTokens;
  return limit <= begin ? 0 : std::min(limit - begin, kChunkTokens);
}

void TileWorker::CutChunk(uint32_t chunk, Pieces* pieces) const {
  pieces->clear();
  const uint32_t begin = chunk * kChunkTokens, end = begin + chunk_tokens(chunk);
  const size_t tile_offset = shape_.kv.TileOffset(input_.layer, input_.kv_head);
  SpanCursor cursor(*tile_->table, shape_.kv.tokens_per_block, begin);
  while (cursor.position() < end) {
    const uint32_t offset = cursor.position() - begin;
    const Piece piece = cursor.Next(end);
    pieces->push_back({piece, offset, piece.block->page + tile_offset});
  }
}

// Rows of a group side by side, so that a step of the scoring loop reads one short run.
void TileWorker::PackQueries(const float* shift_angles) {
  const uint32_t group_heads = shape_.heads_per_kv;
  const Groups groups(num_rows_, kernels_.max_score_rows);
  alignas(64) std::array<float, kMaxHeadDim> moved;
  for (uint32_t g = 0; g < groups.num_groups; g++) {
    const uint32_t height = groups.height(g);
    float* packed = queries_.data() + size_t{groups.begin(g)} * dims_;
    for (uint32_t i = 0; i < height; i++) {
      const uint32_t row = groups.begin(g) + i;
      const uint32_t head = input_.kv_head * group_heads + row % group_heads;
      const float* q =
          input_.q + input_.queries[row / group_heads].row * input_.q_stride + size_t{head} * dims_;
      if (shift_angles != nullptr && rope_.num_rot > 0) {
        kernels_.rotate(q, shift_angles, rope_.neox, rope_.num_rot, dims_, moved.data());
        q = moved.data();
      }
      for (uint32_t d = 0; d < dims_; d++) packed[size_t{d} * height + i] = q[d] * score_scale_;
    }
  }
}

void TileWorker::Score(uint32_t chunk, size_t index, bool first_chunk) {
  const ChunkPiece& p = pieces_[index];
  const uint32_t rows_per_block = shape_.kv.tokens_per_block;
  const uint16_t* keys =
      Modified(p.piece) ? ComposeKeys(p) : reinterpret_cast<const uint16_t*>(p.tile);
  Prefetch prefetch;
  if (prefetch_) {
    prefetch.first = p.tile + shape_.kv.v_offset();
    if (first_chunk && index + 1 < pieces_.size()) prefetch.second = pieces_[index + 1].tile;
  }
  const Groups groups(num_rows_, kernels_.max_score_rows);
  for (uint32_t g = 0; g < groups.num_groups; g++) {
    const uint32_t begin = groups.begin(g), height = groups.height(g);
    if (visible(begin + height - 1, chunk) <= p.offset) continue;  // nobody here sees it
    kernels_.score(queries_.data() + size_t{begin} * dims_, height, dims_, keys + p.piece.first_row,
                   rows_per_block, p.piece.num_rows, prefetch,
                   scores_.data() + size_t{begin} * kScoreStride + p.offset);
    prefetch = {};
  }
}

void TileWorker::Softmax(uint32_t chunk, float* records) {
  const uint32_t num_tokens = chunk_tokens(chunk);
  for (uint32_t r = 0; r < num_rows_; r++) {
    float* scores = scores_.data() + size_t{r} * kScoreStride;
    float* record = records + size_t{r} * record_floats_;
    if (const uint32_t n = visible(r, chunk); n > 0) {
      kernels_.softmax(scores, n, num_tokens, record + dims_, record + dims_ + 1);
    } else {
      std::fill(scores, scores + num_tokens, 0.0f);
    }
  }
}

void TileWorker::Weigh(uint32_t chunk, float* records) {
  runs_.clear();
  for (size_t i = 0; i < pieces_.size(); i++) {
    const ChunkPiece& p = pieces_[i];
    ValueRun run;
    run.num_tokens = p.piece.num_rows;
    run.v = Modified(p.piece) ? ComposeValues(p)
                              : reinterpret_cast<const uint16_t*>(p.tile + shape_.kv.v_offset()) +
                                    size_t{p.piece.first_row} * dims_;
    if (prefetch_ && i < next_pieces_.size()) run.prefetch = next_pieces_[i].tile;
    runs_.push_back(run);
  }
  const Groups groups(num_rows_, kernels_.max_value_rows);
  for (uint32_t g = 0; g < groups.num_groups; g++) {
    const uint32_t begin = groups.begin(g), height = groups.height(g);
    const uint32_t num_tokens = visible(begin + height - 1, chunk);
    if (num_tokens == 0) continue;
    kernels_.weigh(scores_.data() + size_t{begin} * kScoreStride, height, runs_.data(), num_tokens,
                   dims_, records + size_t{begin} * record_floats_, record_floats_);
    if (g == 0) {
      for (ValueRun& run : runs_) run.prefetch = nullptr;
    }
  }
}

bool TileWorker::Modified(const Piece& piece) const {
  if (piece.block->difference == nullptr) return false;
  for (uint32_t i = 0; i < piece.num_rows; i++) {
    if (DifferenceCell(*piece.block, input_.layer, piece.first_row + i) >= 0) return true;
  }
  return false;
}

const uint16_t* TileWorker::ComposeKeys(const ChunkPiece& p) {
  const KvShape& kv = shape_.kv;
  auto* keys = reinterpret_cast<uint16_t*>(keys_.data());
  std::memcpy(keys, p.tile, kv.v_offset());
  const DifferenceView& difference = *p.piece.block->difference;
  const auto* cells = reinterpret_cast<const uint16_t*>(
      difference.cells + difference.HeadOffset(kv, input_.layer, input_.kv_head));
  for (uint32_t row = p.piece.first_row; row < p.piece.first_row + p.piece.num_rows; row++) {
    const int cell = DifferenceCell(*p.piece.block, input_.layer, row);
    if (cell < 0) continue;
    const uint16_t* key = cells + size_t(cell) * dims_;
    for (uint32_t d = 0; d < dims_; d++) keys[size_t{d} * kv.tokens_per_block + row] = key[d];
  }
  return keys;
}

const uint16_t* TileWorker::ComposeValues(const ChunkPiece& p) {
  const KvShape& kv = shape_.kv;
  auto* values = reinterpret_cast<uint16_t*>(values_.data()) + size_t{p.offset} * dims_;
  const auto* base = reinterpret_cast<const uint16_t*>(p.tile + kv.v_offset());
  const DifferenceView& difference = *p.piece.block->difference;
  const auto* cells =
      reinterpret_cast<const uint16_t*>(difference.cells +
                                        difference.HeadOffset(kv, input_.layer, input_.kv_head)) +
      size_t{difference.capacity} * dims_;
  for (uint32_t i = 0; i < p.piece.num_rows; i++) {
    const uint32_t row = p.piece.first_row + i;
    const int cell = DifferenceCell(*p.piece.block, input_.layer, row);
    const uint16_t* value = cell < 0 ? base + size_t{row} * dims_ : cells + size_t(cell) * dims_;
    std::memcpy(values + size_t{i} * dims_, value, kv.row_bytes());
  }
  return values;
}

}  // namespace kvlink::kernel
