// Keys of blocks: a chain of hashes that starts at a root, which stands for everything that K and V
// depend on besides the tokens (model fingerprint) and for who may share (tenant, salt).
//
//   root = H(extras)      key(block) = H(key(parent or root), the block's tokens)
//
// A key says where to look, never that something was found: the index compares tokens, parent and
// extras.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "kvlink/cache.h"

namespace kvlink::match {

using base::BlockKey;

struct Root {
  // Typed, length-prefixed fields: compared, so that no collision crosses namespaces.
  std::string extras;
  BlockKey key;
  std::string tenant;  // whose quota the blocks count towards
};

class KeyMaker {
 public:
  // `hash_bits` in [1, 128]: fewer bits only in tests, to force collisions.
  KeyMaker(std::string_view model_fingerprint, int hash_bits = 128);
  Root MakeRoot(const Namespace& ns) const;
  // The salt of extras that MakeRoot made.
  std::string SaltOf(std::string_view extras) const;
  // Key of the block of `tokens` (at most kMaxTokensPerBlock) that follows the block, or root, of
  // key `parent`.
  BlockKey Next(const BlockKey& parent, std::span<const TokenId> tokens) const;

 private:
  std::string model_;  // the extras' first field
  BlockKey mask_;
};

}  // namespace kvlink::match
