#include "cache/row_deviation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cache/half.h"

namespace kvlink::cache {
namespace {

constexpr uint32_t kChunk = 64;

float FromBF16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

template <typename Element, typename Convert>
void Decode(const std::byte* from, uint32_t count, Convert convert, float* to) {
  std::array<Element, kChunk> raw;
  std::memcpy(raw.data(), from, count * sizeof(Element));
  for (uint32_t i = 0; i < count; ++i) to[i] = convert(raw[i]);
}

// Elements [first, first + count) of the row's V; count is at most kChunk.
void DecodeValues(const KvShape& shape, const KvRowView<std::byte>& row, uint32_t first,
                  uint32_t count, float* to) {
  const std::byte* from = row.v + first * shape.element_bytes();
  switch (shape.type) {
    case KvType::kF16:
      return Decode<uint16_t>(from, count, FromF16, to);
    case KvType::kBF16:
      return Decode<uint16_t>(from, count, FromBF16, to);
    case KvType::kQ8_0: {
      uint16_t scale_bits;
      std::memcpy(&scale_bits, row.v_scale, sizeof(scale_bits));
      const float scale = FromF16(scale_bits);
      return Decode<int8_t>(
          from, count, [scale](int8_t q) { return scale * q; }, to);
    }
  }
}

struct SquareSums {
  double changed = 0, all = 0;

  double Ratio() const {
    if (changed == 0) return 0;
    return all > 0 ? std::sqrt(changed / all) : std::numeric_limits<double>::infinity();
  }
};

void AddLayer(const KvShape& shape, uint32_t layer, const BlockView& a, uint32_t row_a,
              const BlockView& b, uint32_t row_b, SquareSums* sums) {
  std::array<float, kChunk> va, vb;
  for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
    const auto place_a = KvRowOf(shape, a, layer, head, row_a);
    const auto place_b = KvRowOf(shape, b, layer, head, row_b);
    for (uint32_t first = 0; first < shape.head_dim; first += kChunk) {
      const uint32_t count = std::min(kChunk, shape.head_dim - first);
      DecodeValues(shape, place_a, first, count, va.data());
      DecodeValues(shape, place_b, first, count, vb.data());
      float chunk_changed = 0, chunk_all = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const float difference = va[i] - vb[i];
        chunk_changed += difference * difference;
        chunk_all += vb[i] * vb[i];
      }
      sums->changed += chunk_changed;
      sums->all += chunk_all;
    }
  }
}

}  // namespace

double ValueDeviation(const KvShape& shape, const BlockView& a, uint32_t row_a, const BlockView& b,
                      uint32_t row_b) {
  SquareSums sums;
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    AddLayer(shape, layer, a, row_a, b, row_b, &sums);
  }
  return sums.Ratio();
}

double ValueDeviation(const KvShape& shape, uint32_t layer, const BlockView& a, uint32_t row_a,
                      const BlockView& b, uint32_t row_b) {
  SquareSums sums;
  AddLayer(shape, layer, a, row_a, b, row_b, &sums);
  return sums.Ratio();
}

}  // namespace kvlink::cache
