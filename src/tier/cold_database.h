// ColdDatabase: the RocksDB store of the cold tier: opening, locking, its two column families, what
// it takes on the device, and giving space back. Which blocks stay is ColdTier's matter.
//
// The directory also holds COLD_STORE, which says that it is ours and carries the lock: one process
// (flock). RocksDB compacts by itself without touching blobs; blobs move only in Reclaim, so that
// what the directory takes never grows behind our back.
// Threads: reads from any; writes and Reclaim from one at a time.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tier/block_tier.h"
#include "tier/cold_tier.h"
#include "tier/eviction_index.h"

namespace kvlink::tier {

class ColdDatabase {
 public:
  // `emptied`: what is there goes first.
  static Result<std::unique_ptr<ColdDatabase>> Open(const ColdTierOptions& options,
                                                    bool emptied = false);
  ~ColdDatabase();
  ColdDatabase(const ColdDatabase&) = delete;
  ColdDatabase& operator=(const ColdDatabase&) = delete;

  // A batch of changes that become visible together.
  class Change {
   public:
    explicit Change(ColdDatabase& database) : database_(database) {}
    void PutBlock(const BlockKey& key, std::string_view bytes);
    void PutEntry(const BlockKey& key, const EvictionEntry& entry);
    void Erase(const BlockKey& key);
    bool empty() const { return batch_.Count() == 0; }
    rocksdb::Status Write();

   private:
    ColdDatabase& database_;
    rocksdb::WriteBatch batch_;
  };

  rocksdb::Status Get(const BlockKey& key, rocksdb::PinnableSlice* bytes) const;
  // Calls visit for every entry of the index; malformed ones are skipped.
  rocksdb::Status LoadIndex(
      const std::function<void(const BlockKey&, const EvictionEntry&)>& visit) const;

  // What the directory's files take.
  uint64_t DeviceBytes() const;
  uint64_t FreeBytes() const;  // of the device
  // Writes memory out, drops files of which nothing is left; with `share` > 0 moves the live blobs
  // of that share of the files, the oldest, together.
  rocksdb::Status Reclaim(double share);
  rocksdb::Status Sync();
  rocksdb::Status Resume();  // after a failed write

 private:
  ColdDatabase(std::string directory, int lock) : directory_(std::move(directory)), lock_(lock) {}
  Status OpenRocks(const ColdTierOptions& options);

  const std::string directory_;
  const int lock_;  // descriptor of COLD_STORE
  std::unique_ptr<rocksdb::DB> rocks_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;
  rocksdb::ColumnFamilyHandle* index_ = nullptr;
  rocksdb::ColumnFamilyHandle* blocks_ = nullptr;
};

ErrorReason ReasonOf(const rocksdb::Status& status);

}  // namespace kvlink::tier
