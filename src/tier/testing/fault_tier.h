// FaultTier: a tier that fails on request, before or after the tier that it wraps. For tests, and,
// with MemoryTier, the example that a new tier is one file.
//
//   FaultTier tier(std::make_unique<MemoryTier>(1 << 20));
//   tier.Set(Fault::kBitFlip);       every Get from now on has one bit flipped
//   tier.Set(Fault::kTimeout, 3);    the next three calls time out, then all is well
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

enum class Fault {
  kNone,
  kShortRead,    // Get gives only a part of the bytes
  kBitFlip,      // one bit of what Get gives is another
  kSwapped,      // Get gives another block's bytes, where there is one
  kTimeout,      // calls end at their deadline, with nothing done
  kUnavailable,  // calls fail at once
  kFull,         // Put fails
  kIo,           // calls fail at once
  kLost,         // Put says ok and keeps nothing
  kSlow,         // calls take `delay` longer
};

class FaultTier : public BlockTier {
 public:
  explicit FaultTier(std::unique_ptr<BlockTier> inner, uint64_t seed = 1)
      : inner_(std::move(inner)), random_(seed) {}

  // For the next `calls` calls; 0: for all.
  void Set(Fault fault, uint32_t calls = 0,
           std::chrono::milliseconds delay = std::chrono::milliseconds(0)) {
    const base::MutexLock lock(mutex_);
    fault_ = fault;
    calls_left_ = calls;
    delay_ = delay;
  }
  uint64_t num_calls() const { return num_calls_.load(); }

  std::string_view name() const override { return "fault"; }
  std::vector<TierAnswer> Put(std::span<const TierPut> items, TimePoint deadline) override {
    const Fault fault = Next(deadline);
    if (fault == Fault::kLost) return {items.size(), TierAnswer::Ok()};
    if (fault == Fault::kFull) return {items.size(), TierAnswer::Error(ErrorReason::kFull)};
    const ErrorReason reason = ReasonOf(fault);
    if (reason != ErrorReason::kNone) return {items.size(), TierAnswer::Error(reason)};
    return inner_->Put(items, deadline);
  }
  std::vector<TierAnswer> Get(std::span<const BlockKey> keys, TimePoint deadline) override {
    const Fault fault = Next(deadline);
    const ErrorReason reason = ReasonOf(fault);
    if (reason != ErrorReason::kNone) return {keys.size(), TierAnswer::Error(reason)};
    std::vector<TierAnswer> answers = inner_->Get(keys, deadline);
    const base::MutexLock lock(mutex_);
    for (TierAnswer& answer : answers) {
      std::string& bytes = answer.bytes;
      if (bytes.empty()) continue;
      if (fault == Fault::kShortRead) bytes.resize(random_.Below(bytes.size()));
      if (fault == Fault::kBitFlip) {
        char& byte = bytes[random_.Below(bytes.size())];
        byte = static_cast<char>(byte ^ (1 << random_.Below(8)));
      }
    }
    if (fault == Fault::kSwapped && answers.size() > 1) {
      std::swap(answers.front().bytes, answers.back().bytes);
    }
    return answers;
  }
  std::vector<TierAnswer> Contains(std::span<const BlockKey> keys, TimePoint deadline) override {
    const ErrorReason reason = ReasonOf(Next(deadline));
    if (reason != ErrorReason::kNone) return {keys.size(), TierAnswer::Error(reason)};
    return inner_->Contains(keys, deadline);
  }
  std::vector<TierAnswer> Remove(std::span<const BlockKey> keys, TimePoint deadline) override {
    const ErrorReason reason = ReasonOf(Next(deadline));
    if (reason != ErrorReason::kNone) return {keys.size(), TierAnswer::Error(reason)};
    return inner_->Remove(keys, deadline);
  }
  // As a remote tier: only by asking.
  std::optional<bool> ContainsNow(const BlockKey&) const override { return std::nullopt; }
  Status Ping(TimePoint deadline) override {
    const ErrorReason reason = ReasonOf(Next(deadline));
    if (reason == ErrorReason::kNone) return inner_->Ping(deadline);
    return {StatusCode::kUnavailable, ErrorReasonName(reason)};
  }
  Status Flush(TimePoint deadline) override { return inner_->Flush(deadline); }
  TierUsage Usage() const override { return inner_->Usage(); }
  Status List(const std::function<bool(const TierEntry&)>& visit) const override {
    return inner_->List(visit);
  }
  std::string LastError() const override { return inner_->LastError(); }

 private:
  static ErrorReason ReasonOf(Fault fault) {
    switch (fault) {
      case Fault::kTimeout:
        return ErrorReason::kTimeout;
      case Fault::kUnavailable:
        return ErrorReason::kUnavailable;
      case Fault::kIo:
        return ErrorReason::kIo;
      default:
        return ErrorReason::kNone;
    }
  }

  // The fault of this call; waits where it is one of time.
  Fault Next(TimePoint deadline) {
    ++num_calls_;
    Fault fault = Fault::kNone;
    std::chrono::milliseconds delay{0};
    {
      const base::MutexLock lock(mutex_);
      fault = fault_;
      delay = delay_;
      if (calls_left_ > 0 && --calls_left_ == 0) fault_ = Fault::kNone;
    }
    if (fault == Fault::kTimeout) std::this_thread::sleep_until(deadline);
    if (fault == Fault::kSlow) std::this_thread::sleep_for(delay);
    return fault;
  }

  const std::unique_ptr<BlockTier> inner_;
  std::atomic<uint64_t> num_calls_{0};
  base::Mutex mutex_;
  base::Random random_ KVLINK_GUARDED_BY(mutex_);
  Fault fault_ KVLINK_GUARDED_BY(mutex_) = Fault::kNone;
  uint32_t calls_left_ KVLINK_GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds delay_ KVLINK_GUARDED_BY(mutex_){0};
};

}  // namespace kvlink::tier
