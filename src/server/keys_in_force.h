// KeysInForce: the API keys that requests are judged by now, and the quotas of the cache that
// follow from them.
//
// Thread-safe: who asks gets the keys as they are, and keeps those while others come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kvlink/cache.h"
#include "server/api_keys.h"
#include "server/tenants.h"

namespace kvlink::server {

class KeysInForce {
 public:
  // The cache must outlive this.
  KeysInForce(Cache& cache, ApiKeys keys);

  std::shared_ptr<const ApiKeys> Get() const;
  // The cache learns which scopes have quotas, and which have none any more.
  void Replace(ApiKeys keys);
  // As many tokens of KV as a tenant's quota holds; 0: it has none.
  uint32_t QuotaTokens(const TenantSettings& tenant) const;

 private:
  Cache& cache_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_;     // guarded by mutex_
  std::map<std::string, uint64_t> quotas_;  // that the cache was told; guarded by mutex_
};

}  // namespace kvlink::server
