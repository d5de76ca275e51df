// SimilarGate: what similar reuse has earned and may still cost. Holds the ledger of clusters (who
// may be answered from similar rows), the budget of failed attempts, and the shadows that are out.
//
// The budget is counted in rows of a prompt. It starts with credit for kHeadStart rows, as if they
// had been computed: otherwise the first attempts would have to wait until twenty times their work
// had been done. Once in the life of a process, so failed attempts cost wasted_compute_share of all
// compute plus that share of kHeadStart rows. Threads: any; it has a lock of its own, because
// lookups ask and a ledger notes who asked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvlink/options.h"
#include "verify/cluster_ledger.h"
#include "verify/fallback_budget.h"

namespace kvlink::link {

class SimilarGate {
 public:
  static constexpr uint64_t kHeadStart = 100'000;
  static constexpr size_t kMostShadows = 4096;  // that are out; then the oldest are forgotten

  explicit SimilarGate(const CacheOptions& options);

  bool is_calibrated() const { return is_calibrated_; }  // any class has trials
  bool IsOpen(const verify::Cluster& cluster, base::TimePoint now);
  // Whether an attempt may waste so many rows, as things stand.
  bool MayWaste(uint64_t rows);
  // Likewise, and takes them: exactly one Settle follows.
  [[nodiscard]] bool TryReserve(uint64_t rows);
  void Settle(uint64_t reserved, uint64_t wasted);
  void CountComputed(uint64_t rows);
  uint64_t reserved_rows();  // by attempts without a verdict

  // An answer leaves. Not 0: run its shadow, under this number.
  uint64_t CountAccept(const verify::Cluster& cluster);
  // A shadow beside an answer that nobody sees.
  uint64_t AddShadow(const verify::Cluster& cluster);
  // The class of its edits; nothing when nobody asked for this one.
  std::optional<EditClass> RecordShadow(uint64_t shadow, bool agreed, base::TimePoint now);

 private:
  uint64_t NewShadow(const verify::Cluster& cluster) KVLINK_REQUIRES(mutex_);

  bool is_calibrated_ = false;
  base::Mutex mutex_;
  verify::ClusterLedger ledger_ KVLINK_GUARDED_BY(mutex_);
  verify::FallbackBudget budget_ KVLINK_GUARDED_BY(mutex_);
  std::map<uint64_t, verify::Cluster> shadows_ KVLINK_GUARDED_BY(mutex_);  // by number
  uint64_t last_shadow_ KVLINK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvlink::link
