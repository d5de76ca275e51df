// TileKernels: the inner loops of paged attention, one table per instruction set and KV type.
//
//   F16    f32 queries and weights, fused multiply-adds
//   BF16   the same; with AVX512-BF16 queries and weights are rounded to BF16 and multiplied in
//          pairs
//   Q8_0   int8 queries with a scale each, int16 weights with a scale a row and chunk: integer
//          sums, exact in any order
//
// Every loop works on a group of query rows and gives each of them the same operations in the same
// order whatever the group's height, so that a row's bits do not depend on its neighbours. Vector
// lanes stand for tokens (scores) or dimensions (values) and sums over lanes have a fixed shape of
// 16, so that all instruction sets give the same bits too (but for BF16, see above).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/isa.h"
#include "kvlink/kv_shape.h"

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

// Query rows packed for scoring: 32-bit words of one float, two BF16 or four int8 dimensions; word
// w of row r lies at words[w * rows + r].
struct QueryGroup {
  const uint32_t* words = nullptr;
  const float* scales = nullptr;  // by row; quantised types only
  const int32_t* sums = nullptr;  // of a row's int8 elements
  uint32_t rows = 0;
};

// K of tokens of one tile, from one row on. `k` and `scales` have been moved to that row.
struct KeyRun {
  const std::byte* k = nullptr;
  const std::byte* scales = nullptr;
  uint32_t stride = 0;  // tokens from one group of dimensions to the next
  uint32_t num_tokens = 0;
};

// V of consecutive positions, [num_tokens][dims], and what to prefetch meanwhile.
struct ValueRun {
  const std::byte* v = nullptr;
  uint32_t num_tokens = 0;
  const std::byte* prefetch = nullptr;
};

// The positions of a chunk that a row sees, and those that its scores are wanted for.
struct RowRange {
  uint32_t begin = 0, end = 0;             // begin < end
  uint32_t zero_from = 0, zero_until = 0;  // include [begin, end)
};

struct TileKernels {
  Isa isa;
  uint32_t max_score_rows;  // group height of score
  uint32_t max_value_rows;  // group height of weigh
  uint32_t dims_per_word;   // of packed queries
  bool pairs;               // weigh takes two positions at once: runs begin at even positions

  // One row of queries times `scale`: word w to words[w * stride].
  void (*pack)(const float* q, float scale, uint32_t dims, uint32_t* words, size_t stride,
               float* row_scale, int32_t* row_sum);

  // scores[r * kScoreStride + t] = sum_d q[r][d] * k[d][t], d ascending, for t in [0, num_tokens).
  // Reads k and writes scores for num_tokens rounded up to a vector; what comes of those lanes
  // means nothing. `prefetch`, or null: memory that is wanted soon, asked for as fast as k is read.
  void (*score)(const QueryGroup& queries, uint32_t dims, const KeyRun& keys,
                const std::byte* prefetch, float* scores);

  // s_t = cap * tanh(s_t / 2 * ln 2) for t in [begin, end).
  void (*softcap)(float* scores, uint32_t begin, uint32_t end, float cap);

  // Rows that see the same: m = max s_t over t in [begin, end); weights are 2^(s_t - m), and 0 in
  // [zero_from, begin) and [end, zero_until); l their sum. {m, l} of row r go to m_l + r *
  // m_l_stride. Weights replace the scores, in the form that weigh wants. `value_scales`
  // [kChunkTokens], F16, of V: of quantised types, which multiply them into the weights and leave
  // the weights' own scale in weight_scales[r].
  void (*softmax)(float* scores, uint32_t rows, const RowRange& range, const uint16_t* value_scales,
                  float* m_l, size_t m_l_stride, float* weight_scales);

  // records[r * record_stride + d] = sum_t weights[r][t] * V[t][d], t ascending over the runs from
  // `begin` to `end`, positions of the chunk. weights of row r start at weights + r * kScoreStride.
  // 0 < rows <= max_value_rows.
  void (*weigh)(const float* weights, const float* weight_scales, uint32_t rows,
                const ValueRun* runs, uint32_t begin, uint32_t end, uint32_t dims, float* records,
                uint32_t record_stride);

  // record = record and `next` together.
  void (*fold)(float* record, const float* next, uint32_t dims);
  void (*normalize)(const float* record, uint32_t dims, float* out);  // out = O / l

  // Rotates the first num_rot dimensions of one head and copies the rest. cos_sin as of RopeAngles.
  // out may be x.
  void (*rotate)(const float* x, const float* cos_sin, bool neox, uint32_t num_rot, uint32_t dims,
                 float* out);
  // One row's elements and scale (null where the type has none), saturated to +-65504; NaN becomes
  // 0.
  void (*to_kv)(const float* x, uint32_t dims, std::byte* out, uint16_t* scale);
};

// The kernels of an available instruction set. kBaseline has plain loops for Q8_0, which every
// compiler can build.
const TileKernels& TileKernelsOf(Isa isa, KvType type);

// Whether BF16 runs on BF16 dot products here, and so has bits of its own.
bool HasBf16Dot(Isa isa);

}  // namespace kvlink::kernel
