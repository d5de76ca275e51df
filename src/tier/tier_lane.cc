#include "tier/tier_lane.h"

#include <algorithm>

#include "base/check.h"

namespace kvlink::tier {
namespace {

using Duration = std::chrono::steady_clock::duration;
using std::chrono::milliseconds;

// A call that was given less time than this and timed out says nothing about the tier.
constexpr milliseconds kFairTime{20};
// What a load is assumed to take before the first one.
constexpr double kAssumedLatencyUs = 500, kAssumedBytesPerS = 400e6;
constexpr size_t kAssumedBlockBytes = size_t{1} << 20;

bool SaysUnhealthy(const TierAnswer& answer, Duration allowed) {
  if (answer.outcome != Outcome::kError) return false;
  switch (answer.reason) {
    case ErrorReason::kTimeout:
      return allowed >= kFairTime;
    case ErrorReason::kUnavailable:
    case ErrorReason::kAuth:
    case ErrorReason::kTls:
    case ErrorReason::kIo:
    case ErrorReason::kProtocol:
      return true;
    default:
      return false;
  }
}

}  // namespace

TierLane::TierLane(uint32_t index, std::unique_ptr<BlockTier> tier, const TierStoreOptions& options,
                   LaneOwner& owner)
    : index_(index),
      tier_(std::move(tier)),
      options_(options),
      model_(base::Hash128(options.model_fingerprint)),
      owner_(owner),
      pace_(index >= options.paced_from ? options.pace.get() : nullptr),
      breaker_(options.breaker, options.clock),
      known_(options.known_keys, options.absent_for),
      cost_(kAssumedLatencyUs, kAssumedBytesPerS) {}

TierLane::~TierLane() { Stop(); }

void TierLane::Start() {
  reader_ = std::thread([this] { ReadLoop(); });
  writer_ = std::thread([this] { WriteLoop(); });
}

void TierLane::Stop() {
  {
    const base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_reader_.notify_all();
  wake_writer_.notify_all();
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
}

bool TierLane::Reserve(const BlockKey& key, size_t bytes, Origin origin) {
  if (origin == Origin::kOffered && tier_->ContainsNow(key).has_value()) return false;
  if (Find(key).value_or(false)) return false;
  const base::MutexLock lock(mutex_);
  if (queued_keys_.contains(key)) return false;
  if (stop_ || cut_off() || queued_bytes_ + bytes > options_.queue_bytes) {
    ++stats_.queue_drops;
    return false;
  }
  queued_keys_.insert(key);
  queued_bytes_ += bytes;
  return true;
}

void TierLane::Put(std::shared_ptr<PendingBlock> block, Origin origin) {
  {
    const base::MutexLock lock(mutex_);
    writes_.emplace_back(PutJob{std::move(block), origin});
  }
  wake_writer_.notify_one();
}

void TierLane::Remove(std::vector<BlockKey> keys) {
  {
    const base::MutexLock lock(mutex_);
    if (stop_) return;
    writes_.emplace_back(std::move(keys));
  }
  wake_writer_.notify_one();
}

std::optional<bool> TierLane::Find(const BlockKey& key) const {
  if (!breaker_.closed()) return false;
  if (const std::optional<bool> known = tier_->ContainsNow(key)) return known;
  return known_.Find(key, options_.clock());
}

void TierLane::Probe(std::vector<BlockKey> keys, std::shared_ptr<void> until_done) {
  {
    const base::MutexLock lock(mutex_);
    if (stop_) return;
    reads_.emplace_back(ProbeJob{std::move(keys), std::move(until_done)});
  }
  wake_reader_.notify_one();
}

void TierLane::Load(std::shared_ptr<LoadTicket> ticket, std::vector<size_t> wants) {
  LoadJob job{std::move(ticket), std::move(wants), 0};
  for (const size_t want : job.wants) {
    const size_t target = job.ticket->target_bytes(want);
    job.bytes += target > 0 ? target : kAssumedBlockBytes;
  }
  {
    const base::MutexLock lock(mutex_);
    if (!stop_) {
      waiting_load_bytes_ += job.bytes;
      reads_.emplace_back(std::move(job));
      wake_reader_.notify_one();
      return;
    }
  }
  PassAll(job, job.wants, ErrorReason::kUnavailable);
}

double TierLane::LoadCostUs(uint32_t blocks, uint64_t bytes) const {
  const base::MutexLock lock(mutex_);
  const double calls = static_cast<double>((blocks + kBlocksACall - 1) / kBlocksACall);
  const double total = static_cast<double>(blocks) * static_cast<double>(bytes);
  return cost_.EstimateUs(total + static_cast<double>(waiting_load_bytes_), calls);
}

bool TierLane::Drain(TimePoint deadline) {
  {
    std::unique_lock<std::mutex> lock(mutex_.native());
    const auto settled = [this] { return (writes_.empty() && !writing_) || !breaker_.closed(); };
    ++draining_;
    wake_writer_.notify_one();
    const bool is_settled = idle_.wait_until(lock, deadline, settled);
    --draining_;
    if (!is_settled) return false;
    if (!writes_.empty() || writing_) return false;  // cut off: it would never end
  }
  return tier_->Flush(deadline).ok();
}

TierStats TierLane::Stats() const {
  TierStats stats;
  {
    const base::MutexLock lock(mutex_);
    stats = stats_;
    stats.queued_blocks = queued_keys_.size();
    stats.queued_bytes = queued_bytes_;
    stats.latency_us = cost_.latency_us();
    stats.bytes_per_s = cost_.bytes_per_s();
  }
  stats.name = tier_->name();
  stats.breaker = breaker_.state();
  stats.breaker_openings = breaker_.openings();
  stats.usage = tier_->Usage();
  stats.last_error = tier_->LastError();
  return stats;
}

std::vector<TierAnswer> TierLane::Ask(std::span<const BlockKey> keys) {
  const TimePoint start = options_.clock();
  std::vector<TierAnswer> answers = tier_->Contains(keys, start + options_.ping_timeout);
  KVLINK_CHECK(answers.size() == keys.size()) << answers.size() << " answers";
  Judge(answers, options_.ping_timeout);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].outcome == Outcome::kOk) {
      known_.SetPresent(keys[i]);
    } else if (answers[i].outcome == Outcome::kMiss) {
      known_.SetAbsent(keys[i], start);
    } else {
      Count(TierOp::kContains, answers[i].reason);
    }
  }
  return answers;
}

void TierLane::Count(TierOp op, ErrorReason reason) {
  const base::MutexLock lock(mutex_);
  ++stats_.errors[static_cast<size_t>(op)][static_cast<size_t>(reason)];
}

void TierLane::Judge(std::span<const TierAnswer> answers, Duration allowed) {
  const bool unhealthy = std::ranges::any_of(
      answers, [allowed](const TierAnswer& answer) { return SaysUnhealthy(answer, allowed); });
  if (unhealthy) {
    breaker_.RecordFailure();
    // Whoever waits for an empty queue learns that the tier is cut off.
    const base::MutexLock lock(mutex_);
    idle_.notify_all();
    wake_writer_.notify_all();
  } else if (std::ranges::any_of(answers, [](const TierAnswer& answer) {
               return answer.outcome != Outcome::kError;
             })) {
    breaker_.RecordSuccess();
  }
}

}  // namespace kvlink::tier
