#include "base/hash.h"

#include <xxhash.h>

namespace kvlink::base {

BlockKey Hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

uint64_t Hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct StreamHash64::State {
  XXH3_state_t xxh;
};

StreamHash64::StreamHash64() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh);
}

StreamHash64::~StreamHash64() = default;

void StreamHash64::Append(std::string_view bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}

uint64_t StreamHash64::Value() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace kvlink::base
