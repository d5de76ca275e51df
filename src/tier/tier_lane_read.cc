// The load thread of a TierLane: probes and loads.
#include <algorithm>

#include "base/check.h"
#include "tier/tier_lane.h"

namespace kvlink::tier {

void TierLane::ReadLoop() {
  for (;;) {
    std::optional<ReadJob> job;
    bool stop = false;
    {
      std::unique_lock<std::mutex> lock(mutex_.native());
      wake_reader_.wait(lock, [this] { return stop_ || !reads_.empty(); });
      if (reads_.empty()) return;  // stopped, and all that waited was passed on
      stop = stop_;
      job = std::move(reads_.front());
      reads_.pop_front();
    }
    if (const LoadJob* load = std::get_if<LoadJob>(&*job)) {
      if (stop) {
        PassAll(*load, load->wants, ErrorReason::kUnavailable);
      } else {
        RunLoad(*load);
      }
      const base::MutexLock lock(mutex_);
      waiting_load_bytes_ -= load->bytes;
    } else if (!stop) {
      RunProbe(std::get<ProbeJob>(*job));
    }
  }
}

void TierLane::RunProbe(const ProbeJob& job) {
  if (!breaker_.closed()) return;
  const TimePoint start = options_.clock();
  const std::vector<TierAnswer> answers = Ask(job.keys);
  if (answers[0].outcome != Outcome::kError) {  // a call that moves no blocks shows the latency
    const double us = std::chrono::duration<double, std::micro>(options_.clock() - start).count();
    const base::MutexLock lock(mutex_);
    cost_.Record(0, us);
  }
}

void TierLane::RunLoad(const LoadJob& job) {
  size_t first = 0;
  while (first < job.wants.size()) {
    size_t count = 0, bytes = 0;
    while (first + count < job.wants.size() && count < kBlocksACall &&
           (count == 0 || bytes < kBytesACall)) {
      bytes += job.ticket->target_bytes(job.wants[first + count]);
      ++count;
    }
    LoadSome(job, std::span(job.wants).subspan(first, count));
    first += count;
  }
}

void TierLane::LoadSome(const LoadJob& job, std::span<const size_t> wants) {
  const TimePoint start = options_.clock();
  const TimePoint deadline = std::min(job.ticket->deadline(), start + options_.load_timeout);
  const bool late = job.ticket->Done() || start >= deadline;
  if (late || !breaker_.closed()) {
    const ErrorReason reason = late ? ErrorReason::kTimeout : ErrorReason::kBreaker;
    for (size_t i = 0; i < wants.size() && !job.ticket->Done(); ++i) Count(TierOp::kGet, reason);
    PassAll(job, wants, reason);
    return;
  }
  std::vector<BlockKey> keys;
  for (const size_t want : wants) keys.push_back(job.ticket->name(want).key);
  std::vector<TierAnswer> answers = tier_->Get(keys, deadline);
  KVLINK_CHECK(answers.size() == keys.size()) << answers.size() << " answers";
  Judge(answers, deadline - start);
  double bytes = 0;
  std::vector<PassedWant> passed;
  for (size_t i = 0; i < wants.size(); ++i) {
    const double size = static_cast<double>(answers[i].bytes.size());
    const PassedWant taken = TakeLoaded(job, wants[i], std::move(answers[i]));
    if (taken.outcome == Outcome::kOk) {
      bytes += size;
    } else {
      passed.push_back(taken);
    }
  }
  if (bytes > 0) {
    const double us = std::chrono::duration<double, std::micro>(options_.clock() - start).count();
    const base::MutexLock lock(mutex_);
    cost_.Record(bytes, us);
  }
  if (!passed.empty()) owner_.Passed(job.ticket, index_, passed);
}

PassedWant TierLane::TakeLoaded(const LoadJob& job, size_t want, TierAnswer answer) {
  const BlockKey key = job.ticket->name(want).key;
  const uint64_t num_blocks = job.ticket->name(want).kind == PayloadKind::kText ? 0 : 1;
  if (answer.outcome == Outcome::kMiss) {
    known_.SetAbsent(key, options_.clock());
    const base::MutexLock lock(mutex_);
    stats_.misses += num_blocks;
    return {want, Outcome::kMiss, ErrorReason::kNone};
  }
  if (answer.outcome == Outcome::kError) {
    Count(TierOp::kGet, answer.reason);
    if (answer.reason == ErrorReason::kCorrupt) Remove({key});  // so that it can be stored again
    return {want, Outcome::kError, answer.reason};
  }
  BlockHeader header;
  DecodeError error;
  if (!job.ticket->Fill(want, answer.bytes, model_, &header, &error)) {
    Count(TierOp::kGet, error.reason);
    known_.Forget(key);
    // So that the block can be stored again. Foreign bytes in a shared peer are somebody's.
    if (error.reason == ErrorReason::kCorrupt || tier_->ContainsNow(key)) Remove({key});
    return {want, Outcome::kError, error.reason};
  }
  known_.SetPresent(key);
  {
    const base::MutexLock lock(mutex_);
    stats_.hits += num_blocks;
    stats_.bytes_read += answer.bytes.size();
  }
  // Counted before: whoever waits for the ticket sees counters that agree with it.
  job.ticket->Succeed(want, index_, header.valid_rows);
  owner_.Loaded(index_, header, std::move(answer.bytes));
  return {want, Outcome::kOk, ErrorReason::kNone};
}

void TierLane::PassAll(const LoadJob& job, std::span<const size_t> wants, ErrorReason reason) {
  std::vector<PassedWant> passed;
  for (const size_t want : wants) passed.push_back({want, Outcome::kError, reason});
  owner_.Passed(job.ticket, index_, passed);
}

}  // namespace kvlink::tier
