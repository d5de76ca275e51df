#include "tier/cold_tier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "tier/blob_files.h"
#include "tier/cold_database.h"
#include "tier/cold_index.h"

namespace kvlink::tier {
namespace {

// Of the budget: live blocks at most; above the second, space is given back before more is written.
// The rest is for RocksDB's logs and for what a move writes.
constexpr double kLiveShare = 0.75, kFullShare = 0.90;
// A file is emptied by moving when at most so much of it lives; else more is evicted first. So a
// byte that is given back costs at most two that are moved.
constexpr double kMostMoved = 0.65;
// Of the live bytes, evicted when no file is that sparse.
constexpr double kExtraEviction = 0.02;
// RocksDB cannot be opened on a device that has no room at all.
constexpr uint64_t kRoomToOpen = uint64_t{2} << 20;

uint64_t FileBytes(const ColdTierOptions& options) {
  return std::max<uint64_t>(options.budget_bytes / 128, uint64_t{1} << 20);
}

class ColdTier final : public BlockTier {
 public:
  ColdTier(const ColdTierOptions& options, std::unique_ptr<ColdDatabase> database,
           std::unique_ptr<BlobFiles> blobs)
      : options_(options), database_(std::move(database)), blobs_(std::move(blobs)) {}
  ~ColdTier() override {
    if (options_.read_only) return;
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change change(*database_);
    AddUsed(change);
    change.Write().PermitUncheckedError();  // only the order of later evictions suffers
  }

  Status LoadIndex() {
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change lost(*database_);
    const rocksdb::Status status =
        database_->LoadIndex([&](const BlockKey& key, const ColdEntry& found) {
          if (!blobs_->Restore(found.place)) return lost.Erase(key);
          index_.Restore(key, found);
        });
    if (!status.ok()) return {StatusCode::kDataLoss, "cold store: " + status.ToString()};
    index_.EndRestore();
    if (options_.read_only) return {};
    blobs_->RemoveDead();
    lost.Write().PermitUncheckedError();  // they are found out again at the next start
    // The budget may be smaller than in the last run.
    other_bytes_ = database_->DeviceBytes();
    if (MakeRoom(0) != ErrorReason::kNone) {
      return {StatusCode::kUnavailable,
              "cold store '" + options_.directory +
                  "' cannot be brought within its budget: " + LastError()};
    }
    return {};
  }

  std::string_view name() const override { return "cold"; }

  std::vector<TierAnswer> Put(std::span<const TierPut> items, TimePoint) override {
    if (options_.read_only) return ReadOnly(items.size());
    const base::MutexLock writing(write_mutex_);
    std::vector<TierAnswer> answers;
    other_bytes_ = database_->DeviceBytes();
    while (answers.size() < items.size()) {
      const std::span<const TierPut> batch = NextBatch(items.subspan(answers.size()));
      const ErrorReason reason = PutBatch(batch);
      answers.resize(answers.size() + batch.size(),
                     reason == ErrorReason::kNone ? TierAnswer::Ok() : TierAnswer::Error(reason));
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
      answers.push_back(index_.Find(key) ? TierAnswer::Ok() : TierAnswer::Miss());
    }
    return answers;
  }

  std::vector<TierAnswer> Remove(std::span<const BlockKey> keys, TimePoint) override {
    if (options_.read_only) return ReadOnly(keys.size());
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change change(*database_);
    std::vector<TierAnswer> answers;
    std::vector<Place> dropped;
    for (const BlockKey& key : keys) {
      const std::optional<Place> place = index_.Erase(key);
      answers.push_back(place ? TierAnswer::Ok() : TierAnswer::Miss());
      if (place) dropped.push_back(*place);
      change.Erase(key);
    }
    const rocksdb::Status status = change.Write();
    Drop(dropped);
    if (!status.ok()) {
      Note(status);
      answers.assign(keys.size(), TierAnswer::Error(ReasonOf(status)));
    }
    return answers;
  }

  std::optional<bool> ContainsNow(const BlockKey& key) const override {
    return index_.Find(key).has_value();
  }

  Status Ping(TimePoint) override {
    const base::MutexLock writing(write_mutex_);
    return StatusOf(database_->Resume());
  }

  Status Flush(TimePoint) override {
    const base::MutexLock writing(write_mutex_);
    ColdDatabase::Change change(*database_);
    AddUsed(change);
    const Status status = StatusOf(change.Write());
    if (!status.ok()) return status;
    // Bytes before the entries that say where they are.
    if (const int error = blobs_->Sync(); error != 0) return StatusOf(Errno(error));
    return StatusOf(database_->Sync());
  }

  TierUsage Usage() const override {
    TierUsage usage;
    index_.AddTo(&usage);
    usage.device_bytes = database_->DeviceBytes() + blobs_->total_bytes();
    usage.budget_bytes = options_.budget_bytes;
    return usage;
  }

  Status List(const std::function<bool(const TierEntry&)>& visit) const override {
    for (const TierEntry& entry : index_.List()) {  // a copy: visit may call the tier
      if (!visit(entry)) break;
    }
    return {};
  }

  std::string LastError() const override {
    const base::MutexLock lock(error_mutex_);
    return last_error_;
  }

 private:
  uint64_t Share(double share) const {
    return static_cast<uint64_t>(static_cast<double>(options_.budget_bytes) * share);
  }
  static std::vector<TierAnswer> ReadOnly(size_t count) {
    return std::vector<TierAnswer>(count, TierAnswer::Error(ErrorReason::kIo));
  }

  // As many as fit into one file, and at least one.
  std::span<const TierPut> NextBatch(std::span<const TierPut> items) const {
    size_t count = 1;
    uint64_t bytes = items[0].bytes.size();
    while (count < items.size() && bytes + items[count].bytes.size() <= FileBytes(options_)) {
      bytes += items[count++].bytes.size();
    }
    return items.first(count);
  }

  ErrorReason PutBatch(std::span<const TierPut> items) KVLINK_REQUIRES(write_mutex_) {
    std::vector<std::string_view> blobs;
    uint64_t bytes = 0;
    for (const TierPut& item : items) {
      blobs.push_back(item.bytes);
      bytes += item.bytes.size() + ColdIndex::kOverheadBytes;
    }
    if (const ErrorReason reason = MakeRoom(bytes); reason != ErrorReason::kNone) return reason;
    std::vector<Place> places;
    if (const int error = blobs_->Append(blobs, &places); error != 0) {
      Note(Errno(error));
      return ReasonOfErrno(error);
    }
    ColdDatabase::Change change(*database_);
    AddUsed(change);
    for (size_t i = 0; i < items.size(); ++i) {
      change.Put(items[i].key, index_.EntryOf(items[i], places[i]));
    }
    if (const ErrorReason reason = Apply(change); reason != ErrorReason::kNone) {
      Drop(places);
      return reason;
    }
    std::vector<Place> replaced;
    for (size_t i = 0; i < items.size(); ++i) {
      if (const auto place = index_.Insert(items[i], places[i])) replaced.push_back(*place);
    }
    Drop(replaced);
    return ErrorReason::kNone;
  }

  TierAnswer GetOne(const BlockKey& key) {
    std::optional<Place> place = index_.Find(key);
    while (place) {
      std::string bytes;
      const int error = blobs_->Read(*place, &bytes);
      if (error == 0) {
        index_.Use(key);
        return TierAnswer::Ok(std::move(bytes));
      }
      const std::optional<Place> now = index_.Find(key);
      if (now == place) {
        Note(Errno(error));
        return TierAnswer::Error(error == ENODATA ? ErrorReason::kCorrupt : ErrorReason::kIo);
      }
      place = now;  // it was moved or evicted in between
    }
    return TierAnswer::Miss();
  }

  // Until `bytes` more fit: evicts, and gives space on the device back.
  ErrorReason MakeRoom(uint64_t bytes) KVLINK_REQUIRES(write_mutex_) {
    if (bytes > Share(kLiveShare)) return ErrorReason::kFull;
    if (const ErrorReason reason = EvictTo(Share(kLiveShare) - bytes);
        reason != ErrorReason::kNone) {
      return reason;
    }
    const uint64_t stays = std::max(options_.min_free_bytes, kRoomToOpen);
    if (bytes > 0 && database_->FreeBytes() < stays + bytes) {
      Note("less than " + std::to_string(stays) + " bytes are free on the device");
      return ErrorReason::kFull;
    }
    bool is_compacted = false;
    while (device_bytes() + bytes > Share(kFullShare)) {
      const ErrorReason reason = GiveBack(&is_compacted);
      if (reason != ErrorReason::kNone) return reason;
    }
    return ErrorReason::kNone;
  }

  uint64_t device_bytes() const KVLINK_REQUIRES(write_mutex_) {
    return other_bytes_ + blobs_->total_bytes();
  }

  // One step towards less on the device.
  ErrorReason GiveBack(bool* is_compacted) KVLINK_REQUIRES(write_mutex_) {
    const std::optional<BlobFiles::Usage> sparsest = blobs_->Sparsest();
    if (sparsest && device_bytes() + sparsest->live_bytes <= Share(1.0) &&
        static_cast<double>(sparsest->live_bytes) <=
            kMostMoved * static_cast<double>(sparsest->bytes)) {
      return MoveOutOf(sparsest->file);
    }
    if (const uint64_t live = index_.live_bytes(); live > 0) {
      const auto less = static_cast<uint64_t>(static_cast<double>(live) * (1 - kExtraEviction));
      return EvictTo(std::min(less, live - 1));
    }
    if (std::exchange(*is_compacted, true)) return ErrorReason::kFull;  // nothing is left to give
    blobs_->Seal();
    const rocksdb::Status status = database_->Compact();
    other_bytes_ = database_->DeviceBytes();
    if (!status.ok()) Note(status);
    return ReasonOf(status);
  }

  // Appends what lives in the file to the current one. What cannot be read is gone.
  ErrorReason MoveOutOf(uint32_t file) KVLINK_REQUIRES(write_mutex_) {
    ColdDatabase::Change change(*database_);
    std::vector<PlacedBlock> moved;
    std::vector<BlockKey> lost;
    std::vector<Place> before, after;
    std::string bytes;
    for (const auto& [key, place] : index_.InFile(file)) {
      before.push_back(place);
      if (blobs_->Read(place, &bytes) != 0) {
        lost.push_back(key);
        change.Erase(key);
        continue;
      }
      const std::string_view blob = bytes;
      std::vector<Place> places;
      if (const int error = blobs_->Append({&blob, 1}, &places); error != 0) {
        Drop(after);
        Note(Errno(error));
        return ReasonOfErrno(error);
      }
      moved.emplace_back(key, places[0]);
      after.push_back(places[0]);
      change.Put(key, {index_.At(key).entry, places[0]});
    }
    if (const ErrorReason reason = Apply(change); reason != ErrorReason::kNone) {
      Drop(after);
      return reason;
    }
    for (const auto& [key, place] : moved) index_.Move(key, place);
    for (const BlockKey& key : lost) index_.Erase(key);
    Drop(before);
    return ErrorReason::kNone;
  }

  ErrorReason EvictTo(uint64_t live_bytes) KVLINK_REQUIRES(write_mutex_) {
    ColdDatabase::Change change(*database_);
    std::vector<Place> dropped;
    for (const auto& [key, place] : index_.EvictTo(live_bytes)) {
      change.Erase(key);
      dropped.push_back(place);
    }
    const ErrorReason reason = Apply(change);
    // Also when that failed: an entry that comes back with the next start finds its bytes gone.
    Drop(dropped);
    return reason;
  }

  void AddUsed(ColdDatabase::Change& change) KVLINK_REQUIRES(write_mutex_) {
    for (const auto& [key, entry] : index_.TakeUsed()) change.Put(key, entry);
  }

  ErrorReason Apply(ColdDatabase::Change& change) KVLINK_REQUIRES(write_mutex_) {
    const rocksdb::Status status = change.Write();
    if (status.ok()) return ErrorReason::kNone;
    Note(status);
    database_->Resume().PermitUncheckedError();  // for the next one
    return ReasonOf(status);
  }

  // After the index has let go of them, so that who finds a file gone finds another place, or none.
  void Drop(const std::vector<Place>& places) KVLINK_REQUIRES(write_mutex_) {
    for (const Place& place : places) blobs_->Drop(place);
  }

  void Note(std::string error) {
    const base::MutexLock lock(error_mutex_);
    last_error_ = std::move(error);
  }
  void Note(const rocksdb::Status& status) { Note(status.ToString()); }
  static rocksdb::Status Errno(int error) {
    return rocksdb::Status::IOError("blob file", std::strerror(error));
  }
  Status StatusOf(const rocksdb::Status& status) {
    if (status.ok()) return {};
    Note(status);
    return {StatusCode::kUnavailable,
            "cold store '" + options_.directory + "': " + status.ToString()};
  }

  const ColdTierOptions options_;
  const std::unique_ptr<ColdDatabase> database_;
  const std::unique_ptr<BlobFiles> blobs_;  // changed under write_mutex_
  ColdIndex index_;                         // likewise, but for uses

  base::Mutex write_mutex_;
  uint64_t other_bytes_ KVLINK_GUARDED_BY(write_mutex_) = 0;  // on the device, beside the blobs

  mutable base::Mutex error_mutex_;
  std::string last_error_ KVLINK_GUARDED_BY(error_mutex_);
};

Result<std::unique_ptr<BlockTier>> OpenOnce(const ColdTierOptions& options, bool emptied) {
  Result<std::unique_ptr<ColdDatabase>> database = ColdDatabase::Open(options, emptied);
  if (!database.ok()) return database.status();
  Result<std::unique_ptr<BlobFiles>> blobs = BlobFiles::Open(options.directory, FileBytes(options));
  if (!blobs.ok()) return blobs.status();
  auto tier = std::make_unique<ColdTier>(options, std::move(*database), std::move(*blobs));
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
