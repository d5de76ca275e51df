#include "link/similar_gate.h"

namespace kvlink::link {

using base::MutexLock;

SimilarGate::SimilarGate(const CacheOptions& options)
    : ledger_(options.similar), budget_(options.similar.wasted_compute_share) {
  for (size_t i = 0; i < options.similar_model.calibrated.size(); ++i) {
    const SimilarTrials& trials = options.similar_model.calibrated[i];
    is_calibrated_ |= trials.trials > 0;
    ledger_.Calibrate(static_cast<EditClass>(i), {trials.trials, trials.failures});
  }
  budget_.CountComputed(kHeadStart);
}

bool SimilarGate::IsOpen(const verify::Cluster& cluster, base::TimePoint now) {
  const MutexLock lock(mutex_);
  return ledger_.IsOpen(cluster, now);
}

bool SimilarGate::MayWaste(uint64_t rows) {
  const MutexLock lock(mutex_);
  if (!budget_.TryReserve(rows)) return false;
  budget_.Settle(rows, 0);
  return true;
}

bool SimilarGate::TryReserve(uint64_t rows) {
  const MutexLock lock(mutex_);
  return budget_.TryReserve(rows);
}

void SimilarGate::Settle(uint64_t reserved, uint64_t wasted) {
  const MutexLock lock(mutex_);
  budget_.Settle(reserved, wasted);
}

void SimilarGate::CountComputed(uint64_t rows) {
  const MutexLock lock(mutex_);
  budget_.CountComputed(rows);
}

uint64_t SimilarGate::reserved_rows() {
  const MutexLock lock(mutex_);
  return budget_.reserved();
}

uint64_t SimilarGate::CountAccept(const verify::Cluster& cluster) {
  const MutexLock lock(mutex_);
  return ledger_.CountAccept(cluster) ? NewShadow(cluster) : 0;
}

uint64_t SimilarGate::AddShadow(const verify::Cluster& cluster) {
  const MutexLock lock(mutex_);
  return NewShadow(cluster);
}

uint64_t SimilarGate::NewShadow(const verify::Cluster& cluster) {
  if (shadows_.size() >= kMostShadows) shadows_.erase(shadows_.begin());
  shadows_[++last_shadow_] = cluster;
  return last_shadow_;
}

std::optional<EditClass> SimilarGate::RecordShadow(uint64_t shadow, bool agreed,
                                                   base::TimePoint now) {
  const MutexLock lock(mutex_);
  const auto found = shadows_.find(shadow);
  if (found == shadows_.end()) return std::nullopt;
  ledger_.Record(found->second, agreed, now);
  const EditClass edit = found->second.edit;
  shadows_.erase(found);
  return edit;
}

}  // namespace kvlink::link
