// ColdDatabase: the cold tier's directory and the index in it, in RocksDB: key -> {parent, bytes,
// worth, uses, place}. In memory it is ColdIndex; the blocks' bytes are BlobFiles' matter.
//
// The directory also holds COLD_STORE, which says that it is ours and carries the lock: one process
// (flock). Changes go through RocksDB's log, which is written but not synced.
// Threads: reads from any; changes from one at a time.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <functional>
#include <memory>
#include <string>

#include "tier/block_tier.h"
#include "tier/cold_index.h"
#include "tier/cold_tier.h"

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
    void Put(const BlockKey& key, const ColdEntry& entry);
    void Erase(const BlockKey& key);
    bool empty() const { return batch_.Count() == 0; }
    rocksdb::Status Write();

   private:
    ColdDatabase& database_;
    rocksdb::WriteBatch batch_;
  };

  // Calls visit for every entry of the index; malformed ones are skipped.
  rocksdb::Status LoadIndex(
      const std::function<void(const BlockKey&, const ColdEntry&)>& visit) const;

  // What the directory's files take, but for those of BlobFiles.
  uint64_t DeviceBytes() const;
  uint64_t FreeBytes() const;  // of the device
  rocksdb::Status Compact();
  rocksdb::Status Sync();
  rocksdb::Status Resume();  // after a failed write; opens it again where it must be

 private:
  ColdDatabase(const ColdTierOptions& options, int lock) : options_(options), lock_(lock) {}
  Status OpenRocks();

  const ColdTierOptions options_;
  const int lock_;                      // descriptor of COLD_STORE
  std::unique_ptr<rocksdb::DB> rocks_;  // null: it could not be opened again
  bool log_failed_ = false;             // and nothing has repaired it
};

ErrorReason ReasonOf(const rocksdb::Status& status);
ErrorReason ReasonOfErrno(int error);

}  // namespace kvlink::tier
