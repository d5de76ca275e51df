#include "match/block_key.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/endian.h"
#include "base/key_builder.h"

namespace kvlink::match {
namespace {

BlockKey MaskOf(int hash_bits) {
  KVLINK_CHECK(hash_bits >= 1 && hash_bits <= 128) << "hash_bits " << hash_bits;
  const auto low = [](int bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; };
  return {low(hash_bits), hash_bits > 64 ? low(hash_bits - 64) : 0};
}

BlockKey Masked(const BlockKey& key, const BlockKey& mask) {
  return {key.lo & mask.lo, key.hi & mask.hi};
}

}  // namespace

KeyMaker::KeyMaker(std::string_view model_fingerprint, int hash_bits)
    : model_(base::KeyBuilder().Add("model", model_fingerprint).bytes()),
      mask_(MaskOf(hash_bits)) {}

Root KeyMaker::MakeRoot(const Namespace& ns) const {
  Root root;
  root.extras = model_ + base::KeyBuilder().Add("tenant", ns.tenant).Add("salt", ns.salt).bytes();
  root.key = Masked(base::Hash128(root.extras), mask_);
  root.tenant = ns.tenant;
  return root;
}

std::string KeyMaker::SaltOf(std::string_view extras) const {
  KVLINK_CHECK(extras.starts_with(model_));
  extras.remove_prefix(model_.size());
  std::string_view value;
  for (const std::string_view name : {"tenant", "salt"}) {
    uint32_t bytes = 0;
    extras.remove_prefix(1);  // type
    KVLINK_CHECK(base::TakeLe(extras, bytes) && extras.substr(0, bytes) == name);
    extras.remove_prefix(bytes);
    KVLINK_CHECK(base::TakeLe(extras, bytes) && bytes <= extras.size());
    value = extras.substr(0, bytes);
    extras.remove_prefix(bytes);
  }
  return std::string(value);
}

BlockKey KeyMaker::Next(const BlockKey& parent, std::span<const TokenId> tokens) const {
  KVLINK_CHECK(tokens.size() <= kMaxTokensPerBlock) << tokens.size() << " tokens in a block";
  std::array<std::byte, sizeof(BlockKey) + kMaxTokensPerBlock * sizeof(TokenId)> bytes;
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return Masked(base::Hash128(std::span(bytes).first(sizeof(parent) + tokens.size_bytes())), mask_);
}

}  // namespace kvlink::match
