// CacheState: what a cache and its sequences share, and the one lock that guards it. Sequences hold
// it too, so they may outlive the cache that began them.
//
// Lock: `mutex` guards `store`, `in_flight`, `donors`, `sequence_*` and most of `tiers`.
// Lookups read; beginning, loading, committing, forking, releasing, pinning and clearing write.
// Counters are atomic, `texts`, `gate` and the store of the tiers have locks of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "link/block_store.h"
#include "link/counters.h"
#include "link/donors.h"
#include "link/lower_tiers.h"
#include "link/similar_gate.h"
#include "match/in_flight_table.h"
#include "match/text_memory.h"
#include "verify/reuse_mode.h"

namespace kvlink::link {

struct CacheState {
  CacheState(CacheOptions cache_options, std::unique_ptr<Counters> cache_counters,
             std::unique_ptr<Donors> cache_donors, verify::LayerPlan layer_plan,
             std::unique_ptr<LowerTiers> lower_tiers, std::unique_ptr<BlockStore> block_store)
      : options(std::move(cache_options)),
        keys(options.model_fingerprint, options.hash_bits),
        counters(std::move(cache_counters)),
        texts(options.output_memory_bytes),
        gate(cache_donors ? std::make_unique<SimilarGate>(options) : nullptr),
        layers(std::move(layer_plan)),
        donors(std::move(cache_donors)),
        tiers(std::move(lower_tiers)),
        store(std::move(block_store)) {}

  const CacheOptions options;
  const match::KeyMaker keys;
  const std::unique_ptr<Counters> counters;
  match::TextMemory texts;
  const std::unique_ptr<SimilarGate> gate;  // null: similar reuse is off
  const verify::LayerPlan layers;           // of the similar mode, when it is on

  mutable base::SharedMutex mutex;
  const std::unique_ptr<Donors> donors KVLINK_GUARDED_BY(mutex);  // null: similar reuse is off
  const std::unique_ptr<LowerTiers> tiers;  // null: none; lower_tiers.h says what the lock guards
  const std::unique_ptr<BlockStore> store KVLINK_GUARDED_BY(mutex);
  match::InFlightTable in_flight KVLINK_GUARDED_BY(mutex);
  uint64_t sequence_bytes KVLINK_GUARDED_BY(mutex) = 0;  // block tables of live sequences
  uint64_t sequence_pages KVLINK_GUARDED_BY(mutex) = 0;  // that these would need without sharing
  uint64_t last_sequence_id KVLINK_GUARDED_BY(mutex) = 0;
};

// As CreateCache. `tiers` stands in for those that the options name; null: none.
Result<std::shared_ptr<CacheState>> CreateState(CacheOptions options,
                                                std::unique_ptr<tier::TierStore> tiers = nullptr);
// Likewise, a cache.
Result<std::unique_ptr<Cache>> CreateCacheOnTiers(CacheOptions options,
                                                  std::unique_ptr<tier::TierStore> tiers);

}  // namespace kvlink::link
