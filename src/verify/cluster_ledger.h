// ClusterLedger: which kinds of requests may be answered from similar rows, and which failed too
// often. A cluster is one application's requests with one kind of edit.
//
//   calibrated ok --> open --(bound on wrong accepts > limit)--> closed
//                       ^                                          |
//                       +--(time is up, and enough fresh trials) --+
//
// A trial is an exact run beside an approximate one, in idle time: a shadow of an answer that left,
// or, while a cluster is closed, a try that nobody sees. Calibration's trials of the class count
// until the cluster has enough of its own; after it was closed they count no more. Old trials fade:
// beyond 4 * min_trials both counts are halved, which only loosens the bound's grip on the past.
//
// The bound is tested after every trial, so over many trials a cluster at the limit is closed
// sooner or later; that errs on the safe side. Opening needs min_trials fresh ones each time. Not
// thread-safe. Memory: at most kMostClusters; the one used longest ago is forgotten, closed ones
// never, so that forgetting opens nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/clock.h"
#include "kvlink/similar.h"
#include "kvlink/similar_options.h"

namespace kvlink::verify {

struct Cluster {
  uint64_t application = 0;  // a hash of model, tenant and salt
  EditClass edit = EditClass::kWords;
  bool operator==(const Cluster&) const = default;
};

struct Trials {
  uint64_t trials = 0, failures = 0;
};

class ClusterLedger {
 public:
  static constexpr size_t kMostClusters = 4096;

  explicit ClusterLedger(const SimilarOptions& options) : options_(options) {}

  // What calibration found for a class. Without it a class's clusters start closed.
  void Calibrate(EditClass edit, const Trials& trials);

  bool IsOpen(const Cluster& cluster, base::TimePoint now);
  // An answer leaves. True: run its shadow when there is time.
  bool CountAccept(const Cluster& cluster);
  // A trial's outcome: whether the approximate run agreed with the exact one.
  void Record(const Cluster& cluster, bool agreed, base::TimePoint now);

  // The bound on wrong accepts as it stands.
  double Bound(const Cluster& cluster) const;
  size_t num_clusters() const { return entries_.size(); }
  uint64_t num_closings() const { return num_closings_; }

 private:
  struct Entry {
    Trials own;
    bool is_open = false;
    bool trusts_calibration = true;
    uint32_t closings = 0;
    uint64_t accepts = 0;
    uint64_t last_use = 0;
    base::TimePoint closed_until{};
  };
  struct ClusterHash {
    size_t operator()(const Cluster& cluster) const {
      return cluster.application * 31 + static_cast<size_t>(cluster.edit);
    }
  };

  Entry& EntryOf(const Cluster& cluster);
  double BoundOf(const Entry& entry, EditClass edit) const;
  void Close(Entry* entry, base::TimePoint now);
  void ForgetOne();

  const SimilarOptions options_;
  std::array<Trials, static_cast<size_t>(EditClass::kCount)> calibrated_{};
  std::unordered_map<Cluster, Entry, ClusterHash> entries_;
  uint64_t last_use_ = 0;
  uint64_t num_closings_ = 0;
};

}  // namespace kvlink::verify
