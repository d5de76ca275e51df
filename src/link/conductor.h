// Conductor: the cache that the public API promises, from the rooms below: what to share (`match`),
// what needs what (`cache`), where it lies (`pool`).
//
// A lookup reads, and everything else is prepared first and then applied at once, so that a request
// is either admitted whole or changes nothing. A plan that no longer holds when it is begun (a page
// was evicted in between) is a smaller hit, counted as a fallback: computing always works. Likewise
// a donor that can no longer lend. Threads and lock: cache_state.h. Cost: Lookup O(blocks of the
// prompt), and where similar rows are asked for about 100 us per thousand tokens; Begin the same,
// plus the copy of at most one block.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kvlink/cache.h"
#include "link/cache_state.h"

namespace kvlink::link {

class Conductor final : public Cache {
 public:
  explicit Conductor(std::shared_ptr<CacheState> state) : state_(std::move(state)) {}

  const KvShape& shape() const override { return state_->options.shape; }
  Plan Lookup(const LookupRequest& request) const override;
  Result<std::unique_ptr<Sequence>> Begin(const LookupRequest& request, const Plan& plan) override;
  bool StillComputing(const InFlight& wait) const override;
  void CountWait() override { state_->counters->single_flight_waits.Add(); }
  void CountTakeover() override { state_->counters->single_flight_takeovers.Add(); }
  void RecordShadow(uint64_t shadow, bool agreed) override;
  Result<uint32_t> Pin(const LookupRequest& request, std::chrono::milliseconds ttl) override;
  Result<uint32_t> Unpin(const LookupRequest& request) override;
  void Clear() override;
  BlockList ListBlocks(const BlockFilter& filter) const override;
  Result<ShownBlocks> ShowBlock(uint64_t id, uint32_t last,
                                const BlockFilter& filter) const override;
  void SetQuota(const std::string& tenant, uint64_t bytes) override;
  std::vector<TenantUse> Tenants() const override;
  uint64_t Withhold(uint64_t bytes) override;
  void Remember(const Namespace& ns, std::string_view text,
                std::span<const TokenId> tokens) override;
  std::optional<std::vector<TokenId>> Recall(const Namespace& ns,
                                             std::string_view text) const override;
  std::optional<Recalled> RecallPrefix(const Namespace& ns, std::string_view text) const override;
  Result<std::unique_ptr<Load>> StartLoad(const LookupRequest& request, const Plan& plan) override;
  void ObserveCompute(uint32_t num_rows, double wall_us, int num_threads) override;
  void OnLoadProgress(std::function<void()> wake) override;
  bool RunIdle() override;
  bool Drain(std::chrono::milliseconds patience) override;
  std::vector<TierFigures> Tiers() const override;
  CacheStats Stats() const override;

 private:
  bool WriteBacklog(size_t most);  // true: there is more
  Status CheckRequest(const LookupRequest& request) const;
  Result<std::unique_ptr<Sequence>> BeginExact(const LookupRequest& request, const Plan& plan);
  // Null when the plan's donor cannot lend any more; `reason` says why.
  std::unique_ptr<Sequence> BeginBorrowing(const LookupRequest& request, const Plan& plan,
                                           SimilarReason* reason);
  void CountBegun(const LookupRequest& request, const Plan& plan, const Plan& fresh);

  const std::shared_ptr<CacheState> state_;
};

}  // namespace kvlink::link
