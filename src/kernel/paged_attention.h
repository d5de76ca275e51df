// PagedAttention: writes K and V rows into pages and attends queries over span tables.
//
// One object serves one engine: Prepare plans a batch once for all layers, then for each layer
// Write runs (all threads), a barrier, then Attend runs (all threads). The caller (a graph node
// each) provides the threads and the barrier.
//
// Invariants
//   1. The result of a row depends on its own query, its span table's contents and its position
//      only: not on other rows of the batch, on grouping, on chunking, or on the number of threads.
//      Split points are fixed positions.
//   2. A row at position p reads exactly the positions 0..p, or the last `window` of them. Rows
//      beyond are never multiplied in, whatever they hold (NaN included).
//   3. A block with a difference view gives the same bits as one page with the same contents.
//   4. No allocation in Write and Attend, but where rows are observed.
// The instruction set (AVX2, AVX-512, ...) is chosen at run time; NumericPath() names it, since its
// bits differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernel/rope.h"
#include "kvlink/status.h"
#include "kvlink/view.h"

namespace kvlink::kernel {

// What may differ between the layers of a model.
struct LayerParams {
  float scale = 0;  // of scores; 1 / sqrt(head_dim) usually
  RopeParams rope;
  // A row at position p sees positions max(0, p - window + 1)..p, as llama.cpp's standard sliding
  // window (LLAMA_SWA_TYPE_STANDARD); 0: all of 0..p.
  uint32_t window = 0;
  float softcap = 0;  // scores become softcap * tanh(score / softcap); 0: they stay
};

struct AttentionParams {
  KvShape shape;
  uint32_t num_heads = 0;           // query heads, a multiple of shape.num_kv_heads
  std::vector<LayerParams> layers;  // one for all layers, or shape.num_layers of them
  int max_threads = 1;

  const LayerParams& layer(uint32_t index) const { return layers[layers.size() == 1 ? 0 : index]; }
};

// One token of the batch. Rows of one sequence may come in any order and any positions (selective
// recomputation).
struct BatchRow {
  uint32_t sequence = 0;  // index into the batch's tables
  uint32_t position = 0;
  bool write = true;  // false: the row's K and V are in the pages already
};

// Rows [first_row, first_row + num_rows) of a batch, all of one sequence and ascending in position,
// whose attention is wanted.
struct ObservedRows {
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  float* received = nullptr;  // [position of the last row + 1]
};

class PagedAttention {
 public:
  virtual ~PagedAttention() = default;
  static Result<std::unique_ptr<PagedAttention>> Create(const AttentionParams& params);

  // kInvalidArgument: a position that no span covers, a row range outside its pages. Tables must
  // stay valid and unchanged until the last Attend of the batch.
  virtual Status Prepare(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows,
                         int num_threads) = 0;

  // Between Prepare and the first Attend: Attend then also measures how much attention these rows
  // pay to each position. TakeObserved, after the last Attend, adds to received[p] the mean over
  // heads and layers, so that each row adds 1 in all. Results of Attend do not change. Costs the
  // scores and the softmax of these rows once more. kInvalidArgument: rows that are no such run.
  virtual Status Observe(std::span<const ObservedRows> observed) = 0;
  virtual void TakeObserved() = 0;

  // q [rows, num_heads * head_dim], k and v [rows, kv_heads * head_dim], strides in floats between
  // rows. Rotates k for its frame (position - shift), writes k and v (saturated to the KV type's
  // finite range), and stores the rotated queries to q_out [rows, num_heads * head_dim] (may alias
  // q).
  virtual void Write(uint32_t layer, const float* q, size_t q_stride, const float* k,
                     size_t k_stride, const float* v, size_t v_stride, float* q_out,
                     size_t q_out_stride, int thread, int num_threads) = 0;

  // out [rows, num_heads * head_dim] = softmax(cap(scale * q K^T)) V over the positions that each
  // row sees.
  virtual void Attend(uint32_t layer, const float* q, size_t q_stride, float* out,
                      size_t out_stride, int thread, int num_threads) = 0;
};

// "avx512", "avx2", "neon": of the kernels that this process runs. KVLINK_ISA=avx2 in the
// environment lowers it. "+bf16dot" where the type's kernels use such an instruction, since its
// bits differ.
std::string NumericPath(KvType type = KvType::kF16);

}  // namespace kvlink::kernel
