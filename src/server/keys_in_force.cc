#include "server/keys_in_force.h"

#include <algorithm>
#include <utility>

namespace kvlink::server {

KeysInForce::KeysInForce(Cache& cache, ApiKeys keys) : cache_(cache) { Replace(std::move(keys)); }

std::shared_ptr<const ApiKeys> KeysInForce::Get() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

void KeysInForce::Replace(ApiKeys keys) {
  auto replaced = std::make_shared<const ApiKeys>(std::move(keys));
  std::map<std::string, uint64_t> quotas = replaced->CacheQuotas();
  const std::lock_guard lock(mutex_);
  for (const auto& [scope, bytes] : quotas_) {
    if (!quotas.contains(scope)) cache_.SetQuota(scope, 0);
  }
  for (const auto& [scope, bytes] : quotas) cache_.SetQuota(scope, bytes);
  quotas_.swap(quotas);
  keys_.swap(replaced);
}

uint32_t KeysInForce::QuotaTokens(const TenantSettings& tenant) const {
  if (tenant.cache_bytes == 0) return 0;
  const KvShape& shape = cache_.shape();
  const uint64_t tokens = tenant.cache_bytes / shape.page_bytes() * shape.tokens_per_block;
  return static_cast<uint32_t>(std::clamp<uint64_t>(tokens, 1, UINT32_MAX));
}

}  // namespace kvlink::server
