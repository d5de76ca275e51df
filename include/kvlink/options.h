// CacheOptions: every parameter of the cache, with the defaults that just work.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvlink/block_observer.h"
#include "kvlink/kv_shape.h"
#include "kvlink/similar.h"
#include "kvlink/similar_options.h"
#include "kvlink/status.h"
#include "kvlink/tier.h"

namespace kvlink {

enum class Sharing : uint8_t {
  kOff,    // a prompt is computed once per request, nothing is shared between requests; forks copy
  kExact,  // equal prefixes share pages, token by token
};

// What similar reuse needs to know of the model, beside its parameters.
struct SimilarModel {
  AttentionTraits attention;
  std::vector<std::string> token_texts;  // by token id: what each stands for
  std::vector<uint8_t> special_tokens;   // by token id: not 0 for turn and role markers
  uint32_t embedding = 0;                // width of the residual stream; for modes with checkpoints
  double prefill_us_per_row = 1000;      // measured; sets how long a lookup may search
  // What calibration found; a class without trials is closed.
  std::array<SimilarTrials, static_cast<size_t>(EditClass::kCount)> calibrated{};
};

struct CacheOptions {
  KvShape shape;
  Sharing sharing = Sharing::kExact;
  size_t budget_bytes = size_t{1} << 30;  // hard: pages, difference cells and what is in flight
  // Everything the K and V depend on besides tokens: weights digest, architecture, rope settings,
  // KV type, layout version, numeric path. Part of every block key.
  std::string model_fingerprint;
  // Share of a block's cells above which a full copy replaces a difference block.
  double cow_copy_threshold = 0.15;
  double pin_budget = 0.5;                        // share of the budget that pins may hold
  size_t output_memory_bytes = size_t{16} << 20;  // own outputs remembered for splicing
  SimilarOptions similar;                         // off by default
  SimilarModel similar_model;
  TierOptions tiers;                  // none by default
  BlockObserver* observer = nullptr;  // told of full blocks that come and go; outlives the cache
  int hash_bits = 128;                // fewer only in tests, to force collisions
  bool poison = false;                // fill unowned pages with NaN
  std::function<std::chrono::steady_clock::time_point()> clock;  // default: steady_clock::now
};

class Cache;
// kInvalidArgument: a value is out of range (the message names it).
Result<std::unique_ptr<Cache>> CreateCache(CacheOptions options);

}  // namespace kvlink
