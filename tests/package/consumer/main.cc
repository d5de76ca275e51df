// Creates a cache through the installed package: headers and archive fit together.
#include <cstdio>

#include "kvlink/cache.h"

int main() {
  kvlink::CacheOptions options;
  options.shape = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 64};
  options.budget_bytes = size_t{1} << 22;
  options.model_fingerprint = "consumer";
  const auto cache = kvlink::CreateCache(options);
  if (!cache.ok()) {
    std::fprintf(stderr, "%s\n", cache.status().ToString().c_str());
    return 1;
  }
  const kvlink::CacheStats stats = (*cache)->Stats();
  return stats.total_pages > 0 && stats.free_pages == stats.total_pages ? 0 : 1;
}
