// LoadingPrefix: the leading blocks of a prompt on their way from tiers into pages.
//
//   asking   some blocks may be in a tier that only its peer knows: a probe is out
//   loading  pages for the blocks that follow the resident ones are taken, and written by the
//            store's threads; what has come leads to commits, in the order of the chain
//   over     all came, or the rest was missing, failed or late: its pages are given back
//
//   chain    [ resident ][ loaded, committed ][ on its way ][ on its way ]
//                                              ^- no lookup sees it; others wait for it in flight
//
// It is a sequence that computes nothing: the store's threads write the rows that somebody would
// compute, and commit makes them findable. So single flight, eviction and the account of pages need
// to know nothing about loads.
// Threads: the engine's. Cost: a poll that finds nothing is an atomic load and reading the clock.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvlink/cache.h"
#include "link/cache_state.h"
#include "link/linked_sequence.h"
#include "link/lower_tiers.h"

namespace kvlink::link {

class LoadingPrefix final : public Load {
 public:
  // kNotFound: tiers have nothing behind what is resident, or it does not pay. kResourceExhausted:
  // pages are missing.
  static Result<std::unique_ptr<Load>> Start(std::shared_ptr<CacheState> state,
                                             const LookupRequest& request);
  ~LoadingPrefix() override;
  LoadingPrefix(const LoadingPrefix&) = delete;
  LoadingPrefix& operator=(const LoadingPrefix&) = delete;

  uint64_t id() const override { return sequence_ ? sequence_->id() : 0; }
  bool Poll() override;
  bool lacked_room() const override { return lacked_room_; }
  std::span<const LoadedRows> loaded() const override { return loaded_; }

 private:
  enum class Stage : uint8_t { kAsking, kLoading, kOver };

  LoadingPrefix(std::shared_ptr<CacheState> state, const LookupRequest& request);
  // What tiers have now; `first` also what may be there.
  Status Ask();
  Status BeginLoading();
  void TakeArrived();
  void End();
  LookupRequest RequestNow() const;
  uint32_t block_size() const { return state_->options.shape.tokens_per_block; }

  const std::shared_ptr<CacheState> state_;
  const std::vector<TokenId> tokens_;
  const LookupRequest request_;  // its tokens are those above
  const match::Root root_;
  Stage stage_ = Stage::kAsking;
  std::shared_ptr<std::atomic<bool>> answered_;  // the probe was
  // In real time, as tiers count it: until when something must come, and all of it.
  base::TimePoint deadline_, limit_;
  std::chrono::steady_clock::duration patience_{0};
  bool is_late_ = false, lacked_room_ = false;
  std::unique_ptr<LinkedSequence> sequence_;  // from loading on
  Loadable loadable_;
  std::shared_ptr<tier::LoadTicket> ticket_;
  uint32_t num_taken_ = 0;  // blocks of `loadable_` that are committed
  std::vector<LoadedRows> loaded_;
  uint64_t pages_ = 0;  // of LowerTiers::loading_pages
};

}  // namespace kvlink::link
