// The store thread of a TierLane: puts, removes, and the trials of a tier that failed.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "tier/tier_lane.h"

namespace kvlink::tier {
namespace {

// The longest sleep while the breaker is open.
constexpr std::chrono::milliseconds kLongestSleep{100}, kShortestSleep{1};
// Between looks at the pace, while something waits for it.
constexpr std::chrono::milliseconds kPaceSleep{10};

double ThreadCpuUs() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

}  // namespace

bool TierLane::IsTooEarly() const {
  return pace_ != nullptr && draining_ == 0 && std::holds_alternative<PutJob>(writes_.front()) &&
         !pace_->MayWrite();
}

void TierLane::WriteLoop() {
  // Of this thread alone; where it is not permitted, the writers are as urgent as the rest.
  if (options_.writer_nice > 0) {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), options_.writer_nice);
  }
  for (;;) {
    std::vector<PutJob> puts;
    std::optional<std::vector<BlockKey>> removes;
    {
      std::unique_lock<std::mutex> lock(mutex_.native());
      if (stop_) return;
      if (breaker_.closed()) {
        wake_writer_.wait(lock, [this] { return stop_ || !writes_.empty() || !breaker_.closed(); });
      } else {
        const auto pause =
            std::chrono::duration_cast<std::chrono::milliseconds>(breaker_.UntilTrial());
        wake_writer_.wait_for(lock, std::clamp(pause, kShortestSleep, kLongestSleep),
                              [this] { return stop_; });
      }
      if (stop_) return;
      if (breaker_.closed() && !writes_.empty() && IsTooEarly()) {
        wake_writer_.wait_for(lock, kPaceSleep, [this] { return stop_ || draining_ > 0; });
        continue;
      }
      if (breaker_.closed() && !writes_.empty()) {
        puts = TakePuts();
        if (puts.empty()) {
          removes = std::get<std::vector<BlockKey>>(std::move(writes_.front()));
          writes_.pop_front();
        }
        writing_ = true;
      }
    }
    if (!puts.empty()) {
      RunPuts(std::move(puts));
    } else if (removes) {
      RunRemove(*removes);
    } else if (breaker_.TakeTrial()) {
      Trial();
    }
    const base::MutexLock lock(mutex_);
    writing_ = false;
    idle_.notify_all();
  }
}

void TierLane::Trial() {
  if (tier_->Ping(options_.clock() + options_.ping_timeout).ok()) {
    breaker_.RecordSuccess();
  } else {
    breaker_.RecordFailure();
  }
}

std::vector<TierLane::PutJob> TierLane::TakePuts() {
  std::vector<PutJob> puts;
  size_t bytes = 0;
  while (!writes_.empty() && puts.size() < kBlocksACall && bytes < kBytesACall) {
    PutJob* put = std::get_if<PutJob>(&writes_.front());
    if (put == nullptr) break;
    bytes += put->block->size_bytes();
    puts.push_back(std::move(*put));
    writes_.pop_front();
  }
  return puts;
}

// Offered blocks that the peer has, or does not say whether it has: they are not written.
std::vector<TierLane::PutJob> TierLane::TakeNeedless(std::vector<PutJob>* jobs) {
  std::vector<BlockKey> offered;
  for (const PutJob& job : *jobs) {
    if (job.origin == Origin::kOffered) offered.push_back(job.block->key());
  }
  if (offered.empty()) return {};
  const std::vector<TierAnswer> answers = Ask(offered);
  std::vector<PutJob> needed, needless;
  size_t asked = 0;
  for (PutJob& job : *jobs) {
    const bool is_needless =
        job.origin == Origin::kOffered && answers[asked++].outcome != Outcome::kMiss;
    (is_needless ? needless : needed).push_back(std::move(job));
  }
  *jobs = std::move(needed);
  return needless;
}

void TierLane::RunPuts(std::vector<PutJob> jobs) {
  const double cpu_before = ThreadCpuUs();
  const std::vector<PutJob> needless = TakeNeedless(&jobs);
  std::vector<TierPut> items;
  for (const PutJob& job : jobs) {
    items.push_back({job.block->key(), job.block->parent(), job.block->cost_us(),
                     job.block->Encoded(), job.block});
  }
  std::vector<TierAnswer> answers;
  if (!items.empty()) answers = tier_->Put(items, options_.clock() + options_.store_timeout);
  KVLINK_CHECK(answers.size() == items.size()) << answers.size() << " answers";
  Judge(answers, options_.store_timeout);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].outcome == Outcome::kOk) {
      known_.SetPresent(items[i].key);
    } else {
      Count(TierOp::kPut, answers[i].reason);
    }
  }
  const double cpu_us = ThreadCpuUs() - cpu_before;
  if (pace_ != nullptr) pace_->Spend(cpu_us);
  const base::MutexLock lock(mutex_);
  stats_.write_cpu_us += cpu_us;
  for (const PutJob& job : needless) LeaveQueue(*job.block);
  for (size_t i = 0; i < jobs.size(); ++i) {
    LeaveQueue(*jobs[i].block);
    if (answers[i].outcome != Outcome::kOk || jobs[i].block->kind() == PayloadKind::kText) continue;
    ++stats_.stored;
    stats_.promoted += jobs[i].origin == Origin::kPromoted ? 1 : 0;
    stats_.bytes_written += items[i].bytes.size();
  }
}

void TierLane::LeaveQueue(const PendingBlock& block) {
  queued_keys_.erase(block.key());
  queued_bytes_ -= block.size_bytes();
}

void TierLane::RunRemove(const std::vector<BlockKey>& keys) {
  const std::vector<TierAnswer> answers =
      tier_->Remove(keys, options_.clock() + options_.store_timeout);
  Judge(answers, options_.store_timeout);
  for (size_t i = 0; i < answers.size() && i < keys.size(); ++i) {
    known_.Forget(keys[i]);
    if (answers[i].outcome == Outcome::kError) Count(TierOp::kRemove, answers[i].reason);
  }
}

}  // namespace kvlink::tier
