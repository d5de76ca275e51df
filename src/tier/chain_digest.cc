#include "tier/chain_digest.h"

#include <openssl/sha.h>

#include <string>

#include "base/endian.h"

namespace kvlink::tier {

static_assert(std::tuple_size_v<Identity> == SHA256_DIGEST_LENGTH);

Identity DigestOf(std::string_view bytes) {
  Identity digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

Identity RootDigest(std::string_view extras) {
  std::string bytes("kvlink-root\0", 12);
  bytes.append(extras);
  return DigestOf(bytes);
}

Identity NextDigest(const Identity& parent, std::span<const TokenId> tokens) {
  std::string bytes(reinterpret_cast<const char*>(parent.data()), parent.size());
  bytes.reserve(parent.size() + tokens.size_bytes());
  for (const TokenId token : tokens) base::PutLe(bytes, static_cast<uint32_t>(token));
  return DigestOf(bytes);
}

BlockKey AddressOf(const Identity& digest) {
  const std::string_view bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
  return {base::GetLe<uint64_t>(bytes), base::GetLe<uint64_t>(bytes.substr(8))};
}

}  // namespace kvlink::tier
