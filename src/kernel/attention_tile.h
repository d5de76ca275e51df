// TileWorker: one thread's scratch memory, and the attention of one work item in it: the queries of
// a tile, for one KV head, over a range of chunks.
//
// A chunk takes three passes: scores of all its positions, one softmax a row, weighted values. Each
// pass asks for the memory of the next one: V while scoring, K of the next chunk or item while
// weighing.
// Rows that a difference block replaces are composed into scratch before they are read; everything
// else is read where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel/attention_plan.h"
#include "kernel/paged_attention.h"
#include "kernel/span_cursor.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {

// Floats aligned to a cache line, never initialised.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(size_t size) { Reserve(size); }
  // Keeps nothing. Allocates only when it has to grow.
  void Reserve(size_t size);
  float* data() { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float[], Free> data_;
  size_t size_ = 0;
};

struct TileShape {
  KvShape kv;
  uint32_t heads_per_kv = 0;
  uint32_t max_queries = 0;
};

// The difference cell that replaces a row in a layer, or -1.
inline int DifferenceCell(const BlockView& block, uint32_t layer, uint32_t row) {
  if (block.difference == nullptr) return -1;
  return block.difference->slots[size_t{layer} * block.difference->slot_stride + row];
}

struct TileInput {
  const Query* queries = nullptr;  // of the tile
  const float* q = nullptr;        // rotated, of the whole batch
  size_t q_stride = 0;
  const LayerParams* params = nullptr;
  uint32_t layer = 0, kv_head = 0;
};

// A tile and where its queries are.
struct TileTask {
  const QueryTile* tile = nullptr;
  TileInput input;
};

// Positions of one chunk, counted from its begin; empty: begin == end.
struct ChunkRange {
  uint32_t begin = 0, end = 0;
  bool operator==(const ChunkRange&) const = default;
};

class TileWorker {
 public:
  TileWorker(const TileShape& shape, const TileKernels& kernels, bool prefetch);

  // Records [num_queries, heads_per_kv] of a tile that folds, otherwise [chunks, num_queries,
  // heads_per_kv]; the record of a row in chunks that it does not see means nothing. `records`
  // null: into scratch, valid until the next Run; then the tile folds.
  // `shift_angles`(shift) moves a query by -shift. `next`, or null: what the next Run will be
  // given.
  template <typename ShiftAngles>
  const float* Run(const TileTask& task, const ShiftAngles& shift_angles, float* records,
                   const TileTask* next);

  // Adds to received[p] the attention that the tile's queries pay to position p, the sum over them
  // and their heads. The tile begins with the first chunk that any of them sees.
  template <typename ShiftAngles>
  void Receive(const TileTask& task, const ShiftAngles& shift_angles, float* received);

 private:
  // A piece of the current or the next chunk.
  struct ChunkPiece {
    Piece piece;
    uint32_t offset = 0;  // of its first position in the chunk
    const std::byte* tile = nullptr;
  };
  using Pieces = std::vector<ChunkPiece>;

  void Begin(const TileTask& task);
  // Positions of the chunk that queries [first, last] see together.
  ChunkRange Seen(uint32_t first, uint32_t last, uint32_t chunk) const {
    return SeenOf(input_, first, last, chunk);
  }
  static ChunkRange SeenOf(const TileInput& input, uint32_t first, uint32_t last, uint32_t chunk);
  ChunkRange SeenByRows(uint32_t begin, uint32_t height, uint32_t chunk) const {
    return Seen(begin / shape_.heads_per_kv, (begin + height - 1) / shape_.heads_per_kv, chunk);
  }
  void CutChunk(const TileTask& task, uint32_t chunk, Pieces* pieces) const;
  void PackQueries(const float* shift_angles);
  template <typename ShiftAngles>
  void ScoreChunk(uint32_t chunk, const ShiftAngles& shift_angles);
  void Score(uint32_t chunk, size_t index);
  void KeepWeights(uint32_t chunk);
  void AddReceived(float* received);
  void Softmax(uint32_t chunk, float* records);
  void SoftmaxRows(const ChunkRange& seen, uint32_t begin, uint32_t end, float* records);
  void Weigh(uint32_t chunk, float* records);
  void Fold(uint32_t chunk, const float* next, float* records);
  bool Modified(const Piece& piece) const;
  uint32_t* Words(uint32_t row) {  // of the group of rows that starts there
    return reinterpret_cast<uint32_t*>(queries_.data()) +
           size_t{row} * dims_ / kernels_.dims_per_word;
  }
  KeyRun Keys(const ChunkPiece& chunk_piece);
  const std::byte* ComposeValues(const ChunkPiece& chunk_piece);
  void GatherValueScales();
  bool InPairs() const;
  KvRowView<std::byte> Row(const ChunkPiece& chunk_piece, uint32_t i) const {
    return KvRowOf(shape_.kv, *chunk_piece.piece.block, input_.layer, input_.kv_head,
                   chunk_piece.piece.first_row + i);
  }

  const TileShape shape_;
  const TileKernels& kernels_;
  const bool prefetch_;
  const uint32_t dims_, record_floats_;

  // The item in work.
  const QueryTile* tile_ = nullptr;
  TileInput input_;
  uint32_t num_rows_ = 0;     // num_queries * heads_per_kv; row r is of query r / heads_per_kv
  ChunkRange range_;          // of the chunk at work that the tile sees
  int32_t packed_shift_ = 0;  // that the packed queries are moved by
  bool begun_ = false;        // pieces_ are of the next task's first chunk, whose K is asked for
  bool cold_ = false;         // nobody has asked for the keys of the chunk at work

  AlignedFloats queries_;       // words of groups of rows
  AlignedFloats query_scales_;  // by row
  std::vector<int32_t> query_sums_;
  AlignedFloats scores_;                // [rows][kScoreStride]
  AlignedFloats weight_scales_;         // by row
  AlignedFloats sum_;                   // records, folded so far
  AlignedFloats chunk_;                 // records of one chunk
  AlignedFloats keys_;                  // one composed K tile, with its scales
  AlignedFloats values_;                // composed V rows of a chunk
  std::vector<uint16_t> value_scales_;  // of a chunk
  Pieces pieces_, next_pieces_;
  std::vector<ValueRun> runs_;

  // Of Receive: weights [rows][chunks of the tile][kChunkTokens], and {m, l} of each row and chunk.
  decltype(TileKernels::softmax) float_softmax_;
  std::vector<float> kept_, kept_states_;
};

template <typename ShiftAngles>
const float* TileWorker::Run(const TileTask& task, const ShiftAngles& shift_angles, float* records,
                             const TileTask* next) {
  const QueryTile& tile = *task.tile;
  Begin(task);
  if (records == nullptr) records = sum_.data();
  const size_t chunk_floats = size_t{num_rows_} * record_floats_;
  if (!begun_) CutChunk(task, tile.chunk_begin, &pieces_);
  cold_ = !begun_;
  bool begun = false;  // some row has a record
  for (uint32_t chunk = tile.chunk_begin; chunk < tile.chunk_end; chunk++) {
    const bool fold = tile.folds && begun;
    float* result = records;
    if (fold) result = chunk_.data();
    if (!tile.folds) result += (chunk - tile.chunk_begin) * chunk_floats;
    if (chunk + 1 < tile.chunk_end) {
      CutChunk(task, chunk + 1, &next_pieces_);
    } else if (next != nullptr) {
      CutChunk(*next, next->tile->chunk_begin, &next_pieces_);
    } else {
      next_pieces_.clear();
    }
    if (!pieces_.empty()) {
      ScoreChunk(chunk, shift_angles);
      Softmax(chunk, result);
      Weigh(chunk, result);
      if (fold) Fold(chunk, result, records);
      begun = true;
    }
    std::swap(pieces_, next_pieces_);
  }
  begun_ = next != nullptr;
  return records;
}

template <typename ShiftAngles>
void TileWorker::ScoreChunk(uint32_t chunk, const ShiftAngles& shift_angles) {
  range_ = Seen(0, tile_->num_queries - 1, chunk);
  for (size_t i = 0; i < pieces_.size(); i++) {
    const int32_t shift = pieces_[i].piece.shift;
    if (shift != packed_shift_) {
      packed_shift_ = shift;
      PackQueries(shift == 0 ? nullptr : shift_angles(shift));
    }
    Score(chunk, i);
  }
  cold_ = false;
}

template <typename ShiftAngles>
void TileWorker::Receive(const TileTask& task, const ShiftAngles& shift_angles, float* received) {
  const QueryTile& tile = *task.tile;
  Begin(task);
  cold_ = true;
  const uint32_t chunks = tile.chunk_end - tile.chunk_begin;
  kept_.resize(size_t{num_rows_} * chunks * kChunkTokens);
  kept_states_.assign(size_t{num_rows_} * chunks * 2, 0.0f);
  for (uint32_t chunk = tile.chunk_begin; chunk < tile.chunk_end; chunk++) {
    CutChunk(task, chunk, &pieces_);
    if (pieces_.empty()) continue;
    ScoreChunk(chunk, shift_angles);
    KeepWeights(chunk);
  }
  AddReceived(received);
}

}  // namespace kvlink::kernel
