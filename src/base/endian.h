// Little-endian integers in byte strings, whatever the machine: for keys and formats that leave the
// process.
//
//   PutLe(out, uint32_t{1})  appends  01 00 00 00
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvlink::base {

template <std::unsigned_integral T>
void PutLe(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// Requires: bytes.size() >= sizeof(T).
template <std::unsigned_integral T>
T GetLe(std::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value =
        static_cast<T>(value | (static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i)));
  }
  return value;
}

// Takes the integer off the front of `bytes`. False, and nothing is taken, when too few bytes are
// left.
template <std::unsigned_integral T>
[[nodiscard]] bool TakeLe(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof(T)) return false;
  value = GetLe<T>(bytes);
  bytes.remove_prefix(sizeof(T));
  return true;
}

}  // namespace kvlink::base
