#include "kernel/paged_attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernel/angle_table.h"
#include "kernel/attention_observer.h"
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

Status ValidateLayer(const LayerParams& layer, uint32_t head_dim) {
  if (!(layer.scale > 0) || !std::isfinite(layer.scale))
    return Invalid("scale must be positive, not " + std::to_string(layer.scale));
  if (!(layer.softcap >= 0) || !std::isfinite(layer.softcap))
    return Invalid("softcap must be 0 or positive, not " + std::to_string(layer.softcap));
  return ValidateRope(layer.rope, head_dim);
}

Status Validate(const AttentionParams& params) {
  const KvShape& shape = params.shape;
  if (std::find(std::begin(kKvTypes), std::end(kKvTypes), shape.type) == std::end(kKvTypes))
    return Invalid("KV type " + Str(static_cast<uint64_t>(shape.type)) + " is none of ours");
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
  if (params.layers.size() != 1 && params.layers.size() != shape.num_layers) {
    return Invalid("parameters of " + Str(params.layers.size()) + " layers for " +
                   Str(shape.num_layers) + ": 1 or as many are needed");
  }
  if (params.max_threads < 1)
    return Invalid("max_threads must be at least 1, not " + std::to_string(params.max_threads));
  for (size_t i = 0; i < params.layers.size(); i++) {
    if (Status s = ValidateLayer(params.layers[i], shape.head_dim); !s.ok())
      return Status(s.code(), s.message() + " (layer " + Str(i) + ")");
  }
  return Status::Ok();
}

// The plan of the layers of one window, and how many parts of each row and KV head are still to
// come in the layer at work.
struct WindowPlan {
  AttentionPlan plan;
  std::vector<std::atomic<uint32_t>> parts_left;

  void ResetParts(size_t merge, uint32_t kv_heads) {
    parts_left[merge].store(plan.num_parts(static_cast<uint32_t>(merge / kv_heads)),
                            std::memory_order_relaxed);
  }
};

class TiledAttention : public PagedAttention {
 public:
  TiledAttention(const AttentionParams& params, const AttentionTuning& tuning,
                 const TileKernels& kernels)
      : params_(params), kernels_(kernels), layers_(params.shape.num_layers) {
    for (uint32_t i = 0; i < layers_.size(); i++) {
      const LayerParams& layer = params_.layer(i);
      layers_[i].params = &layer;
      layers_[i].plan = PlanOf(layer.window, tuning);
      layers_[i].angles = AnglesOf(layer.rope);
    }
    const AttentionPlan& plan = plans_.front().plan;
    const TileShape shape = {params.shape, plan.heads_per_kv(), plan.max_tile_queries()};
    for (int i = 0; i < params.max_threads; i++)
      workers_.push_back(std::make_unique<TileWorker>(shape, kernels, tuning.prefetch));
    observer_.emplace(params.shape, plan.heads_per_kv(), plan.max_tile_queries());
  }

  Status Prepare(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows,
                 int num_threads) override {
    if (num_threads < 1 || num_threads > params_.max_threads) {
      return Invalid("num_threads must be 1 to " + std::to_string(params_.max_threads) + ", not " +
                     std::to_string(num_threads));
    }
    observer_->Clear();
    if (Status s = rows_.Build(params_.shape, tables, rows); !s.ok()) return s;
    for (AngleTable& angles : angles_) angles.Build(rows_);
    const size_t merges = rows.size() * params_.shape.num_kv_heads;
    for (WindowPlan& p : plans_) {
      p.plan.Build(rows_, num_threads);
      records_.Reserve(p.plan.num_records() * RecordFloats(params_.shape.head_dim));
      if (p.parts_left.size() < merges)
        p.parts_left = std::vector<std::atomic<uint32_t>>(merges * 2);
      for (size_t i = 0; i < merges; i++) p.ResetParts(i, params_.shape.num_kv_heads);
    }
    for (Layer& layer : layers_) layer.next_item.store(0, std::memory_order_relaxed);
    return Status::Ok();
  }

  Status Observe(std::span<const ObservedRows> observed) override {
    return observer_->Begin(rows_, observed);
  }
  void TakeObserved() override { observer_->Take(); }

  void Write(uint32_t layer, const float* q, size_t q_stride, const float* k, size_t k_stride,
             const float* v, size_t v_stride, float* q_out, size_t q_out_stride, int thread,
             int num_threads) override {
    const AngleTable& angles = *layers_[layer].angles;
    const size_t kv_heads = params_.shape.num_kv_heads, dims = params_.shape.head_dim;
    const size_t group = heads_per_kv() * dims;
    const size_t units = rows_.num_rows() * kv_heads;
    const size_t begin = units * static_cast<size_t>(thread) / static_cast<size_t>(num_threads);
    const size_t end = units * static_cast<size_t>(thread + 1) / static_cast<size_t>(num_threads);
    for (size_t unit = begin; unit < end; unit++) {
      const size_t row = unit / kv_heads, head = unit % kv_heads;
      for (size_t i = 0; i < group; i += dims) {
        const size_t column = head * group + i;
        Rotate(angles.rope(), q + row * q_stride + column, angles.OfQuery(row),
               q_out + row * q_out_stride + column);
      }
      if (rows_.places()[row].write) {
        WriteRow(layer, static_cast<uint32_t>(head), row, k + row * k_stride + head * dims,
                 v + row * v_stride + head * dims);
      }
    }
  }

  void Attend(uint32_t layer_index, const float* q, size_t q_stride, float* out, size_t out_stride,
              int thread, int num_threads) override {
    KVLINK_CHECK(layer_index < layers_.size() && thread < num_threads &&
                 num_threads <= params_.max_threads)
        << "layer " << layer_index << ", thread " << thread << " of " << num_threads;
    TileWorker& worker = *workers_[static_cast<size_t>(thread)];
    Layer& layer = layers_[layer_index];
    const AttentionPlan& plan = layer.plan->plan;
    const std::span<const WorkItem> items = plan.items();
    const auto shift_angles = [&](int32_t shift) { return layer.angles->OfShift(shift); };
    observer_->Run(worker, *layer.params, layer_index, q, q_stride, shift_angles, thread,
                   num_threads);
    // An item is claimed when the one before begins, which asks for what it will read first.
    const auto claim = [&](TileTask* task) {
      const uint32_t i = layer.next_item.fetch_add(1, std::memory_order_relaxed);
      if (i >= items.size()) return false;
      const QueryTile& tile = plan.tiles()[items[i].tile];
      *task = {&tile,
               {plan.queries().data() + tile.first_query, q, q_stride, layer.params, layer_index,
                items[i].kv_head}};
      return true;
    };
    TileTask task, next;
    for (bool more = claim(&next); more;) {
      task = next;
      more = claim(&next);
      const uint32_t head = task.input.kv_head;
      const bool alone = task.tile->records == QueryTile::kNoRecords;
      const float* records =
          worker.Run(task, shift_angles, alone ? nullptr : Record(plan, *task.tile, head, 0, 0),
                     more ? &next : nullptr);
      for (uint32_t j = 0; j < task.tile->num_queries; j++) {
        const Query& query = task.input.queries[j];
        if (!plan.Sees(query, *task.tile)) continue;
        if (alone) {
          Finish(records + size_t{j} * group_floats(), query.row, head, out, out_stride);
        } else if (LastPart(*layer.plan, query.row, head)) {
          Finish(Merge(plan, query, head), query.row, head, out, out_stride);
        }
      }
    }
  }

 private:
  struct Layer {
    const LayerParams* params = nullptr;
    WindowPlan* plan = nullptr;
    AngleTable* angles = nullptr;
    std::atomic<uint32_t> next_item{0};
  };

  WindowPlan* PlanOf(uint32_t window, const AttentionTuning& tuning) {
    for (WindowPlan& p : plans_) {
      if (p.plan.window() == window) return &p;
    }
    plans_.push_back({AttentionPlan(params_.shape, params_.num_heads, window, tuning.max_tile_rows,
                                    tuning.cascade),
                      {}});
    return &plans_.back();
  }
  AngleTable* AnglesOf(const RopeParams& rope) {
    for (AngleTable& angles : angles_) {
      if (angles.rope() == rope) return &angles;
    }
    return &angles_.emplace_back(rope);
  }

  void Rotate(const RopeParams& rope, const float* x, const float* angles, float* out) const {
    const uint32_t dims = params_.shape.head_dim;
    if (rope.num_rot == 0) {
      if (out != x) std::copy(x, x + dims, out);
      return;
    }
    kernels_.rotate(x, angles, rope.neox, rope.num_rot, dims, out);
  }

  void WriteRow(uint32_t layer, uint32_t head, size_t row, const float* k, const float* v) const {
    const KvShape& shape = params_.shape;
    const AngleTable& angles = *layers_[layer].angles;
    alignas(64) std::array<float, kMaxHeadDim> rotated;
    alignas(64) std::array<std::byte, kMaxHeadDim * 2> key;
    uint16_t k_scale = 0, v_scale = 0;
    Rotate(angles.rope(), k, angles.OfKey(row), rotated.data());
    kernels_.to_kv(rotated.data(), shape.head_dim, key.data(), &k_scale);

    const RowPlace& place = rows_.places()[row];
    const auto to = KvRowOf(shape, place.block, layer, head, place.block_row);
    if (shape.type == KvType::kF16) {
      Scatter<2>(key.data(), shape.vector_bytes(), to.k, to.k_stride);
    } else {
      Scatter<4>(key.data(), shape.vector_bytes(), to.k, to.k_stride);
    }
    kernels_.to_kv(v, shape.head_dim, to.v, &v_scale);
    if (shape.scale_bytes() == 0) return;
    std::memcpy(to.k_scale, &k_scale, sizeof(k_scale));
    std::memcpy(to.v_scale, &v_scale, sizeof(v_scale));
  }

  template <size_t kGroupBytes>
  static void Scatter(const std::byte* from, size_t bytes, std::byte* to, size_t stride) {
    for (size_t i = 0; i < bytes; i += kGroupBytes, to += stride)
      std::memcpy(to, from + i, kGroupBytes);
  }

  uint32_t heads_per_kv() const { return params_.num_heads / params_.shape.num_kv_heads; }

  // Floats of one query's records (all its heads of a KV head).
  size_t group_floats() const {
    return size_t{heads_per_kv()} * RecordFloats(params_.shape.head_dim);
  }

  // Of a tile's query, after `chunk` chunks.
  float* Record(const AttentionPlan& plan, const QueryTile& tile, uint32_t head, uint32_t chunk,
                uint32_t query) {
    const size_t record = tile.records + head * plan.tile_records(tile) +
                          (size_t{chunk} * tile.num_queries + query) * heads_per_kv();
    return records_.data() + record * RecordFloats(params_.shape.head_dim);
  }

  // Called once per part. True for the last one, which sees what all others wrote; the count starts
  // again for the next layer.
  bool LastPart(WindowPlan& p, uint32_t row, uint32_t head) {
    const size_t merge = size_t{row} * params_.shape.num_kv_heads + head;
    if (p.parts_left[merge].fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    p.ResetParts(merge, params_.shape.num_kv_heads);
    return true;
  }

  // Folds the parts of a row in chunk order, into the first one's records.
  const float* Merge(const AttentionPlan& plan, const Query& query, uint32_t head) {
    const uint32_t dims = params_.shape.head_dim;
    float* sum = nullptr;
    for (uint32_t i = plan.first_part(query.row); i != AttentionPlan::kNoPart;) {
      const RowPart& part = plan.part(i);
      const QueryTile& tile = plan.tiles()[part.tile];
      const uint32_t first = std::max(plan.FirstChunk(query), tile.chunk_begin);
      for (uint32_t c = first; c < tile.chunk_end && query.limit > c * kChunkTokens; c++) {
        const uint32_t kept = tile.folds ? 0 : c - tile.chunk_begin;
        float* next = Record(plan, tile, head, kept, part.query_in_tile);
        if (sum == nullptr) {
          sum = next;
        } else {
          for (size_t r = 0; r < group_floats(); r += RecordFloats(dims))
            kernels_.fold(sum + r, next + r, dims);
        }
        if (tile.folds) break;
      }
      i = part.next;
    }
    return sum;
  }

  void Finish(const float* records, uint32_t row, uint32_t head, float* out,
              size_t out_stride) const {
    const uint32_t dims = params_.shape.head_dim;
    const uint32_t group = heads_per_kv();
    for (uint32_t h = 0; h < group; h++) {
      kernels_.normalize(records + size_t{h} * RecordFloats(dims), dims,
                         out + row * out_stride + size_t{head * group + h} * dims);
    }
  }

  const AttentionParams params_;
  const TileKernels& kernels_;
  BatchRows rows_;
  std::deque<WindowPlan> plans_;   // one a window
  std::deque<AngleTable> angles_;  // one a kind of rope
  std::vector<Layer> layers_;
  std::vector<std::unique_ptr<TileWorker>> workers_;  // by thread
  AlignedFloats records_;
  std::optional<AttentionObserver> observer_;
};

}  // namespace

Result<std::unique_ptr<PagedAttention>> CreatePagedAttention(const AttentionParams& params,
                                                             const AttentionTuning& tuning) {
  if (Status s = ApplyIsaEnvironment(); !s.ok()) return s;
  if (Status s = Validate(params); !s.ok()) return s;
  const Isa isa = tuning.isa.value_or(CurrentIsa());
  return std::unique_ptr<PagedAttention>(
      std::make_unique<TiledAttention>(params, tuning, TileKernelsOf(isa, params.shape.type)));
}

Result<std::unique_ptr<PagedAttention>> PagedAttention::Create(const AttentionParams& params) {
  return CreatePagedAttention(params, AttentionTuning());
}

}  // namespace kvlink::kernel
