// The compressions of the block format, behind one pair of functions.
//
// kZstdPlanes splits the payload, a run of 16-bit elements, into the plane of low bytes and the
// plane of high bytes, since the exponents of neighbouring numbers resemble each other and their
// mantissas do not; then ZSTD.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "tier/block_codec.h"

namespace kvlink::tier {

// Empty when the result would have more than `most` bytes.
std::optional<std::string> Compress(std::span<const std::byte> payload, Compression compression,
                                    size_t most);
// False when `stored` does not give exactly target.size() bytes. Any bytes may be passed in.
bool Decompress(std::span<const std::byte> stored, Compression compression,
                std::span<std::byte> target);

}  // namespace kvlink::tier
