#include "kernel/attention_tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
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

// Weights are powers of two, so scores are in units of log2(e). Those to be capped are packed as
// the argument of 2^x in tanh.
float ScoreScale(const LayerParams& params) {
  const float scale = params.scale * std::numbers::log2e_v<float>;
  return params.softcap > 0 ? 2 * scale / params.softcap : scale;
}

size_t FloatsOfBytes(size_t bytes) { return (bytes + sizeof(float) - 1) / sizeof(float); }

}  // namespace

void AlignedFloats::Free::operator()(float* p) const { hwy::FreeAlignedBytes(p, nullptr, nullptr); }

void AlignedFloats::Reserve(size_t size) {
  if (size <= size_) return;
  data_.reset(
      static_cast<float*>(hwy::AllocateAlignedBytes(size * sizeof(float), nullptr, nullptr)));
  KVLINK_CHECK(data_ != nullptr) << "no memory for " << size << " floats";
  size_ = size;
}

TileWorker::TileWorker(const TileShape& shape, const TileKernels& kernels, bool prefetch)
    : shape_(shape),
      kernels_(kernels),
      prefetch_(prefetch),
      dims_(shape.kv.head_dim),
      record_floats_(RecordFloats(shape.kv.head_dim)),
      float_softmax_(TileKernelsOf(kernels.isa, KvType::kF16).softmax) {
  const size_t rows = size_t{shape.max_queries} * shape.heads_per_kv;
  queries_.Reserve(rows * dims_ / kernels.dims_per_word);
  query_scales_.Reserve(rows);
  query_sums_.resize(rows);
  weight_scales_.Reserve(rows);
  value_scales_.resize(kScoreStride);
  scores_.Reserve(rows * kScoreStride);
  sum_.Reserve(rows * record_floats_);
  chunk_.Reserve(rows * record_floats_);
  // Loads of K may run two vectors over its end.
  keys_.Reserve(FloatsOfBytes(shape.kv.v_offset() + 128));
  values_.Reserve(FloatsOfBytes(kChunkTokens * shape.kv.vector_bytes()));
  pieces_.reserve(kChunkTokens);
  next_pieces_.reserve(kChunkTokens);
  runs_.reserve(kChunkTokens);
}

void TileWorker::Begin(const TileTask& task) {
  tile_ = task.tile;
  input_ = task.input;
  num_rows_ = tile_->num_queries * shape_.heads_per_kv;
  packed_shift_ = 0;
  PackQueries(nullptr);
}

ChunkRange TileWorker::SeenOf(const TileInput& input, uint32_t first, uint32_t last,
                              uint32_t chunk) {
  const uint32_t chunk_begin = chunk * kChunkTokens;
  const uint32_t limit = input.queries[last].limit;
  if (limit <= chunk_begin) return {};
  while (input.queries[first].limit <= chunk_begin) first++;
  const uint32_t begin = input.queries[first].begin(input.params->window);
  if (begin >= chunk_begin + kChunkTokens) return {};
  return {begin <= chunk_begin ? 0 : begin - chunk_begin,
          std::min(limit - chunk_begin, kChunkTokens)};
}

void TileWorker::CutChunk(const TileTask& task, uint32_t chunk, Pieces* pieces) const {
  pieces->clear();
  const ChunkRange range = SeenOf(task.input, 0, task.tile->num_queries - 1, chunk);
  if (range.begin == range.end) return;
  const uint32_t begin = chunk * kChunkTokens, end = begin + range.end;
  const size_t tile_offset = shape_.kv.TileOffset(task.input.layer, task.input.kv_head);
  SpanCursor cursor(*task.tile->table, shape_.kv.tokens_per_block, begin + range.begin);
  while (cursor.position() < end) {
    const uint32_t offset = cursor.position() - begin;
    const Piece piece = cursor.Next(end);
    pieces->push_back({piece, offset, piece.block->page + tile_offset});
  }
}

// Rows of a group side by side, so that a step of the scoring loop reads one short run.
void TileWorker::PackQueries(const float* shift_angles) {
  const RopeParams& rope = input_.params->rope;
  const float scale = ScoreScale(*input_.params);
  const uint32_t group_heads = shape_.heads_per_kv;
  const Groups groups(num_rows_, kernels_.max_score_rows);
  alignas(64) std::array<float, kMaxHeadDim> moved;
  for (uint32_t g = 0; g < groups.num_groups; g++) {
    const uint32_t height = groups.height(g);
    uint32_t* packed = Words(groups.begin(g));
    for (uint32_t i = 0; i < height; i++) {
      const uint32_t row = groups.begin(g) + i;
      const uint32_t head = input_.kv_head * group_heads + row % group_heads;
      const float* q =
          input_.q + input_.queries[row / group_heads].row * input_.q_stride + size_t{head} * dims_;
      if (shift_angles != nullptr && rope.num_rot > 0) {
        kernels_.rotate(q, shift_angles, rope.neox, rope.num_rot, dims_, moved.data());
        q = moved.data();
      }
      kernels_.pack(q, scale, dims_, packed + i, height, query_scales_.data() + row,
                    &query_sums_[row]);
    }
  }
}

void TileWorker::Score(uint32_t chunk, size_t index) {
  const ChunkPiece& p = pieces_[index];
  const KeyRun keys = Keys(p);
  const std::byte* prefetch = nullptr;
  if (prefetch_) {
    prefetch = p.tile + shape_.kv.v_offset();
    // The lines of scales lie behind what the loops ask for.
    if (shape_.kv.scale_bytes() > 0) __builtin_prefetch(p.tile + shape_.kv.v_scales_offset());
    if (cold_ && index + 1 < pieces_.size()) {
      const std::byte* next = pieces_[index + 1].tile;
      for (size_t i = 0; i < shape_.kv.v_offset(); i += 64) __builtin_prefetch(next + i);
    }
  }
  const Groups groups(num_rows_, kernels_.max_score_rows);
  for (uint32_t g = 0; g < groups.num_groups; g++) {
    const uint32_t begin = groups.begin(g), height = groups.height(g);
    const ChunkRange seen = SeenByRows(begin, height, chunk);
    if (seen.end <= p.offset || seen.begin >= p.offset + p.piece.num_rows) continue;
    const QueryGroup queries = {Words(begin), query_scales_.data() + begin, &query_sums_[begin],
                                height};
    kernels_.score(queries, dims_, keys, prefetch,
                   scores_.data() + size_t{begin} * kScoreStride + p.offset);
    prefetch = nullptr;
  }
}

void TileWorker::Softmax(uint32_t chunk, float* records) {
  if (shape_.kv.scale_bytes() > 0) GatherValueScales();
  for (uint32_t query = 0; query < tile_->num_queries;) {
    const ChunkRange seen = Seen(query, query, chunk);
    const uint32_t begin = query * shape_.heads_per_kv;
    for (query++; query < tile_->num_queries && Seen(query, query, chunk) == seen;) query++;
    SoftmaxRows(seen, begin, query * shape_.heads_per_kv, records);
  }
}

void TileWorker::SoftmaxRows(const ChunkRange& seen, uint32_t begin, uint32_t end, float* records) {
  const float softcap = input_.params->softcap;
  float* scores = scores_.data() + size_t{begin} * kScoreStride;
  if (seen.begin == seen.end) {
    for (uint32_t r = begin; r < end; r++, scores += kScoreStride) {
      std::fill(scores, scores + kChunkTokens, 0.0f);  // in any form of weights
      weight_scales_.data()[r] = 0;
    }
    return;
  }
  if (softcap > 0) {
    for (uint32_t r = begin; r < end; r++) {
      kernels_.softcap(scores + (r - begin) * kScoreStride, seen.begin, seen.end,
                       softcap * std::numbers::log2e_v<float>);
    }
  }
  kernels_.softmax(scores, end - begin, {seen.begin, seen.end, range_.begin, range_.end},
                   value_scales_.data(), records + size_t{begin} * record_floats_ + dims_,
                   record_floats_, weight_scales_.data() + begin);
}

void TileWorker::Weigh(uint32_t chunk, float* records) {
  const KvShape& kv = shape_.kv;
  const bool compose_all = kernels_.pairs && !InPairs();
  runs_.clear();
  for (size_t i = 0; i < pieces_.size(); i++) {
    const ChunkPiece& p = pieces_[i];
    const bool compose = compose_all || Modified(p.piece);
    ValueRun run;
    run.num_tokens = p.piece.num_rows;
    run.v =
        compose ? ComposeValues(p) : p.tile + kv.v_offset() + p.piece.first_row * kv.vector_bytes();
    if (prefetch_ && i < next_pieces_.size()) run.prefetch = next_pieces_[i].tile;
    if (compose_all && i > 0) {
      runs_.front().num_tokens += run.num_tokens;  // composed values lie one after the other
    } else {
      runs_.push_back(run);
    }
  }
  const Groups groups(num_rows_, kernels_.max_value_rows);
  for (uint32_t g = 0; g < groups.num_groups; g++) {
    const uint32_t begin = groups.begin(g), height = groups.height(g);
    const uint32_t end = SeenByRows(begin, height, chunk).end;
    if (end <= range_.begin) continue;
    kernels_.weigh(scores_.data() + size_t{begin} * kScoreStride, weight_scales_.data() + begin,
                   height, runs_.data(), range_.begin, end, dims_,
                   records + size_t{begin} * record_floats_, record_floats_);
    if (g == 0) {
      for (ValueRun& run : runs_) run.prefetch = nullptr;
    }
  }
}

// The chunk's records into those so far; a row that begins in this chunk has none yet.
void TileWorker::Fold(uint32_t chunk, const float* next, float* records) {
  for (uint32_t query = 0; query < tile_->num_queries; query++) {
    const ChunkRange seen = Seen(query, query, chunk);
    if (seen.begin == seen.end) continue;
    const bool begins = input_.queries[query].begin(input_.params->window) >= chunk * kChunkTokens;
    for (uint32_t h = 0; h < shape_.heads_per_kv; h++) {
      const size_t offset = (size_t{query} * shape_.heads_per_kv + h) * record_floats_;
      if (begins) {
        std::copy_n(next + offset, record_floats_, records + offset);
      } else {
        kernels_.fold(records + offset, next + offset, dims_);
      }
    }
  }
}

// The chunk's scores become weights relative to each row's largest one in it.
void TileWorker::KeepWeights(uint32_t chunk) {
  const uint32_t chunks = tile_->chunk_end - tile_->chunk_begin, slot = chunk - tile_->chunk_begin;
  const float softcap = input_.params->softcap;
  for (uint32_t r = 0; r < num_rows_; r++) {
    const ChunkRange seen = SeenByRows(r, 1, chunk);
    if (seen.begin == seen.end) continue;
    float* scores = scores_.data() + size_t{r} * kScoreStride;
    if (softcap > 0) {
      kernels_.softcap(scores, seen.begin, seen.end, softcap * std::numbers::log2e_v<float>);
    }
    const size_t kept = size_t{r} * chunks + slot;
    float no_scale = 0;
    float_softmax_(scores, 1, {seen.begin, seen.end, seen.begin, seen.end}, value_scales_.data(),
                   kept_states_.data() + kept * 2, 2, &no_scale);
    std::copy(scores + seen.begin, scores + seen.end,
              kept_.data() + kept * kChunkTokens + seen.begin);
  }
}

void TileWorker::AddReceived(float* received) {
  const uint32_t chunks = tile_->chunk_end - tile_->chunk_begin;
  for (uint32_t r = 0; r < num_rows_; r++) {
    const float* states = kept_states_.data() + size_t{r} * chunks * 2;  // l > 0 where a row sees
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (uint32_t c = 0; c < chunks; c++) {
      if (states[2 * c + 1] > 0) largest = std::max(largest, states[2 * c]);
    }
    for (uint32_t c = 0; c < chunks; c++) {
      if (states[2 * c + 1] > 0) sum += states[2 * c + 1] * std::exp2(states[2 * c] - largest);
    }
    for (uint32_t c = 0; c < chunks; c++) {
      if (!(states[2 * c + 1] > 0)) continue;
      const ChunkRange seen = SeenByRows(r, 1, tile_->chunk_begin + c);
      const float scale = std::exp2(states[2 * c] - largest) / sum;
      const float* weights = kept_.data() + (size_t{r} * chunks + c) * kChunkTokens;
      float* to = received + size_t{tile_->chunk_begin + c} * kChunkTokens;
      for (uint32_t t = seen.begin; t < seen.end; t++) to[t] += scale * weights[t];
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

// Whether no pair of positions, even and odd, is cut by a piece.
bool TileWorker::InPairs() const {
  for (size_t i = 1; i < pieces_.size(); i++) {
    if (pieces_[i].offset % 2 != 0) return false;
  }
  return true;
}

KeyRun TileWorker::Keys(const ChunkPiece& p) {
  const KvShape& kv = shape_.kv;
  const std::byte* tile = p.tile;
  const size_t group_bytes = kv.k_group() * kv.element_bytes();
  if (Modified(p.piece)) {
    auto* composed = reinterpret_cast<std::byte*>(keys_.data());
    std::memcpy(composed, p.tile, kv.v_offset());
    for (uint32_t i = 0; i < p.piece.num_rows; i++) {
      const uint32_t row = p.piece.first_row + i;
      if (DifferenceCell(*p.piece.block, input_.layer, row) < 0) continue;
      const auto from = Row(p, i);
      const auto to = KvRowView<std::byte>::InTile(kv, composed, row);
      for (size_t g = 0; g < dims_ / kv.k_group(); g++)
        std::memcpy(to.k + g * to.k_stride, from.k + g * from.k_stride, group_bytes);
      if (kv.scale_bytes() > 0) std::memcpy(to.k_scale, from.k_scale, kv.scale_bytes());
    }
    tile = composed;
  }
  return {tile + p.piece.first_row * group_bytes,
          tile + kv.k_scales_offset() + p.piece.first_row * kv.scale_bytes(), kv.tokens_per_block,
          p.piece.num_rows};
}

const std::byte* TileWorker::ComposeValues(const ChunkPiece& p) {
  const size_t bytes = shape_.kv.vector_bytes();
  std::byte* values = reinterpret_cast<std::byte*>(values_.data()) + p.offset * bytes;
  for (uint32_t i = 0; i < p.piece.num_rows; i++)
    std::memcpy(values + i * bytes, Row(p, i).v, bytes);
  return values;
}

void TileWorker::GatherValueScales() {
  const KvShape& kv = shape_.kv;
  for (const ChunkPiece& p : pieces_) {
    uint16_t* to = &value_scales_[p.offset];
    if (!Modified(p.piece)) {
      std::memcpy(to, p.tile + kv.v_scales_offset() + p.piece.first_row * kv.scale_bytes(),
                  p.piece.num_rows * kv.scale_bytes());
      continue;
    }
    for (uint32_t i = 0; i < p.piece.num_rows; i++)
      std::memcpy(to + i, Row(p, i).v_scale, kv.scale_bytes());
  }
}

}  // namespace kvlink::kernel
