#include "verify/cluster_ledger.h"

#include <algorithm>
#include <cmath>

#include "verify/error_bound.h"

namespace kvlink::verify {

void ClusterLedger::Calibrate(EditClass edit, const Trials& trials) {
  calibrated_[static_cast<size_t>(edit)] = trials;
}

bool ClusterLedger::IsOpen(const Cluster& cluster, base::TimePoint now) {
  Entry& entry = EntryOf(cluster);
  if (!entry.is_open && now >= entry.closed_until && entry.own.trials >= options_.min_trials &&
      BoundOf(entry, cluster.edit) <= options_.max_false_accepts) {
    entry.is_open = true;
  }
  return entry.is_open;
}

bool ClusterLedger::CountAccept(const Cluster& cluster) {
  Entry& entry = EntryOf(cluster);
  ++entry.accepts;
  if (entry.accepts <= options_.always_shadowed) return true;
  if (options_.shadow_share <= 0) return false;
  const auto every = static_cast<uint64_t>(std::lround(std::max(1 / options_.shadow_share, 1.0)));
  return entry.accepts % every == 0;
}

void ClusterLedger::Record(const Cluster& cluster, bool agreed, base::TimePoint now) {
  Entry& entry = EntryOf(cluster);
  ++entry.own.trials;
  if (!agreed) ++entry.own.failures;
  if (entry.own.trials >= options_.min_trials) entry.trusts_calibration = false;
  if (entry.own.trials > uint64_t{4} * options_.min_trials) {
    entry.own.trials /= 2;
    entry.own.failures = (entry.own.failures + 1) / 2;
  }
  if (BoundOf(entry, cluster.edit) <= options_.max_false_accepts) return;
  if (entry.is_open) {
    Close(&entry, now);
  } else if (entry.own.trials >= options_.min_trials) {
    entry.own = {};  // it failed again: start over
  }
}

double ClusterLedger::Bound(const Cluster& cluster) const {
  const auto found = entries_.find(cluster);
  return BoundOf(found == entries_.end() ? Entry{} : found->second, cluster.edit);
}

double ClusterLedger::BoundOf(const Entry& entry, EditClass edit) const {
  Trials trials = entry.own;
  if (entry.trusts_calibration) {
    const Trials& calibrated = calibrated_[static_cast<size_t>(edit)];
    trials.trials += calibrated.trials;
    trials.failures += calibrated.failures;
  }
  return UpperErrorBound(trials.failures, trials.trials, options_.confidence);
}

ClusterLedger::Entry& ClusterLedger::EntryOf(const Cluster& cluster) {
  const auto found = entries_.find(cluster);
  if (found != entries_.end()) {
    found->second.last_use = ++last_use_;
    return found->second;
  }
  if (entries_.size() >= kMostClusters) ForgetOne();
  Entry& entry = entries_[cluster];
  entry.last_use = ++last_use_;
  // Where every place is taken by a closed cluster, a new one gets no advance of trust.
  entry.trusts_calibration = entries_.size() <= kMostClusters;
  entry.is_open = BoundOf(entry, cluster.edit) <= options_.max_false_accepts;
  return entry;
}

void ClusterLedger::Close(Entry* entry, base::TimePoint now) {
  constexpr uint32_t kMostDoublings = 10;
  entry->is_open = false;
  entry->trusts_calibration = false;
  entry->own = {};
  entry->closed_until =
      now + options_.closed_for * (int64_t{1} << std::min(entry->closings, kMostDoublings));
  ++entry->closings;
  ++num_closings_;
}

void ClusterLedger::ForgetOne() {
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (!it->second.is_open) continue;
    if (oldest == entries_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
  }
  if (oldest != entries_.end()) entries_.erase(oldest);
}

}  // namespace kvlink::verify
