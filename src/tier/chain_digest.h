// ChainDigest: the name of a block that holds across processes and machines: SHA-256 over
// everything its rows depend on.
//
//   root = SHA-256("kvlink-root\0" extras)      next = SHA-256(parent's digest, tokens as i32 LE)
//
// The extras are typed, length-prefixed fields (base/key_builder.h): model fingerprint, tenant,
// salt. A block's address in a tier is the first 16 bytes of its digest (AddressOf), which, unlike
// the 128-bit XXH3 keys inside the process, nobody can make collide; the whole digest goes into the
// block as its Identity and is compared on every load. No seed: equal in every process.
// Cost: half a microsecond for a block of 32 tokens.
#pragma once

#include <span>
#include <string_view>

#include "base/hash.h"
#include "kvlink/kv_shape.h"
#include "tier/block_codec.h"

namespace kvlink::tier {

Identity RootDigest(std::string_view extras);
Identity NextDigest(const Identity& parent, std::span<const TokenId> tokens);
// The digest of arbitrary bytes, for keys that other engines make.
Identity DigestOf(std::string_view bytes);

BlockKey AddressOf(const Identity& digest);

}  // namespace kvlink::tier
