// AttentionObserver: how much attention a few rows of a batch pay to each position, the mean over
// heads and layers.
//
// Rows of one sequence make groups that fit a tile. Each group has a sum per KV head, which belongs
// to one thread in each layer, so that the result does not depend on the number of threads. Nothing
// here touches what Attend computes. Cost: scores and softmax of the observed rows once more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/attention_tile.h"
#include "kernel/batch_rows.h"
#include "kernel/paged_attention.h"
#include "kvlink/status.h"

namespace kvlink::kernel {

class AttentionObserver {
 public:
  AttentionObserver(const KvShape& shape, uint32_t heads_per_kv, uint32_t max_queries)
      : shape_(shape), heads_per_kv_(heads_per_kv), max_queries_(max_queries) {}

  // As PagedAttention::Observe.
  Status Begin(const BatchRows& rows, std::span<const ObservedRows> observed);
  void Clear() { groups_.clear(); }
  // As PagedAttention::TakeObserved.
  void Take();

  // This thread's share of one layer. `q` as of PagedAttention::Attend.
  template <typename ShiftAngles>
  void Run(TileWorker& worker, const LayerParams& params, uint32_t layer, const float* q,
           size_t q_stride, const ShiftAngles& shift_angles, int thread, int num_threads) {
    const size_t heads = shape_.num_kv_heads, step = static_cast<size_t>(num_threads);
    for (size_t i = static_cast<size_t>(thread); i < groups_.size() * heads; i += step) {
      Group& group = groups_[i / heads];
      const size_t head = i % heads;
      const TileTask task = {
          &group.tile,
          {group.queries.data(), q, q_stride, &params, layer, static_cast<uint32_t>(head)}};
      worker.Receive(task, shift_angles, group.sums.data() + head * group.length());
    }
  }

 private:
  struct Group {
    std::vector<Query> queries;  // in order of limit
    QueryTile tile;
    std::vector<float> sums;  // [kv heads][length]
    float* received = nullptr;
    size_t length() const { return queries.back().limit; }
  };
  void AddGroup(const SpanTable* table, std::span<const Query> queries, float* received);

  const KvShape shape_;
  const uint32_t heads_per_kv_, max_queries_;
  std::vector<Group> groups_;
};

}  // namespace kvlink::kernel
