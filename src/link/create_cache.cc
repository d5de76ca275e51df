// CreateCache: checks the options and puts the rooms together.
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/key_builder.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "link/cache_state.h"
#include "link/conductor.h"
#include "verify/forward_check.h"
#include "verify/reuse_mode.h"

namespace kvlink {
namespace {

Status Bad(const std::string& option, const std::string& seen, const std::string& wanted) {
  return {StatusCode::kInvalidArgument, option + " is " + seen + ", but must be " + wanted};
}

Status CheckShape(const KvShape& shape) {
  const std::string tokens = std::to_string(shape.tokens_per_block);
  if (shape.num_layers == 0) return Bad("shape.num_layers", "0", "above 0");
  if (shape.num_kv_heads == 0) return Bad("shape.num_kv_heads", "0", "above 0");
  if (shape.head_dim == 0) return Bad("shape.head_dim", "0", "above 0");
  if (!std::has_single_bit(shape.tokens_per_block) || shape.tokens_per_block < kMinTokensPerBlock ||
      shape.tokens_per_block > kMaxTokensPerBlock) {
    return Bad("shape.tokens_per_block", tokens, "8, 16, 32, 64 or 128");
  }
  if (shape.head_dim % shape.k_group() != 0) {
    return Bad(
        "shape.head_dim", std::to_string(shape.head_dim),
        "a multiple of " + std::to_string(shape.k_group()) + " with " + KvTypeName(shape.type));
  }
  return Status::Ok();
}

Status CheckOptions(const CacheOptions& options) {
  const Status shape = CheckShape(options.shape);
  if (!shape.ok()) return shape;
  const auto in_unit = [](double value) { return value >= 0 && value <= 1; };  // false for NaN
  if (!in_unit(options.cow_copy_threshold)) {
    return Bad("cow_copy_threshold", std::to_string(options.cow_copy_threshold), "in [0, 1]");
  }
  if (!in_unit(options.pin_budget)) {
    return Bad("pin_budget", std::to_string(options.pin_budget), "in [0, 1]");
  }
  if (options.hash_bits < 1 || options.hash_bits > 128) {
    return Bad("hash_bits", std::to_string(options.hash_bits), "1 to 128");
  }
  if (!(options.tiers.write_share >= 0 && options.tiers.write_share <= 1)) {
    return Bad("tiers.write_share", std::to_string(options.tiers.write_share), "in [0, 1]");
  }
  if (options.budget_bytes < options.shape.page_bytes()) {
    return Bad("budget_bytes", std::to_string(options.budget_bytes),
               "at least one page of " + std::to_string(options.shape.page_bytes()) + " bytes");
  }
  return Status::Ok();
}

Status CheckSimilar(const CacheOptions& options, verify::LayerPlan* layers) {
  const SimilarOptions& similar = options.similar;
  if (similar.policy == SimilarPolicy::kOff) return Status::Ok();
  const char* why = "";
  if (verify::CheckAttention(options.similar_model.attention, &why) != SimilarReason::kNone) {
    return {StatusCode::kFailedPrecondition,
            std::string("similar reuse is off for this model: ") + why};
  }
  const std::pair<const char*, double> shares[] = {
      {"similar.frequent_share", similar.frequent_share},
      {"similar.max_edit_share", similar.max_edit_share},
      {"similar.mask_similarity", similar.mask_similarity},
      {"similar.span_similarity", similar.span_similarity},
      {"similar.max_compute_share", similar.max_compute_share},
      {"similar.max_false_accepts", similar.max_false_accepts},
      {"similar.shadow_share", similar.shadow_share},
      {"similar.wasted_compute_share", similar.wasted_compute_share}};
  for (const auto& [name, value] : shares) {
    if (!(value >= 0 && value <= 1)) return Bad(name, std::to_string(value), "in [0, 1]");
  }
  if (!(similar.confidence > 0 && similar.confidence < 1)) {
    return Bad("similar.confidence", std::to_string(similar.confidence), "between 0 and 1");
  }
  if (!(similar.enlarge_factor >= 1)) {
    return Bad("similar.enlarge_factor", std::to_string(similar.enlarge_factor), "1 or more");
  }
  if (similar.fingerprint_window == 0 || similar.short_window == 0) {
    return Bad("similar.fingerprint_window or short_window", "0", "above 0");
  }
  if (similar.max_anchors == 0) return Bad("similar.max_anchors", "0", "above 0");
  const uint32_t num_layers = options.shape.num_layers;
  auto plan = verify::PlanLayers(similar, num_layers, verify::CheckpointsFor(similar, num_layers));
  if (!plan.ok()) return plan.status();
  if (!plan->checkpoints.empty() && options.similar_model.embedding == 0) {
    return Bad("similar_model.embedding", "0",
               std::string("the width of the residual stream: mode ") +
                   verify::ReuseModeName(similar.mode) + " keeps it at some layers");
  }
  *layers = std::move(plan).value();
  return Status::Ok();
}

}  // namespace

namespace link {

Result<std::shared_ptr<CacheState>> CreateState(CacheOptions options,
                                                std::unique_ptr<tier::TierStore> tier_store) {
  const Status valid = CheckOptions(options);
  if (!valid.ok()) return valid;
  verify::LayerPlan layers;
  const Status similar = CheckSimilar(options, &layers);
  if (!similar.ok()) return similar;
  options.shape.checkpoint_bytes = static_cast<uint32_t>(
      layers.checkpoints.size() * options.similar_model.embedding * sizeof(uint16_t));
  if (options.shape.checkpoint_bytes > 0) {
    options.cow_copy_threshold = 0;  // cells of a difference have no place for checkpoints
    // Pages hold more than the model says: no cache that keeps other layers may find them in a
    // tier.
    base::KeyBuilder key;
    key.Add("model", options.model_fingerprint);
    for (const uint32_t layer : layers.checkpoints) key.AddNumber("checkpoint", layer);
    options.model_fingerprint = std::move(key).bytes();
    const Status fits = CheckOptions(options);  // pages are larger now
    if (!fits.ok()) return fits;
  }
  if (!options.clock) options.clock = base::SteadyClock();
  auto counters = std::make_unique<Counters>();
  std::unique_ptr<Donors> donors;
  if (options.similar.policy != SimilarPolicy::kOff) {
    donors = std::make_unique<Donors>(options.similar, options.similar_model.token_texts);
  }
  std::vector<std::string> other_models;
  if (tier_store == nullptr && options.sharing != Sharing::kOff) {
    auto opened = OpenTiers(options, &other_models);
    if (!opened.ok()) return opened.status();
    tier_store = std::move(opened).value();
  }
  std::unique_ptr<LowerTiers> tiers;
  if (tier_store != nullptr) {
    tiers =
        std::make_unique<LowerTiers>(options, std::move(tier_store), counters.get(), other_models);
  }
  auto store = BlockStore::Create(options, counters.get(), donors.get(), tiers.get());
  if (!store.ok()) return store.status();
  return std::make_shared<CacheState>(std::move(options), std::move(counters), std::move(donors),
                                      std::move(layers), std::move(tiers),
                                      std::move(store).value());
}

Result<std::unique_ptr<Cache>> CreateCacheOnTiers(CacheOptions options,
                                                  std::unique_ptr<tier::TierStore> tiers) {
  auto state = CreateState(std::move(options), std::move(tiers));
  if (!state.ok()) return state.status();
  return std::unique_ptr<Cache>(std::make_unique<Conductor>(std::move(state).value()));
}

}  // namespace link

Result<std::unique_ptr<Cache>> CreateCache(CacheOptions options) {
  return link::CreateCacheOnTiers(std::move(options), nullptr);
}

}  // namespace kvlink
