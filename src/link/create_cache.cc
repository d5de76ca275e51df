// CreateCache: checks the options and puts the rooms together.
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "link/cache_state.h"
#include "link/conductor.h"

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
  if (shape.type == KvType::kQ8_0) {
    return {StatusCode::kUnimplemented, "shape.type q8_0 is not supported yet; f16 and bf16 are"};
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
  if (options.budget_bytes < options.shape.page_bytes()) {
    return Bad("budget_bytes", std::to_string(options.budget_bytes),
               "at least one page of " + std::to_string(options.shape.page_bytes()) + " bytes");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Cache>> CreateCache(CacheOptions options) {
  const Status valid = CheckOptions(options);
  if (!valid.ok()) return valid;
  if (!options.clock) options.clock = base::SteadyClock();
  auto counters = std::make_unique<link::Counters>();
  auto store = link::BlockStore::Create(options, counters.get());
  if (!store.ok()) return store.status();
  auto state = std::make_shared<link::CacheState>(std::move(options), std::move(counters),
                                                  std::move(store).value());
  return std::unique_ptr<Cache>(std::make_unique<link::Conductor>(std::move(state)));
}

}  // namespace kvlink
