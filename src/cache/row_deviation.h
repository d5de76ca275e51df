// ValueDeviation: how far a recomputed row has moved from the row that it stands in for.
#pragma once

#include <cstdint>

#include "kvlink/kv_shape.h"
#include "kvlink/view.h"

namespace kvlink::cache {

// The relative change of V over all layers and KV heads:
//     sqrt(sum (V_a - V_b)^2 / sum V_b^2).
// V has no position, so rows of different positions compare. 0 when both are zero, infinite when
// only `b` is; NaN when a value is. Cost: about a nanosecond an element.
double ValueDeviation(const KvShape& shape, const BlockView& a, uint32_t row_a, const BlockView& b,
                      uint32_t row_b);
// Likewise, of one layer.
double ValueDeviation(const KvShape& shape, uint32_t layer, const BlockView& a, uint32_t row_a,
                      const BlockView& b, uint32_t row_b);

}  // namespace kvlink::cache
