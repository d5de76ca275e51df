// How packed weights lie in memory, per type.
//
// A panel holds 32 output rows as two halves of 16 lanes. Its inputs come in groups of `group`
// blocks of 32; a group is {half 0, half 1}, and each half is
//     `group` blocks of quants, then the scales of these blocks.
// Quants of a block: for j = 0..7 a vector of 64 bytes {inputs 4 j .. 4 j + 3 of lane 0, of lane 1,
// ...}, so that an int8 dot product of one vector with four broadcast activations needs no shuffle.
// Vectors j and j + 4 share the nibbles of one stored vector. Fifth bits follow in one vector (bit
// j of a byte belongs to vector j), fifth and sixth bits in two (bits 2 (j % 4) of vector j / 4).
//     bits 4: 256 bytes   5: 320   6: 384   8: 512
// Scales of a half (every half is a multiple of 64 bytes, so that no load crosses a cache line):
//     kF16        {d [16] F16} per block
//     kF16Affine  {d [16], m [16]} F16 per block
//     kSuper      {scale [16], min [16]} bytes per block, then {d [16], dmin [16]} F16 for the
//                 group: weight = d * scale * u - dmin * min
//     kSuperPairs {scale [16] of the first 16 inputs, scale [16] of the last} signed bytes per
//                 block, then {d [16]} F16
// Types without minima are symmetric: w = d (u - 2^offset_bits).
// Float types: F16 and F32 as [input][32 rows], BF16 as [pair of inputs][32 rows][2].
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/packed_matmul.h"

namespace kvlink::kernel {

inline constexpr uint32_t kLanes16 = 16;      // rows of half a panel
inline constexpr uint32_t kFloatGroup = 128;  // float products are summed by so many inputs

enum class ScaleKind : uint8_t { kF16, kF16Affine, kSuper, kSuperPairs };

struct PackedLayout {
  uint32_t bits = 4;
  ScaleKind scales = ScaleKind::kF16;
  uint32_t group = 1;        // blocks
  uint32_t offset_bits = 0;  // of the symmetric types

  constexpr bool affine() const {
    return scales == ScaleKind::kF16Affine || scales == ScaleKind::kSuper;
  }
  constexpr bool pairs() const { return scales == ScaleKind::kSuperPairs; }
  constexpr size_t quant_bytes() const { return bits * 64; }
  constexpr size_t scale_offset() const { return group * quant_bytes(); }
  // Of block i of a group, in its half; the super-scales lie at index `group`.
  constexpr size_t scales_of(uint32_t i) const {
    return scale_offset() + i * (scales == ScaleKind::kF16Affine ? 64 : 32);
  }
  constexpr size_t half_bytes() const {
    const size_t end = scales_of(group) + (scales == ScaleKind::kSuper        ? 64
                                           : scales == ScaleKind::kSuperPairs ? 32
                                                                              : 0);
    return (end + 63) / 64 * 64;
  }
  constexpr size_t group_bytes() const { return 2 * half_bytes(); }
};

constexpr PackedLayout LayoutOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {4, ScaleKind::kF16, 2, 3};
    case WeightType::kQ4_1:
      return {4, ScaleKind::kF16Affine, 1, 0};
    case WeightType::kQ5_0:
      return {5, ScaleKind::kF16, 2, 4};
    case WeightType::kQ5_1:
      return {5, ScaleKind::kF16Affine, 1, 0};
    case WeightType::kQ8_0:
      return {8, ScaleKind::kF16, 2, 7};
    case WeightType::kQ4_K:
      return {4, ScaleKind::kSuper, 8, 0};
    case WeightType::kQ5_K:
      return {5, ScaleKind::kSuper, 8, 0};
    case WeightType::kQ6_K:
      return {6, ScaleKind::kSuperPairs, 8, 5};
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kF32:
      break;
  }
  return {};
}

constexpr bool IsFloat(WeightType type) {
  return type == WeightType::kF16 || type == WeightType::kBF16 || type == WeightType::kF32;
}

constexpr size_t FloatBytes(WeightType type) { return type == WeightType::kF32 ? 4 : 2; }

constexpr size_t PanelBytes(WeightType type, uint32_t inputs) {
  if (IsFloat(type)) return (inputs + 1) / 2 * 2 * size_t{kPanelRows} * FloatBytes(type);
  const PackedLayout layout = LayoutOf(type);
  const uint32_t blocks = inputs / kQuantBlock;
  return (blocks + layout.group - 1) / layout.group * layout.group_bytes();
}

}  // namespace kvlink::kernel
