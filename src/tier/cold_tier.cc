#include "tier/cold_tier.h"

#include <unordered_set>

#include "base/check.h"
#include "base/mutex.h"
#include "tier/cold_database.h"
#include "tier/eviction_index.h"

namespace kvlink::tier {
namespace {

// Of the budget: live blocks at most; above the second, space is given back before more is written.
// The rest is what logs, garbage and the copies during a move may take.
constexpr double kLiveShare = 0.70, kFullShare = 0.85;
// Blobs are moved in steps, so that a move needs little room beside what is there.
constexpr double kMoveShares[] = {0.0, 0.125, 0.25, 0.5, 1.0};
// Of the live bytes, evicted when moving alone does not help.
constexpr double kExtraEviction = 0.05;
constexpr uint64_t kOverheadBytes = 256;  // a block beside its bytes: entry, keys, blob's header

class ColdTier final : public BlockTier {
 public:
  ColdTier(const ColdTierOptions& options, std::unique_ptr<ColdDatabase> database)
      : options_(options), database_(std::move(database)) {}
  ~ColdTier() override {
    if (options_.read_only) return;
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change change(*database_);
    AddTouched(change);
    change.Write().PermitUncheckedError();  // only the order of later evictions suffers
  }

  Status LoadIndex() {
    const base::MutexLock writing(write_mutex_);
    device_bytes_ = database_->DeviceBytes();
    {
      const base::MutexLock lock(mutex_);
      const rocksdb::Status status = database_->LoadIndex(
          [this](const BlockKey& key, const EvictionEntry& entry) { index_.Restore(key, entry); });
      if (!status.ok()) return {StatusCode::kDataLoss, "cold store: " + status.ToString()};
      index_.EndRestore();
    }
    // The budget may be smaller than in the last run.
    if (!options_.read_only && MakeRoom(0) != ErrorReason::kNone) {
      return {StatusCode::kUnavailable,
              "cold store '" + options_.directory +
                  "' cannot be brought within its budget: " + LastError()};
    }
    return {};
  }

  std::string_view name() const override { return "cold"; }

  std::vector<TierAnswer> Put(std::span<const TierPut> items, TimePoint) override {
    const base::MutexLock writing(write_mutex_);
    device_bytes_ = database_->DeviceBytes();
    std::vector<TierAnswer> answers;
    for (const TierPut& item : items) {
      const ErrorReason reason = PutOne(item);
      answers.push_back(reason == ErrorReason::kNone ? TierAnswer::Ok()
                                                     : TierAnswer::Error(reason));
    }
    return answers;
  }

  std::vector<TierAnswer> Get(std::span<const BlockKey> keys, TimePoint deadline) override {
    std::vector<TierAnswer> answers;
    for (const BlockKey& key : keys) {
      answers.push_back(std::chrono::steady_clock::now() >= deadline
                            ? TierAnswer::Error(ErrorReason::kTimeout)
                            : GetOne(key));
    }
    return answers;
  }

  std::vector<TierAnswer> Contains(std::span<const BlockKey> keys, TimePoint) override {
    std::vector<TierAnswer> answers;
    for (const BlockKey& key : keys) {
      answers.push_back(*ContainsNow(key) ? TierAnswer::Ok() : TierAnswer::Miss());
    }
    return answers;
  }

  std::vector<TierAnswer> Remove(std::span<const BlockKey> keys, TimePoint) override {
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change change(*database_);
    std::vector<TierAnswer> answers;
    for (const BlockKey& key : keys) {
      answers.push_back(*ContainsNow(key) ? TierAnswer::Ok() : TierAnswer::Miss());
      const base::MutexLock lock(mutex_);
      index_.Erase(key);
      change.Erase(key);
    }
    const rocksdb::Status status = change.Write();
    if (!status.ok()) {
      Note(status);
      answers.assign(keys.size(), TierAnswer::Error(ReasonOf(status)));
    }
    return answers;
  }

  std::optional<bool> ContainsNow(const BlockKey& key) const override {
    const base::MutexLock lock(mutex_);
    return index_.Find(key) != nullptr;
  }

  Status Ping(TimePoint) override {
    const base::MutexLock writing(write_mutex_);
    return StatusOf(database_->Resume());
  }

  Status Flush(TimePoint) override {
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change change(*database_);
    AddTouched(change);
    Status status = StatusOf(change.Write());
    return status.ok() ? StatusOf(database_->Sync()) : status;
  }

  TierUsage Usage() const override {
    TierUsage usage;
    usage.device_bytes = database_->DeviceBytes();
    usage.budget_bytes = options_.budget_bytes;
    const base::MutexLock lock(mutex_);
    usage.blocks = index_.size();
    usage.bytes = index_.bytes();
    usage.unreachable = index_.num_unreachable();
    usage.evictions = evictions_;
    return usage;
  }

  Status List(const std::function<bool(const TierEntry&)>& visit) const override {
    std::vector<TierEntry> entries;  // visit runs without the lock: it may call the tier
    {
      const base::MutexLock lock(mutex_);
      index_.ForEach([&entries](const BlockKey& key, const EvictionEntry& entry) {
        entries.push_back({key, entry.parent, entry.bytes, entry.uses});
      });
    }
    for (const TierEntry& entry : entries) {
      if (!visit(entry)) break;
    }
    return {};
  }

  std::string LastError() const override {
    const base::MutexLock lock(mutex_);
    return last_error_;
  }

 private:
  uint64_t Share(double share) const {
    return static_cast<uint64_t>(static_cast<double>(options_.budget_bytes) * share);
  }

  ErrorReason PutOne(const TierPut& item) KVLINK_REQUIRES(write_mutex_) {
    const uint64_t bytes = item.bytes.size() + kOverheadBytes;
    if (const ErrorReason reason = MakeRoom(bytes); reason != ErrorReason::kNone) return reason;
    ColdDatabase::Change change(*database_);
    AddTouched(change);
    {
      const base::MutexLock lock(mutex_);
      change.PutEntry(item.key, index_.NewEntry(item.parent, item.bytes.size(), item.cost_us));
    }
    change.PutBlock(item.key, item.bytes);
    rocksdb::Status status = change.Write();
    if (!status.ok()) {
      Note(status);
      database_->Resume().PermitUncheckedError();  // for the next one
      return ReasonOf(status);
    }
    device_bytes_ += 2 * bytes;  // once in the log, once in a blob file
    const base::MutexLock lock(mutex_);
    index_.Insert(item.key, item.parent, item.bytes.size(), item.cost_us);
    return ErrorReason::kNone;
  }

  TierAnswer GetOne(const BlockKey& key) {
    rocksdb::PinnableSlice bytes;
    if (!*ContainsNow(key)) return TierAnswer::Miss();
    const rocksdb::Status status = database_->Get(key, &bytes);
    if (status.ok()) {
      const base::MutexLock lock(mutex_);
      index_.Touch(key);
      touched_.insert(key);
      return TierAnswer::Ok(bytes.ToString());
    }
    if (status.IsNotFound()) return EvictedOrLost(key);
    Note(status);
    return TierAnswer::Error(ReasonOf(status));
  }

  // The index had the block, the database has not: it was evicted in between, as a rule.
  TierAnswer EvictedOrLost(const BlockKey& key) {
    const base::MutexLock writing(write_mutex_);
    rocksdb::PinnableSlice bytes;
    if (database_->Get(key, &bytes).IsNotFound()) {
      const base::MutexLock lock(mutex_);
      index_.Erase(key);
    }
    return TierAnswer::Miss();
  }

  // The worth that uses gave, since the last time.
  void AddTouched(ColdDatabase::Change& change) KVLINK_REQUIRES(write_mutex_) {
    const base::MutexLock lock(mutex_);
    for (const BlockKey& key : touched_) {
      if (const EvictionEntry* entry = index_.Find(key)) change.PutEntry(key, *entry);
    }
    touched_.clear();
  }

  // Until `bytes` more fit: evicts, and gives space on the device back.
  ErrorReason MakeRoom(uint64_t bytes) KVLINK_REQUIRES(write_mutex_) {
    if (bytes > Share(kLiveShare)) return ErrorReason::kFull;
    if (const ErrorReason reason = EvictTo(Share(kLiveShare) - bytes);
        reason != ErrorReason::kNone) {
      return reason;
    }
    if (bytes > 0 && database_->FreeBytes() < options_.min_free_bytes + 2 * bytes) {
      Note("less than " + std::to_string(options_.min_free_bytes) +
           " bytes are free on the device");
      return ErrorReason::kFull;
    }
    const auto fits = [this, bytes] { return device_bytes_ + 2 * bytes <= Share(kFullShare); };
    if (fits()) return ErrorReason::kNone;
    device_bytes_ = database_->DeviceBytes();
    while (!fits()) {
      uint64_t live = 0;
      for (const double share : kMoveShares) {
        {
          const base::MutexLock lock(mutex_);
          live = LiveBytes();
        }
        // A move that itself would not fit must wait until more was evicted.
        const double needs = share * static_cast<double>(live);
        if (share > 0 && static_cast<double>(device_bytes_) + needs > Share(1.0)) break;
        const rocksdb::Status status = database_->Reclaim(share);
        device_bytes_ = database_->DeviceBytes();
        if (!status.ok()) {
          Note(status);
          return ReasonOf(status);
        }
        if (fits()) return ErrorReason::kNone;
      }
      if (live == 0) return ErrorReason::kFull;  // nothing left to give back
      const uint64_t less = static_cast<uint64_t>(static_cast<double>(live) * (1 - kExtraEviction));
      if (const ErrorReason reason = EvictTo(std::min(less, live - 1));
          reason != ErrorReason::kNone) {
        return reason;
      }
    }
    return ErrorReason::kNone;
  }

  uint64_t LiveBytes() const KVLINK_REQUIRES(mutex_) {
    return index_.bytes() + index_.size() * kOverheadBytes;
  }

  ErrorReason EvictTo(uint64_t live_bytes) KVLINK_REQUIRES(write_mutex_) {
    ColdDatabase::Change change(*database_);
    {
      const base::MutexLock lock(mutex_);
      while (LiveBytes() > live_bytes) {
        const BlockKey key = *index_.Next();
        index_.Evict(key);
        touched_.erase(key);
        change.Erase(key);
        ++evictions_;
      }
    }
    const rocksdb::Status status = change.Write();
    if (status.ok()) return ErrorReason::kNone;
    Note(status);
    database_->Resume().PermitUncheckedError();
    return ReasonOf(status);
  }

  void Note(std::string error) {
    const base::MutexLock lock(mutex_);
    last_error_ = std::move(error);
  }
  void Note(const rocksdb::Status& status) { Note(status.ToString()); }
  Status StatusOf(const rocksdb::Status& status) {
    if (status.ok()) return {};
    Note(status);
    return {StatusCode::kUnavailable,
            "cold store '" + options_.directory + "': " + status.ToString()};
  }

  const ColdTierOptions options_;
  const std::unique_ptr<ColdDatabase> database_;

  // Taken before mutex_; held while the database is written.
  base::Mutex write_mutex_;
  uint64_t device_bytes_ KVLINK_GUARDED_BY(write_mutex_) = 0;  // at least; counted up by writes

  mutable base::Mutex mutex_;
  EvictionIndex index_ KVLINK_GUARDED_BY(mutex_);
  std::unordered_set<BlockKey> touched_ KVLINK_GUARDED_BY(mutex_);  // worth not yet written
  uint64_t evictions_ KVLINK_GUARDED_BY(mutex_) = 0;
  std::string last_error_ KVLINK_GUARDED_BY(mutex_);
};

Result<std::unique_ptr<BlockTier>> OpenOnce(const ColdTierOptions& options, bool emptied) {
  Result<std::unique_ptr<ColdDatabase>> database = ColdDatabase::Open(options, emptied);
  if (!database.ok()) return database.status();
  auto tier = std::make_unique<ColdTier>(options, std::move(*database));
  if (Status status = tier->LoadIndex(); !status.ok()) return status;
  return std::unique_ptr<BlockTier>(std::move(tier));
}

}  // namespace

Result<std::unique_ptr<BlockTier>> OpenColdTier(const ColdTierOptions& options) {
  if (options.directory.empty()) {
    return Status(StatusCode::kInvalidArgument, "cold store: no directory given");
  }
  if (options.budget_bytes < kMinColdBudget) {
    return Status(StatusCode::kInvalidArgument,
                  "cold store: a budget of " + std::to_string(options.budget_bytes) +
                      " bytes; at least " + std::to_string(kMinColdBudget) + " are needed");
  }
  Result<std::unique_ptr<BlockTier>> tier = OpenOnce(options, /*emptied=*/false);
  const bool damaged = !tier.ok() && tier.status().code() == StatusCode::kDataLoss;
  if (!damaged || !options.recreate_if_damaged || options.read_only) return tier;
  return OpenOnce(options, /*emptied=*/true);
}

}  // namespace kvlink::tier
