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
  float* y;
  size_t y_stride;
  const float* residual;  // or null
  size_t residual_stride;
};

using Sums = float[kMaxSlice][kPanelRows];

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

// So that StoreSums need not wait for the lines that it writes.
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

// The tiles of one type. kStep: the inputs that chunks are multiples of, and their bytes in a panel
// and in a row of activations. AheadBytes: weights that a tile passes between two steps of Ahead.
// Arguments travel in registers: reading back a structure that was just written can wait for every
// store before it.
template <WeightType kType>
struct IntKernel {
  static constexpr PackedLayout kLayout = LayoutOf(kType);
  static constexpr uint32_t kTileRows = IntTileRows(kLayout.bits);
  static constexpr uint32_t kStep = 8 * kQuantBlock;
  static constexpr size_t kStepBytes = 8 / kLayout.group * kLayout.group_bytes();
  static constexpr size_t kStepInputBytes = 8 * sizeof(QuantBlock);
  static constexpr size_t AheadBytes(uint32_t) { return kLayout.group_bytes() / kLayout.group; }

  template <uint32_t kRows>
  HWY_ATTR static void Tile(const uint8_t* w, const std::byte* x, size_t x_stride, uint32_t inputs,
                            float* sums, const uint8_t* next, size_t next_step) {
    IntTile tile = {w, 0, x, x_stride, inputs / kQuantBlock, sums, {next, next_step}};
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

  template <uint32_t kRows>
  HWY_ATTR static void Tile(const uint8_t* w, const std::byte* x, size_t x_stride, uint32_t inputs,
                            float* sums, const uint8_t* next, size_t next_step) {
    inputs = (inputs + Steps::kInputs - 1) / Steps::kInputs * Steps::kInputs;
    FloatTile tile = {w, 0, x, x_stride, inputs, sums, {next, next_step}};
    for (; tile.column < kFloatPanelColumns; tile.column += FloatTileColumns(kRows)) {
      MultiplyFloatTile<Steps, kWeightBytes, kRows>(tile);
      tile.ahead = {};
    }
  }
};

using TileFn = void (*)(const uint8_t* w, const std::byte* x, size_t x_stride, uint32_t inputs,
                        float* sums, const uint8_t* next, size_t next_step);

template <class Kernel, uint32_t... kRows>
constexpr auto TileTable(std::integer_sequence<uint32_t, kRows...>) {
  return std::array<TileFn, sizeof...(kRows)>{&Kernel::template Tile<kRows + 1>...};
}

// Rows [first, last) against one panel.
template <class Kernel>
HWY_ATTR void MultiplyPanel(const Product& p, uint32_t panel, uint32_t first, uint32_t last,
                            Sums& sums) {
  static constexpr auto kTiles =
      TileTable<Kernel>(std::make_integer_sequence<uint32_t, Kernel::kTileRows>{});
  const uint32_t inputs = p.w->inputs();
  const uint32_t row_in_part = (panel - p.part->first_panel) * kPanelRows;
  const uint32_t lanes = std::min(kPanelRows, p.part->rows - row_in_part);
  const uint32_t output = p.part->first_row + row_in_part;
  const auto* w = reinterpret_cast<const uint8_t*>(p.part->data) +
                  (panel - p.part->first_panel) * p.part->panel_bytes;
  const uint32_t num = last - first;
  const uint32_t num_tiles = (num + Kernel::kTileRows - 1) / Kernel::kTileRows;
  const uint32_t steps = std::max<uint32_t>(1, kChunkBytes / Kernel::kStepBytes);
  const uint32_t chunk = num_tiles == 1 ? inputs : steps * Kernel::kStep;
  const size_t chunk_bytes = steps * Kernel::kStepBytes;
  // A single tile fetches what it will read soon; of several, each fetches its share of what all
  // will read next.
  const uint32_t tall = num % num_tiles;
  const auto height_of = [&](uint32_t i) { return num / num_tiles + (i < tall ? 1 : 0); };
  const size_t share = (chunk_bytes / num_tiles + 63) / 64 * 64;
  const size_t passed = Kernel::AheadBytes(num_tiles == 1 ? num : Kernel::kTileRows);
  const size_t ahead = (passed / num_tiles + 63) / 64 * 64;
  const std::byte* x = p.x.data + first * p.x.stride;
  for (uint32_t begin = 0; begin < inputs; begin += chunk) {
    const uint32_t end = std::min(inputs, begin + chunk);
    const uint8_t* next = w + (num_tiles == 1 ? kAhead : chunk_bytes);
    uint32_t t = 0;
    for (uint32_t i = 0; i < num_tiles; i++) {
      const uint32_t height = height_of(i);
      const uint32_t row = first + t;
      if (begin == 0) LoadSums(p, row, height, output, lanes, sums[t]);
      if (end == inputs) FetchOutputs(p, row, height, output);
      kTiles[height - 1](w, x + t * p.x.stride, p.x.stride, end - begin, sums[t], next, ahead);
      if (end == inputs) StoreSums(p, row, height, output, lanes, sums[t]);
      next += share;
      t += height;
    }
    w += chunk_bytes;
    x += steps * Kernel::kStepInputBytes;
  }
}

template <class Kernel>
HWY_ATTR void MultiplyPart(const Product& p, uint32_t panel_begin, uint32_t panel_end) {
  alignas(64) Sums sums;
  const auto fit = static_cast<uint32_t>(std::max<size_t>(1, kSliceBytes / p.x.stride));
  const uint32_t most = std::min(kMaxSlice, std::max(fit, 2 * Kernel::kTileRows));
  const uint32_t num_slices = (p.x.num + most - 1) / most;
  for (uint32_t s = 0; s < num_slices; s++) {
    const auto first = static_cast<uint32_t>(uint64_t{p.x.num} * s / num_slices);
    const auto last = static_cast<uint32_t>(uint64_t{p.x.num} * (s + 1) / num_slices);
    for (uint32_t panel = panel_begin; panel < panel_end; panel++)
      MultiplyPanel<Kernel>(p, panel, first, last, sums);
  }
}

HWY_ATTR void MultiplyTyped(const Product& p, uint32_t begin, uint32_t end) {
  switch (p.part->type) {
    case WeightType::kQ4_0:
      return MultiplyPart<IntKernel<WeightType::kQ4_0>>(p, begin, end);
    case WeightType::kQ4_1:
      return MultiplyPart<IntKernel<WeightType::kQ4_1>>(p, begin, end);
    case WeightType::kQ5_0:
      return MultiplyPart<IntKernel<WeightType::kQ5_0>>(p, begin, end);
    case WeightType::kQ5_1:
      return MultiplyPart<IntKernel<WeightType::kQ5_1>>(p, begin, end);
    case WeightType::kQ8_0:
      return MultiplyPart<IntKernel<WeightType::kQ8_0>>(p, begin, end);
    case WeightType::kQ4_K:
      return MultiplyPart<IntKernel<WeightType::kQ4_K>>(p, begin, end);
    case WeightType::kQ5_K:
      return MultiplyPart<IntKernel<WeightType::kQ5_K>>(p, begin, end);
    case WeightType::kQ6_K:
      return MultiplyPart<IntKernel<WeightType::kQ6_K>>(p, begin, end);
    case WeightType::kF16:
      return MultiplyPart<FloatKernel<FloatSteps<WeightType::kF16>, 2>>(p, begin, end);
    case WeightType::kBF16:
#if HWY_TARGET == HWY_AVX3_DL
      if (p.w->format() == InputFormat::kBF16)
        return MultiplyPart<FloatKernel<NativeBF16Steps, 2>>(p, begin, end);
#endif
      return MultiplyPart<FloatKernel<FloatSteps<WeightType::kBF16>, 2>>(p, begin, end);
    case WeightType::kF32:
      return MultiplyPart<FloatKernel<FloatSteps<WeightType::kF32>, 4>>(p, begin, end);
  }
}

HWY_ATTR void MultiplyPanels(const PackedMatrix& w, InputRows x, float* y, size_t y_stride,
                             const float* residual, size_t residual_stride, uint32_t panel_begin,
                             uint32_t panel_end) {
  for (const PackedMatrix::Part& part : w.parts()) {
    const uint32_t begin = std::max(panel_begin, part.first_panel);
    const uint32_t end = std::min(panel_end, part.first_panel + part.panels);
    if (begin < end)
      MultiplyTyped({&w, &part, x, y, y_stride, residual, residual_stride}, begin, end);
  }
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
