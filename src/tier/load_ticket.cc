#include "tier/load_ticket.h"

#include <utility>

#include "base/check.h"

namespace kvlink::tier {

LoadTicket::LoadTicket(std::span<const Want> wants, TimePoint deadline, std::function<void()> done)
    : deadline_(deadline),
      wants_(wants.begin(), wants.end()),
      callback_(std::move(done)),
      results_(wants.size()),
      num_pending_(wants.size()) {
  tokens_.reserve(wants_.size());
  for (Want& want : wants_) {
    tokens_.emplace_back(want.name.tokens.begin(), want.name.tokens.end());
    want.name.tokens = tokens_.back();
  }
}

bool LoadTicket::WaitUntil(TimePoint until) {
  std::unique_lock<std::mutex> lock(mutex_.native());
  changed_.wait_until(lock, until, [this] { return Done(); });
  return Done();
}

void LoadTicket::Cancel() {
  std::unique_lock<std::mutex> lock(mutex_.native());
  ended_ = true;
  for (LoadResult& result : results_) result.pending = false;
  num_pending_ = 0;
  changed_.wait(lock, [this] { return !callback_runs_; });
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
}

uint32_t LoadTicket::num_leading() const {
  const base::MutexLock lock(mutex_);
  uint32_t leading = 0;
  while (leading < results_.size() && results_[leading].loaded()) ++leading;
  return leading;
}

LoadResult LoadTicket::result(size_t i) const {
  const base::MutexLock lock(mutex_);
  return results_[i];
}

LoadResult LoadTicket::TakeResult(size_t i) {
  KVLINK_CHECK(Done());
  const base::MutexLock lock(mutex_);
  return std::move(results_[i]);
}

bool LoadTicket::Fill(size_t i, std::string_view bytes, const BlockKey& model, BlockHeader* header,
                      DecodeError* error) {
  if (!ReadWantedBlock(bytes, wants_[i].name, model, header, error)) return false;
  std::span<std::byte> target = wants_[i].target;
  if (!target.empty() && target.size() != header->payload_bytes) {
    *error = {ErrorReason::kForeign, "payload_bytes is " + std::to_string(header->payload_bytes) +
                                         ", wanted " + std::to_string(target.size())};
    return false;
  }
  // Held while copying: Cancel gives the target back to its owner.
  const base::MutexLock lock(mutex_);
  if (ended_) return true;
  if (target.empty()) {
    results_[i].payload.resize(header->payload_bytes);
    target = std::as_writable_bytes(std::span(results_[i].payload));
  }
  if (ReadPayload(bytes, *header, target, error)) return true;
  results_[i].payload.clear();
  return false;
}

void LoadTicket::Succeed(size_t i, uint32_t tier, uint32_t valid_rows) {
  {
    const base::MutexLock lock(mutex_);
    if (ended_) return;
    LoadResult result = std::move(results_[i]);
    result.outcome = Outcome::kOk;
    result.reason = ErrorReason::kNone;
    result.tier = tier;
    result.valid_rows = valid_rows;
    Settle(i, std::move(result));
  }
  FinishIfDone();
}

void LoadTicket::NoteError(size_t i, uint32_t tier, ErrorReason reason) {
  const base::MutexLock lock(mutex_);
  if (ended_) return;
  results_[i].outcome = Outcome::kError;
  results_[i].reason = reason;
  results_[i].tier = tier;
}

void LoadTicket::Fail(size_t i, uint32_t tier, Outcome outcome, ErrorReason reason) {
  {
    const base::MutexLock lock(mutex_);
    if (ended_) return;
    LoadResult result = results_[i];
    if (outcome != Outcome::kMiss || result.outcome != Outcome::kError) {
      result.outcome = outcome;
      result.reason = reason;
      result.tier = tier;
    }
    Settle(i, std::move(result));
  }
  FinishIfDone();
}

void LoadTicket::Settle(size_t i, LoadResult result) {
  KVLINK_CHECK(results_[i].pending) << "want " << i << " ends twice";
  results_[i] = std::move(result);
  results_[i].pending = false;
  --num_pending_;
}

void LoadTicket::FinishIfDone() {
  {
    const base::MutexLock lock(mutex_);
    if (ended_ || num_pending_ > 0) return;
    ended_ = true;
    callback_runs_ = callback_ != nullptr;
  }
  done_.store(true, std::memory_order_release);
  if (callback_) callback_();
  const base::MutexLock lock(mutex_);
  callback_runs_ = false;
  changed_.notify_all();
}

}  // namespace kvlink::tier
