// Digest: SHA-256 of bytes. What has the same digest is the same: nobody can make two chunks that
// have one, so that a checkpoint from elsewhere cannot smuggle its bytes into another.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace kvlink::ckpt {

struct Digest {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Digest&) const = default;
};

Digest Sha256(std::string_view bytes);

std::string ToHex(const Digest& digest);               // 64 lower-case digits
std::optional<Digest> ParseHex(std::string_view hex);  // nothing: not such a text

struct DigestHash {
  size_t operator()(const Digest& digest) const {
    size_t value = 0;
    std::memcpy(&value, digest.bytes.data(), sizeof(value));
    return value;
  }
};

}  // namespace kvlink::ckpt
