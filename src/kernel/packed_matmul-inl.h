// How PackedMatmul walks a product in tiles, compiled once per instruction set (Highway's
// foreach_target pattern).
//
// Activations are taken in slices that stay in the second-level cache while all panels pass by; a
// panel is taken in chunks of inputs that stay in the first-level cache while all rows of the slice
// pass by. Accumulators wait in `sums` between chunks, which does not change a bit.
#if defined(KVLINK_KERNEL_PACKED_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVLINK_KERNEL_PACKED_MATMUL_INL_H_
#undef KVLINK_KERNEL_PACKED_MATMUL_INL_H_
#else
#define KVLINK_KERNEL_PACKED_MATMUL_INL_H_
#endif

#include "kernel/packed_int8-inl.h"

#include "kernel/packed_float-inl.h"
#include "kernel/packed_quantize-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC push_options
#pragma GCC target("avx512vnni,avx512bf16")
#endif
namespace kvlink::kernel {
namespace HWY_NAMESPACE {

constexpr uint32_t kMaxSlice = 128;  // rows
constexpr size_t kSliceBytes = size_t{320} << 10;
constexpr size_t kChunkBytes = size_t{20} << 10;
constexpr size_t kAhead = 8192;  // bytes

// One call of Multiply, for one part of the matrix.
struct Product {
  const PackedMatrix* w;
  const PackedMatrix::Part* part;
  InputRows x;
  float* y;  // null: results stay in the sums
  size_t y_stride;
  const float* residual;  // or null
  size_t residual_stride;
};

using Sums = float[kMaxSlice][kPanelRows];

inline const uint8_t* PanelData(const PackedMatrix::Part& part, uint32_t panel) {
  return reinterpret_cast<const uint8_t*>(part.data) +
         (panel - part.first_panel) * part.panel_bytes;
}

// Copies or adds `lanes` floats; whole panels are worth a loop of known length.
template <class Op>
HWY_ATTR inline void ForLanes(uint32_t lanes, const Op& op) {
  if (lanes == kPanelRows) {
    for (uint32_t i = 0; i < kPanelRows; i++) op(i);
  } else {
    for (uint32_t i = 0; i < lanes; i++) op(i);
  }
}

// bias + residual
HWY_ATTR inline void LoadSums(const Product& p, uint32_t row, uint32_t rows, uint32_t output,
                              uint32_t lanes, float* sums) {
  const float* bias = p.w->bias();
  for (uint32_t t = 0; t < rows; t++, sums += kPanelRows) {
    for (uint32_t i = 0; i < kPanelRows; i++) sums[i] = 0;
    if (bias != nullptr) ForLanes(lanes, [&](uint32_t i) { sums[i] = bias[output + i]; });
    if (p.residual == nullptr) continue;
    const float* HWY_RESTRICT residual = p.residual + (row + t) * p.residual_stride + output;
    ForLanes(lanes, [&](uint32_t i) { sums[i] += residual[i]; });
  }
}

// So that the stores of outputs need not wait for their lines.
HWY_ATTR inline void FetchOutputs(const Product& p, uint32_t row, uint32_t rows, uint32_t output) {
  for (uint32_t t = 0; t < rows; t++) {
    const float* y = p.y + (row + t) * p.y_stride + output;
    __builtin_prefetch(y, 1);
    __builtin_prefetch(y + 16, 1);
  }
}

HWY_ATTR inline void StoreSums(const Product& p, uint32_t row, uint32_t rows, uint32_t output,
                               uint32_t lanes, const float* sums) {
  for (uint32_t t = 0; t < rows; t++, sums += kPanelRows) {
    float* HWY_RESTRICT y = p.y + (row + t) * p.y_stride + output;
    ForLanes(lanes, [&](uint32_t i) { y[i] = sums[i]; });
  }
}

// What is common to the tiles of a chunk; strides of sums in floats.
struct TileStrides {
  size_t x;
  uint32_t inputs;
  size_t from, to;
  size_t ahead;  // bytes to fetch a step of Ahead
};

// The tiles of one type. kStep: the inputs that chunks are multiples of, and their bytes in a panel
// and in a row of activations. AheadBytes: weights that a tile passes between two steps of Ahead.
// kPasses: sums come from one place and go to another; otherwise they stay where they are.
template <WeightType kType>
struct IntKernel {
  static constexpr PackedLayout kLayout = LayoutOf(kType);
  static constexpr uint32_t kTileRows = IntTileRows(kLayout.bits);
  static constexpr uint32_t kStep = 8 * kQuantBlock;
  static constexpr size_t kStepBytes = 8 / kLayout.group * kLayout.group_bytes();
  static constexpr size_t kStepInputBytes = 8 * sizeof(QuantBlock);
  static constexpr size_t AheadBytes(uint32_t) { return kLayout.group_bytes() / kLayout.group; }
  static constexpr bool kPasses = !kSumsInMemory;

  template <uint32_t kRows>
  HWY_ATTR static void Tile(const uint8_t* w, const std::byte* x, const float* from, float* to,
                            const uint8_t* next, const TileStrides& strides) {
    IntTile tile = {w,
                    0,
                    x,
                    strides.x,
                    strides.inputs / kQuantBlock,
                    from,
                    strides.from,
                    to,
                    strides.to,
                    {next, strides.ahead}};
    for (; tile.column < kPanelColumns; tile.column += IntTileColumns(kRows)) {
      MultiplyIntTile<kType, kRows>(tile);
      tile.ahead = {};
    }
  }
};

template <class Steps, size_t kWeightBytes>
struct FloatKernel {
  static constexpr uint32_t kTileRows = kFloatTileRows;
  static constexpr uint32_t kStep = kFloatGroup;
  static constexpr size_t kStepBytes = kStep * kPanelRows * kWeightBytes;
  static constexpr size_t kStepInputBytes = kStep * Steps::kInputBytes;
  static constexpr size_t AheadBytes(uint32_t rows) {
    return FloatStreams(rows) * Steps::kChunk * kPanelRows * kWeightBytes;
  }
  static constexpr bool kPasses = false;

  template <uint32_t kRows>
  HWY_ATTR static void Tile(const uint8_t* w, const std::byte* x, const float*, float* sums,
                            const uint8_t* next, const TileStrides& strides) {
    const uint32_t inputs = (strides.inputs + Steps::kInputs - 1) / Steps::kInputs * Steps::kInputs;
    FloatTile tile = {w, 0, x, strides.x, inputs, sums, {next, strides.ahead}};
    for (; tile.column < kFloatPanelColumns; tile.column += FloatTileColumns(kRows)) {
      MultiplyFloatTile<Steps, kWeightBytes, kRows>(tile);
      tile.ahead = {};
    }
  }
};

// Arguments travel in registers, and `strides` changes once a chunk: reading back what was just
// written can wait for every store before it.
using TileFn = void (*)(const uint8_t* w, const std::byte* x, const float* from, float* to,
                        const uint8_t* next, const TileStrides& strides);

template <class Kernel, uint32_t... kRows>
constexpr auto TileTable(std::integer_sequence<uint32_t, kRows...>) {
  return std::array<TileFn, sizeof...(kRows)>{&Kernel::template Tile<kRows + 1>...};
}

// Where the sums of a panel's rows come from and go to. Sums of whole panels pass by `sums` where
// they can.
template <class Kernel>
struct Route {
  static constexpr bool kPasses = Kernel::kPasses;
  const Product& p;
  const uint32_t output, lanes;            // the panel's first output, and how many it has
  const float* const start = FirstSums();  // null: see LoadSums
  const size_t start_stride = p.residual != nullptr ? p.residual_stride : 0;
  const bool ends_in_y = kPasses && lanes == kPanelRows && p.y != nullptr;

  HWY_INLINE const float* FirstSums() const {
    alignas(64) static constexpr float kZeros[kPanelRows] = {};
    const float* bias = p.w->bias();
    if (!kPasses || lanes < kPanelRows || (bias != nullptr && p.residual != nullptr))
      return nullptr;
    return p.residual != nullptr ? p.residual + output : bias != nullptr ? bias + output : kZeros;
  }
  HWY_INLINE const float* From(uint32_t row, uint32_t rows, float* sums) const {
    if (start != nullptr) return start + row * start_stride;
    LoadSums(p, row, rows, output, lanes, sums);
    return sums;
  }
  HWY_INLINE float* To(uint32_t row, uint32_t rows, float* sums) const {
    if (p.y == nullptr) return sums;
    FetchOutputs(p, row, rows, output);
    return ends_in_y ? p.y + row * p.y_stride + output : sums;
  }
  HWY_INLINE void End(uint32_t row, uint32_t rows, const float* sums) const {
    if (p.y != nullptr && !ends_in_y) StoreSums(p, row, rows, output, lanes, sums);
  }
};

// Rows [first, last) against one panel; `next_panel` is fetched meanwhile.
template <class Kernel>
HWY_ATTR void MultiplyPanel(const Product& p, uint32_t panel, const uint8_t* next_panel,
                            uint32_t first, uint32_t last, Sums& sums) {
  static constexpr auto kTiles =
      TileTable<Kernel>(std::make_integer_sequence<uint32_t, Kernel::kTileRows>{});
  const uint32_t inputs = p.w->inputs();
  const uint32_t row_in_part = (panel - p.part->first_panel) * kPanelRows;
  const Route<Kernel> route = {p, p.part->first_row + row_in_part,
                               std::min(kPanelRows, p.part->rows - row_in_part)};
  const uint8_t* w = PanelData(*p.part, panel);
  const uint32_t num = last - first;
  const uint32_t num_tiles = (num + Kernel::kTileRows - 1) / Kernel::kTileRows;
  const uint32_t steps = std::max<uint32_t>(1, kChunkBytes / Kernel::kStepBytes);
  const uint32_t chunk = num_tiles == 1 ? inputs : steps * Kernel::kStep;
  const size_t chunk_bytes = steps * Kernel::kStepBytes;
  // A single tile fetches what it will read soon; of several, each fetches its share of what all
  // will read next.
  const uint32_t tall = num % num_tiles;
  const auto height_of = [&](uint32_t i) { return num / num_tiles + (i < tall ? 1 : 0); };
  const size_t share = (std::min(chunk_bytes, p.part->panel_bytes) / num_tiles + 63) / 64 * 64;
  const size_t passed = Kernel::AheadBytes(num_tiles == 1 ? num : Kernel::kTileRows);
  const std::byte* x = p.x.data + first * p.x.stride;
  for (uint32_t begin = 0; begin < inputs; begin += chunk) {
    const uint32_t end = std::min(inputs, begin + chunk);
    const bool starts = begin == 0, ends = end == inputs;
    const TileStrides strides = {
        p.x.stride, end - begin, starts && route.start != nullptr ? route.start_stride : kPanelRows,
        ends && route.ends_in_y ? p.y_stride : kPanelRows, (passed / num_tiles + 63) / 64 * 64};
    const uint8_t* next = num_tiles == 1 ? w + kAhead : ends ? next_panel : w + chunk_bytes;
    uint32_t t = 0;
    for (uint32_t i = 0; i < num_tiles; i++) {
      const uint32_t height = height_of(i), row = first + t;
      const float* from = starts ? route.From(row, height, sums[t]) : sums[t];
      float* to = ends ? route.To(row, height, sums[t]) : sums[t];
      kTiles[height - 1](w, x + t * p.x.stride, from, to, next, strides);
      if (ends) route.End(row, height, sums[t]);
      next += share;
      t += height;
    }
    w += chunk_bytes;
    x += steps * Kernel::kStepInputBytes;
  }
}

struct PanelKernel {
  uint32_t tile_rows;
  void (*multiply)(const Product& p, uint32_t panel, const uint8_t* next_panel, uint32_t first,
                   uint32_t last, Sums& sums);
};

template <class Kernel>
constexpr PanelKernel KernelOf() {
  return {Kernel::kTileRows, &MultiplyPanel<Kernel>};
}

HWY_ATTR PanelKernel KernelOf(const PackedMatrix& w, WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return KernelOf<IntKernel<WeightType::kQ4_0>>();
    case WeightType::kQ4_1:
      return KernelOf<IntKernel<WeightType::kQ4_1>>();
    case WeightType::kQ5_0:
      return KernelOf<IntKernel<WeightType::kQ5_0>>();
    case WeightType::kQ5_1:
      return KernelOf<IntKernel<WeightType::kQ5_1>>();
    case WeightType::kQ8_0:
      return KernelOf<IntKernel<WeightType::kQ8_0>>();
    case WeightType::kQ4_K:
      return KernelOf<IntKernel<WeightType::kQ4_K>>();
    case WeightType::kQ5_K:
      return KernelOf<IntKernel<WeightType::kQ5_K>>();
    case WeightType::kQ6_K:
      return KernelOf<IntKernel<WeightType::kQ6_K>>();
    case WeightType::kF16:
      return KernelOf<FloatKernel<FloatSteps<WeightType::kF16>, 2>>();
    case WeightType::kBF16:
#if HWY_TARGET == HWY_AVX3_DL
      if (w.format() == InputFormat::kBF16) return KernelOf<FloatKernel<NativeBF16Steps, 2>>();
#endif
      return KernelOf<FloatKernel<FloatSteps<WeightType::kBF16>, 2>>();
    case WeightType::kF32:
      break;
  }
  static_cast<void>(w);
  return KernelOf<FloatKernel<FloatSteps<WeightType::kF32>, 4>>();
}

// Rows in slices: op(first, last).
template <class Op>
HWY_ATTR void ForSlices(const InputRows& x, uint32_t tile_rows, const Op& op) {
  const auto fit = static_cast<uint32_t>(std::max<size_t>(1, kSliceBytes / x.stride));
  const uint32_t most = std::min(kMaxSlice, std::max(fit, 2 * tile_rows));
  const uint32_t num_slices = (x.num + most - 1) / most;
  for (uint32_t s = 0; s < num_slices; s++) {
    op(static_cast<uint32_t>(uint64_t{x.num} * s / num_slices),
       static_cast<uint32_t>(uint64_t{x.num} * (s + 1) / num_slices));
  }
}

HWY_ATTR void MultiplyPart(const Product& p, uint32_t panel_begin, uint32_t panel_end) {
  alignas(64) Sums sums;
  const PanelKernel kernel = KernelOf(*p.w, p.part->type);
  ForSlices(p.x, kernel.tile_rows, [&](uint32_t first, uint32_t last) {
    for (uint32_t panel = panel_begin; panel < panel_end; panel++)
      kernel.multiply(p, panel, PanelData(*p.part, panel + 1), first, last, sums);
  });
}

HWY_ATTR void MultiplyPanels(const PackedMatrix& w, InputRows x, float* y, size_t y_stride,
                             const float* residual, size_t residual_stride, uint32_t panel_begin,
                             uint32_t panel_end) {
  for (const PackedMatrix::Part& part : w.parts()) {
    const uint32_t begin = std::max(panel_begin, part.first_panel);
    const uint32_t end = std::min(panel_end, part.first_panel + part.panels);
    if (begin < end)
      MultiplyPart({&w, &part, x, y, y_stride, residual, residual_stride}, begin, end);
  }
}

// The panels of one half of a gated matrix, and how they are multiplied.
struct GatedHalf {
  Product product;
  PanelKernel kernel;
  uint32_t first_panel;

  const uint8_t* Data(uint32_t block) const {
    return PanelData(*product.part, first_panel + block);
  }
  HWY_ATTR void Multiply(uint32_t block, const uint8_t* next, uint32_t first, uint32_t last,
                         Sums& sums) const {
    kernel.multiply(product, first_panel + block, next, first, last, sums);
  }
};

HWY_ATTR inline GatedHalf HalfFrom(const PackedMatrix& w, const InputRows& x, uint32_t panel) {
  const PackedMatrix::Part* part = w.parts().data();
  while (panel >= part->first_panel + part->panels) part++;
  return {{&w, part, x, nullptr, 0, nullptr, 0}, KernelOf(w, part->type), panel};
}

// A panel of gates and the panel of the same outputs of `up` give a block of quantised inputs a
// row.
HWY_ATTR void SwiGluPanels(const PackedMatrix& w, InputRows x, std::byte* out, size_t out_stride,
                           uint32_t block_begin, uint32_t block_end) {
  alignas(64) Sums gates, ups;
  const GatedHalf gate = HalfFrom(w, x, 0), up = HalfFrom(w, x, w.panels() / 2);
  ForSlices(x, gate.kernel.tile_rows, [&](uint32_t first, uint32_t last) {
    for (uint32_t block = block_begin; block < block_end; block++) {
      gate.Multiply(block, up.Data(block), first, last, gates);
      up.Multiply(block, gate.Data(block + 1), first, last, ups);
      EmitGated(gates[0], ups[0], last - first,
                out + first * out_stride + block * sizeof(QuantBlock), out_stride);
    }
  });
}

inline Isa TargetIsa() {
#if HWY_TARGET <= HWY_AVX3
  return Isa::kAvx512;
#elif HWY_TARGET == HWY_AVX2
  return Isa::kAvx2;
#elif HWY_TARGET == HWY_NEON
  return Isa::kNeon;
#else
  return Isa::kBaseline;
#endif
}

inline bool MultipliesBF16() {
#if HWY_TARGET == HWY_AVX3_DL
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace kvlink::kernel
#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC pop_options
#endif
HWY_AFTER_NAMESPACE();
#endif
