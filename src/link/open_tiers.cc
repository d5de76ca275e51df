// OpenTiers: from the options of a cache to the tiers they name, fastest first.
#include <string>
#include <utility>
#include <vector>

#include "link/lower_tiers.h"
#include "tier/cold_models.h"
#include "tier/cold_tier.h"
#include "tier/remote_tier.h"

namespace kvlink::link {

Result<std::unique_ptr<tier::TierStore>> OpenTiers(const CacheOptions& options,
                                                   std::vector<std::string>* other_models) {
  const TierOptions& wanted = options.tiers;
  std::vector<std::unique_ptr<tier::BlockTier>> tiers;
  if (!wanted.cold_dir.empty()) {
    auto cold =
        tier::OpenColdTier({.directory = wanted.cold_dir, .budget_bytes = wanted.cold_bytes});
    if (!cold.ok()) return cold.status();
    tiers.push_back(std::move(cold).value());
    *other_models = tier::NoteColdModel(wanted.cold_dir, options.model_fingerprint);
  }
  if (!wanted.remote_url.empty()) {
    auto parsed = tier::ParseRemoteUrl(wanted.remote_url);
    if (!parsed.ok()) return parsed.status();
    parsed->ca_file = wanted.remote_ca_file;
    auto remote = tier::OpenRemoteTier(*parsed);
    if (!remote.ok()) return remote.status();
    tiers.push_back(std::move(remote).value());
  }
  if (tiers.empty()) return std::unique_ptr<tier::TierStore>();
  return tier::TierStore::Create(
      {.model_fingerprint = options.model_fingerprint, .queue_bytes = wanted.queue_bytes},
      std::move(tiers));
}

}  // namespace kvlink::link
