#include "kernel/paged_attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernel/attention_plan.h"
#include "kernel/attention_tile.h"
#include "kernel/attention_tuning.h"
#include "kernel/isa.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {
namespace {

Status Invalid(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "attention: " + message);
}

std::string Str(uint64_t value) { return std::to_string(value); }

Status ValidateRope(const RopeParams& rope, uint32_t head_dim) {
  if (rope.num_rot % 2 != 0 || rope.num_rot > head_dim) {
    return Invalid("num_rot must be even and at most head_dim = " + Str(head_dim) + ", not " +
                   Str(rope.num_rot));
  }
  if (rope.num_rot == 0) return Status::Ok();
  if (!(rope.freq_base > 0) || !(rope.freq_scale > 0)) {
    return Invalid("freq_base and freq_scale must be positive, not " +
                   std::to_string(rope.freq_base) + " and " + std::to_string(rope.freq_scale));
  }
  if (!rope.freq_factors.empty() && rope.freq_factors.size() != rope.num_rot / 2) {
    return Invalid(Str(rope.freq_factors.size()) + " freq_factors for num_rot " +
                   Str(rope.num_rot) + ": half of it is needed, or none");
  }
  if (rope.ext_factor != 0 && rope.orig_context == 0)
    return Invalid("YaRN scaling needs orig_context");
  return Status::Ok();
}

Status Validate(const AttentionParams& params) {
  const KvShape& shape = params.shape;
  if (shape.type != KvType::kF16) {
    return Status(
        StatusCode::kUnimplemented,
        "attention: KV type " + Str(static_cast<uint64_t>(shape.type)) + " (only F16, 0, so far)");
  }
  if (shape.num_layers == 0 || shape.num_kv_heads == 0)
    return Invalid("a shape without layers or KV heads");
  if (shape.head_dim == 0 || shape.head_dim % 8 != 0 || shape.head_dim > kMaxHeadDim) {
    return Invalid("head_dim must be a multiple of 8 up to " + Str(kMaxHeadDim) + ", not " +
                   Str(shape.head_dim));
  }
  const uint32_t rows = shape.tokens_per_block;
  if (!std::has_single_bit(rows) || rows < kMinTokensPerBlock || rows > kMaxTokensPerBlock) {
    return Invalid("tokens_per_block must be a power of two from 8 to 128, not " + Str(rows));
  }
  if (params.num_heads == 0 || params.num_heads % shape.num_kv_heads != 0) {
    return Invalid("num_heads = " + Str(params.num_heads) +
                   " is no multiple of num_kv_heads = " + Str(shape.num_kv_heads));
  }
  if (!(params.scale > 0) || !std::isfinite(params.scale))
    return Invalid("scale must be positive, not " + std::to_string(params.scale));
  if (params.max_threads < 1)
    return Invalid("max_threads must be at least 1, not " + std::to_string(params.max_threads));
  return ValidateRope(params.rope, shape.head_dim);
}

// cos and sin of the batch's positions and shifts.
class AngleTable {
 public:
  explicit AngleTable(const RopeParams& rope) : rope_(rope) {}

  void Build(std::span<const RowPlace> places, std::span<const SpanTable* const> tables) {
    angles_.clear();
    of_query_.resize(places.size());
    of_key_.resize(places.size());
    for (size_t r = 0; r < places.size(); r++) {
      const RowPlace& place = places[r];
      of_query_[r] = Add(static_cast<float>(place.position), true);
      of_key_[r] = of_query_[r];
      if (place.shift != 0 && place.write) {
        of_key_[r] =
            Add(static_cast<float>(static_cast<int64_t>(place.position) - place.shift), true);
      }
    }
    shifts_.clear();
    for (const SpanTable* table : tables) {
      if (table == nullptr) continue;
      for (const Span& span : table->spans) AddShift(span.shift);
    }
  }

  const float* OfQuery(size_t row) const { return angles_.data() + of_query_[row]; }
  const float* OfKey(size_t row) const { return angles_.data() + of_key_[row]; }
  // Moves a rotated query by -shift.
  const float* OfShift(int32_t shift) const {
    for (const auto& [known, offset] : shifts_) {
      if (known == shift) return angles_.data() + offset;
    }
    KVLINK_CHECK(false) << "shift " << shift << " is in no table of the batch";
    return nullptr;
  }

 private:
  size_t Add(float position, bool magnitude) {
    const size_t offset = angles_.size();
    angles_.resize(offset + rope_.num_rot);
    if (rope_.num_rot > 0) RopeAngles(rope_, position, magnitude, angles_.data() + offset);
    return offset;
  }
  void AddShift(int32_t shift) {
    if (shift == 0) return;
    for (const auto& [known, offset] : shifts_) {
      if (known == shift) return;
    }
    shifts_.emplace_back(shift, Add(-static_cast<float>(shift), false));
  }

  const RopeParams rope_;
  std::vector<float> angles_;
  std::vector<size_t> of_query_, of_key_;  // offsets in angles_, by row
  std::vector<std::pair<int32_t, size_t>> shifts_;
};

class TiledAttention : public PagedAttention {
 public:
  TiledAttention(const AttentionParams& params, const AttentionTuning& tuning,
                 const TileKernels& kernels)
      : params_(params),
        kernels_(kernels),
        plan_(params.shape, params.num_heads, tuning.max_tile_rows, tuning.cascade),
        angles_(params.rope),
        next_item_(params.shape.num_layers) {
    const TileShape shape = {params.shape, plan_.heads_per_kv(), plan_.max_tile_queries()};
    for (int i = 0; i < params.max_threads; i++)
      workers_.push_back(std::make_unique<TileWorker>(shape, params, kernels, tuning.prefetch));
  }

  Status Prepare(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows,
                 int num_threads) override {
    if (num_threads < 1 || num_threads > params_.max_threads) {
      return Invalid("num_threads must be 1 to " + std::to_string(params_.max_threads) + ", not " +
                     std::to_string(num_threads));
    }
    if (Status s = plan_.Build(tables, rows, num_threads); !s.ok()) return s;
    angles_.Build(plan_.places(), tables);
    records_.Reserve(plan_.num_records() * RecordFloats(params_.shape.head_dim));
    const size_t merges = rows.size() * params_.shape.num_kv_heads;
    if (parts_left_.size() < merges) parts_left_ = std::vector<std::atomic<uint32_t>>(merges * 2);
    for (size_t i = 0; i < merges; i++) ResetParts(i);
    for (std::atomic<uint32_t>& next : next_item_) next.store(0, std::memory_order_relaxed);
    return Status::Ok();
  }

  void Write(uint32_t layer, const float* q, size_t q_stride, const float* k, size_t k_stride,
             const float* v, size_t v_stride, float* q_out, size_t q_out_stride, int thread,
             int num_threads) override {
    const size_t kv_heads = params_.shape.num_kv_heads, dims = params_.shape.head_dim;
    const size_t group = plan_.heads_per_kv() * dims;
    const size_t units = plan_.places().size() * kv_heads;
    const size_t begin = units * static_cast<size_t>(thread) / static_cast<size_t>(num_threads);
    const size_t end = units * static_cast<size_t>(thread + 1) / static_cast<size_t>(num_threads);
    for (size_t unit = begin; unit < end; unit++) {
      const size_t row = unit / kv_heads, head = unit % kv_heads;
      for (size_t i = 0; i < group; i += dims) {
        const size_t column = head * group + i;
        Rotate(q + row * q_stride + column, angles_.OfQuery(row),
               q_out + row * q_out_stride + column);
      }
      if (plan_.places()[row].write) {
        WriteRow(layer, static_cast<uint32_t>(head), row, k + row * k_stride + head * dims,
                 v + row * v_stride + head * dims);
      }
    }
  }

  void Attend(uint32_t layer, const float* q, size_t q_stride, float* out, size_t out_stride,
              int thread, int num_threads) override {
    KVLINK_CHECK(layer < next_item_.size() && thread < num_threads &&
                 num_threads <= params_.max_threads)
        << "layer " << layer << ", thread " << thread << " of " << num_threads;
    TileWorker& worker = *workers_[static_cast<size_t>(thread)];
    const std::span<const WorkItem> items = plan_.items();
    for (;;) {
      const uint32_t i = next_item_[layer].fetch_add(1, std::memory_order_relaxed);
      if (i >= items.size()) return;
      const QueryTile& tile = plan_.tiles()[items[i].tile];
      const uint32_t head = items[i].kv_head;
      const bool alone = tile.records == QueryTile::kNoRecords;
      const TileInput input = {plan_.queries().data() + tile.first_query, q, q_stride, layer, head};
      const float* records = worker.Run(
          tile, input, [&](int32_t shift) { return angles_.OfShift(shift); },
          alone ? nullptr : Record(tile, head, 0, 0));
      for (uint32_t j = 0; j < tile.num_queries; j++) {
        const Query& query = input.queries[j];
        if (alone) {
          Finish(records + size_t{j} * group_floats(), query.row, head, out, out_stride);
        } else if (query.limit > tile.chunk_begin * kChunkTokens && LastPart(query.row, head)) {
          Finish(Merge(query, head), query.row, head, out, out_stride);
        }
      }
    }
  }

 private:
  void Rotate(const float* x, const float* angles, float* out) const {
    const uint32_t dims = params_.shape.head_dim;
    if (params_.rope.num_rot == 0) {
      if (out != x) std::copy(x, x + dims, out);
      return;
    }
    kernels_.rotate(x, angles, params_.rope.neox, params_.rope.num_rot, dims, out);
  }

  void WriteRow(uint32_t layer, uint32_t head, size_t row, const float* k, const float* v) const {
    const KvShape& shape = params_.shape;
    const uint32_t dims = shape.head_dim;
    alignas(64) std::array<float, kMaxHeadDim> rotated;
    alignas(64) std::array<uint16_t, kMaxHeadDim> key;
    Rotate(k, angles_.OfKey(row), rotated.data());
    kernels_.to_kv(rotated.data(), dims, key.data());

    const RowPlace& place = plan_.places()[row];
    if (const int cell = DifferenceCell(place.block, layer, place.block_row); cell >= 0) {
      const DifferenceView& difference = *place.block.difference;
      auto* keys =
          reinterpret_cast<uint16_t*>(difference.cells + difference.HeadOffset(shape, layer, head));
      uint16_t* values = keys + size_t{difference.capacity} * dims;
      std::copy(key.begin(), key.begin() + dims, keys + size_t(cell) * dims);
      kernels_.to_kv(v, dims, values + size_t(cell) * dims);
      return;
    }
    std::byte* tile = place.block.page + shape.TileOffset(layer, head);
    auto* keys = reinterpret_cast<uint16_t*>(tile) + place.block_row;
    for (uint32_t d = 0; d < dims; d++) keys[size_t{d} * shape.tokens_per_block] = key[d];
    auto* values = reinterpret_cast<uint16_t*>(tile + shape.v_offset());
    kernels_.to_kv(v, dims, values + size_t{place.block_row} * dims);
  }

  // Floats of one query's records (all its heads of a KV head).
  size_t group_floats() const {
    return size_t{plan_.heads_per_kv()} * RecordFloats(params_.shape.head_dim);
  }

  // Of a tile's query, after `chunk` chunks.
  float* Record(const QueryTile& tile, uint32_t head, uint32_t chunk, uint32_t query) {
    const size_t record = tile.records + head * plan_.tile_records(tile) +
                          (size_t{chunk} * tile.num_queries + query) * plan_.heads_per_kv();
    return records_.data() + record * RecordFloats(params_.shape.head_dim);
  }

  void ResetParts(size_t merge) {
    const uint32_t row = static_cast<uint32_t>(merge / params_.shape.num_kv_heads);
    parts_left_[merge].store(plan_.num_parts(row), std::memory_order_relaxed);
  }

  // Called once per part. True for the last one, which sees what all others wrote; the count starts
  // again for the next layer.
  bool LastPart(uint32_t row, uint32_t head) {
    const size_t merge = size_t{row} * params_.shape.num_kv_heads + head;
    if (parts_left_[merge].fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    ResetParts(merge);
    return true;
  }

  // Folds the parts of a row in chunk order, into the first one's records.
  const float* Merge(const Query& query, uint32_t head) {
    const uint32_t dims = params_.shape.head_dim;
    const RowPart* part = &plan_.part(plan_.first_part(query.row));
    float* sum = Record(plan_.tiles()[part->tile], head, 0, part->query_in_tile);
    while (part->next != AttentionPlan::kNoPart) {
      part = &plan_.part(part->next);
      const QueryTile& tile = plan_.tiles()[part->tile];
      for (uint32_t c = tile.chunk_begin; c < tile.chunk_end; c++) {
        if (query.limit <= c * kChunkTokens) break;
        const float* next = Record(tile, head, c - tile.chunk_begin, part->query_in_tile);
        for (size_t i = 0; i < group_floats(); i += RecordFloats(dims))
          kernels_.fold(sum + i, next + i, dims);
      }
    }
    return sum;
  }

  void Finish(const float* records, uint32_t row, uint32_t head, float* out,
              size_t out_stride) const {
    const uint32_t dims = params_.shape.head_dim;
    const uint32_t group = plan_.heads_per_kv();
    for (uint32_t h = 0; h < group; h++) {
      kernels_.normalize(records + size_t{h} * RecordFloats(dims), dims,
                         out + row * out_stride + size_t{head * group + h} * dims);
    }
  }

  const AttentionParams params_;
  const TileKernels& kernels_;
  AttentionPlan plan_;
  AngleTable angles_;
  std::vector<std::unique_ptr<TileWorker>> workers_;  // by thread
  AlignedFloats records_;
  std::vector<std::atomic<uint32_t>> next_item_;   // by layer
  std::vector<std::atomic<uint32_t>> parts_left_;  // by row and KV head
};

}  // namespace

Result<std::unique_ptr<PagedAttention>> CreatePagedAttention(const AttentionParams& params,
                                                             const AttentionTuning& tuning) {
  if (Status s = ApplyIsaEnvironment(); !s.ok()) return s;
  if (Status s = Validate(params); !s.ok()) return s;
  const Isa isa = tuning.isa.value_or(CurrentIsa());
  return std::unique_ptr<PagedAttention>(
      std::make_unique<TiledAttention>(params, tuning, TileKernelsOf(isa)));
}

Result<std::unique_ptr<PagedAttention>> PagedAttention::Create(const AttentionParams& params) {
  return CreatePagedAttention(params, AttentionTuning());
}

}  // namespace kvlink::kernel
