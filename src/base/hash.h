// Hashes of bytes: XXH3, 128 and 64 bits. Fast, not cryptographic: whoever finds something by such
// a hash compares the thing itself before believing it. Equal on every machine of the same byte
// order; no seed.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace kvlink::base {

// Identity of a block of tokens in its context (see match/block_key.h), or any other 128-bit hash.
struct BlockKey {
  uint64_t lo = 0, hi = 0;
  auto operator<=>(const BlockKey&) const = default;
};

BlockKey Hash128(std::span<const std::byte> bytes);
inline BlockKey Hash128(std::string_view bytes) {
  return Hash128(std::as_bytes(std::span(bytes.data(), bytes.size())));
}
uint64_t Hash64(std::string_view bytes);

// Hash64 of everything appended so far, readable after every Append. Hash64("ab") == Append("a"),
// Append("b").
class StreamHash64 {
 public:
  StreamHash64();
  ~StreamHash64();
  void Append(std::string_view bytes);
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlink::base

template <>
struct std::hash<kvlink::base::BlockKey> {
  size_t operator()(const kvlink::base::BlockKey& key) const noexcept { return key.lo ^ key.hi; }
};
