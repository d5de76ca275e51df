// TileKernels: the inner loops of paged attention, one table per instruction set.
//
// Every loop works on a group of query rows and gives each of them the same operations in the same
// order whatever the group's height, so that a row's bits do not depend on its neighbours. Vector
// lanes stand for tokens (scores) or dimensions (values) and sums over lanes have a fixed shape of
// 16, so that all instruction sets give the same bits too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/isa.h"

namespace kvlink::kernel {

// Positions that one softmax covers: chunk c is positions [c, c + 1) * kChunkTokens. A constant,
// since results depend on it: a row's partial results are folded in chunk order.
inline constexpr uint32_t kChunkTokens = 256;

// Floats between the score rows of a group: a chunk and what the last vector store may run over.
// Not a multiple of 1024, lest a group's rows fall into one set of the L1 cache.
inline constexpr uint32_t kScoreStride = kChunkTokens + 16;

inline constexpr uint32_t kMaxScoreRows = 12;
inline constexpr uint32_t kMaxHeadDim = 512;

// One query row's partial result over some positions: {O [dims], m, l}, with O = sum_t 2^(s_t - m)
// V_t and l = sum_t 2^(s_t - m).
constexpr uint32_t RecordFloats(uint32_t dims) { return (dims + 2 + 15) / 16 * 16; }

// Memory that is wanted soon. `k` and `v` are prefetched as fast as the loop that gets it reads its
// own input (64 bytes for 64 bytes); null: nothing.
struct Prefetch {
  const std::byte* first = nullptr;
  const std::byte* second = nullptr;
};

// V of consecutive positions, [num_tokens][dims], and what to prefetch meanwhile.
struct ValueRun {
  const uint16_t* v = nullptr;
  uint32_t num_tokens = 0;
  const std::byte* prefetch = nullptr;
};

struct TileKernels {
  Isa isa;
  uint32_t max_score_rows;  // group height of Score
  uint32_t max_value_rows;  // group height of Weigh

  // scores[r * kScoreStride + t] = sum_d q[d * rows + r] * k[d * k_stride + t], d ascending, for t
  // in [0, num_tokens). Reads k and writes scores for num_tokens rounded up to a vector; what comes
  // of those lanes means nothing.
  void (*score)(const float* q, uint32_t rows, uint32_t dims, const uint16_t* k, uint32_t k_stride,
                uint32_t num_tokens, Prefetch prefetch, float* scores);

  // s_t = cap * tanh(s_t / 2 * ln 2) for t in [begin, end).
  void (*softcap)(float* scores, uint32_t begin, uint32_t end, float cap);

  // One row: m = max s_t over t in [begin, end), begin < end; scores become 2^(s_t - m), and 0 in
  // [zero_from, begin) and [end, zero_until); l their sum. Scores before and after are scratch.
  void (*softmax)(float* scores, uint32_t begin, uint32_t end, uint32_t zero_from,
                  uint32_t zero_until, float* m, float* l);

  // records[r * record_stride + d] = sum_t weights[r * kScoreStride + t] * V[t][d], t ascending
  // over the runs until num_tokens. 0 < rows <= max_value_rows.
  void (*weigh)(const float* weights, uint32_t rows, const ValueRun* runs, uint32_t num_tokens,
                uint32_t dims, float* records, uint32_t record_stride);

  // record = record and `next` together.
  void (*fold)(float* record, const float* next, uint32_t dims);
  void (*normalize)(const float* record, uint32_t dims, float* out);  // out = O / l

  // Rotates the first num_rot dimensions of one head and copies the rest. cos_sin as of RopeAngles.
  // out may be x.
  void (*rotate)(const float* x, const float* cos_sin, bool neox, uint32_t num_rot, uint32_t dims,
                 float* out);
  // KV elements, saturated to the finite range; NaN becomes 0.
  void (*to_kv)(const float* x, uint32_t n, uint16_t* out);
};

// The kernels of an available instruction set.
const TileKernels& TileKernelsOf(Isa isa);

}  // namespace kvlink::kernel
