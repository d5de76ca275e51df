// F16 as floats.
#pragma once

#include <bit>
#include <cstdint>

namespace kvlink::cache {

// Shifted into the place of a float's exponent and mantissa, a half is too small by 2^112;
// subnormals come out right, infinity and NaN as large numbers, so these are put back.
inline float FromF16(uint16_t half) {
  const float magnitude = std::bit_cast<float>(uint32_t{half & 0x7fffu} << 13) * 0x1p112f;
  const uint32_t special = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special | sign);
}

}  // namespace kvlink::cache
