// BlobFiles: the bytes of the cold tier's blocks, in files that are only ever appended to. Where
// each lies (its Place) is the index's matter; the files have no structure of their own.
//
//   kv-000017.blob   bytes of a | bytes of b | ...      one write for all blocks of a batch
//
// A block is written once and checked by the codec's checksum alone; RocksDB's own blob files take
// it through a log, a table in memory and the file, with a checksum of their own in each
// (docs/adr/0023).
//
// Invariants
//   1. What Append gave places for lies in the files: a killed process loses none of it.
//   2. Files of an earlier run are not appended to, so whatever a kill cut short lies behind all
//      that the index knows.
//   3. A file in which nothing is live goes, but for the one that is appended to. Who reads from it
//      at that moment reads on.
// Threads: Read and total_bytes from any, the rest from one at a time. Cost: a system call a batch,
// and one a read.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "kvlink/status.h"

namespace kvlink::tier {

struct Place {
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;
  bool operator==(const Place&) const = default;
};

class BlobFiles {
 public:
  // Finds the files that an earlier run left. One that holds `file_bytes` or more is full.
  static Result<std::unique_ptr<BlobFiles>> Open(std::string directory, uint64_t file_bytes);
  ~BlobFiles();
  BlobFiles(const BlobFiles&) = delete;
  BlobFiles& operator=(const BlobFiles&) = delete;

  // `place` is live, says the index of an earlier run. False: no file has it.
  bool Restore(const Place& place);
  // After the last Restore: files in which nothing is live go.
  void RemoveDead();

  // Appends all of them, or none. 0 or an errno.
  int Append(std::span<const std::string_view> blobs, std::vector<Place>* places);
  // 0 or an errno: ENOENT where the file is gone, ENODATA where it ends too early.
  int Read(const Place& place, std::string* bytes) const;
  // Requires: live. Its bytes become garbage.
  void Drop(const Place& place);
  // What was appended survives a power failure when this returns 0 (or an errno).
  int Sync();
  // The next Append begins another file.
  void Seal();

  struct Usage {
    uint32_t file = 0;
    uint64_t bytes = 0, live_bytes = 0;
  };
  // Of the full files the one with the smallest live share.
  std::optional<Usage> Sparsest() const;
  uint64_t total_bytes() const { return total_bytes_.load(std::memory_order_relaxed); }
  static bool IsBlobFile(std::string_view name);

 private:
  struct File {
    explicit File(int descriptor) : fd(descriptor) {}
    ~File();
    const int fd;
    uint64_t bytes = 0, live_bytes = 0, live_blobs = 0;
    bool is_dirty = false;  // appended to since the last Sync
  };

  BlobFiles(std::string directory, uint64_t file_bytes)
      : directory_(std::move(directory)), file_bytes_(file_bytes) {}
  std::string PathOf(uint32_t number) const;
  int StartFile();
  std::shared_ptr<File> Find(uint32_t number) const;
  void RemoveFile(uint32_t number);

  const std::string directory_;
  const uint64_t file_bytes_;
  uint32_t next_number_ = 1;
  uint32_t current_ = 0;  // the file that is appended to; 0: none yet
  std::atomic<uint64_t> total_bytes_{0};
  mutable base::Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<File>> files_ KVLINK_GUARDED_BY(mutex_);
};

}  // namespace kvlink::tier
