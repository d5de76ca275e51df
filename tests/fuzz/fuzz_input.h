// FuzzInput: takes numbers and pieces off the front of a fuzzer's bytes. Where they are used up,
// every number is 0 and every piece is empty, so that any bytes are an input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace kvlink::fuzz {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* bytes, size_t size)
      : rest_(reinterpret_cast<const char*>(bytes), size) {}

  bool empty() const { return rest_.empty(); }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  // In [0, bound). Requires: 0 < bound <= 65536. Takes two bytes where one cannot say it.
  uint64_t Below(uint64_t bound) {
    KVLINK_CHECK(bound > 0 && bound <= 65536) << bound;
    uint64_t value = Byte();
    if (bound > 256) value = value << 8 | Byte();
    return value % bound;
  }
  std::string_view Take(size_t most) {
    const std::string_view piece = rest_.substr(0, std::min(most, rest_.size()));
    rest_.remove_prefix(piece.size());
    return piece;
  }
  std::string_view Rest() { return Take(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace kvlink::fuzz
