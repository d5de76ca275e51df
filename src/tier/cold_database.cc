#include "tier/cold_database.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/table.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/endian.h"

namespace kvlink::tier {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kMarker = "kvlink cold store, format 1\n";
constexpr const char* kMarkerName = "COLD_STORE";
constexpr size_t kEntryBytes = 44;

// Most significant byte first, so that the order of bytes is the order of keys.
std::string RocksKey(const BlockKey& key) {
  std::string bytes;
  for (const uint64_t half : {key.hi, key.lo}) {
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(half >> shift));
    }
  }
  return bytes;
}

BlockKey KeyOf(std::string_view bytes) {
  BlockKey key;
  for (size_t i = 0; i < 8; ++i) {
    key.hi = key.hi << 8 | static_cast<unsigned char>(bytes[i]);
    key.lo = key.lo << 8 | static_cast<unsigned char>(bytes[8 + i]);
  }
  return key;
}

std::string EntryBytes(const EvictionEntry& entry) {
  std::string bytes;
  base::PutLe(bytes, entry.parent.lo);
  base::PutLe(bytes, entry.parent.hi);
  base::PutLe(bytes, entry.bytes);
  base::PutLe(bytes, std::bit_cast<uint64_t>(entry.cost_us));
  base::PutLe(bytes, std::bit_cast<uint64_t>(entry.worth));
  base::PutLe(bytes, entry.uses);
  return bytes;
}

// Requires: kEntryBytes bytes.
EvictionEntry EntryOf(std::string_view bytes) {
  const auto number = [bytes](size_t at) { return base::GetLe<uint64_t>(bytes.substr(at)); };
  EvictionEntry entry;
  entry.parent = {number(0), number(8)};
  entry.bytes = number(16);
  entry.cost_us = std::bit_cast<double>(number(24));
  entry.worth = std::bit_cast<double>(number(32));
  entry.uses = base::GetLe<uint32_t>(bytes.substr(40));
  return entry;
}

rocksdb::DBOptions DatabaseOptions(const ColdTierOptions& options) {
  rocksdb::DBOptions database;
  database.create_if_missing = true;
  database.create_missing_column_families = true;
  // After a torn or flipped byte in the log: what was written before it.
  database.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  database.atomic_flush = true;  // a lost log leaves no block without its entry
  // Opening writes as little as it can: the device may be full.
  database.avoid_flush_during_recovery = true;
  database.allow_fallocate = false;  // files take what they hold
  database.max_background_jobs = 2;
  database.max_open_files = 256;
  database.max_manifest_file_size = uint64_t{1} << 20;
  database.max_log_file_size = size_t{1} << 20;
  database.keep_log_file_num = 2;
  database.info_log_level = rocksdb::InfoLogLevel::ERROR_LEVEL;
  database.stats_dump_period_sec = 0;
  database.stats_persist_period_sec = 0;
  database.max_total_wal_size = std::max<uint64_t>(options.budget_bytes / 16, uint64_t{2} << 20);
  return database;
}

rocksdb::ColumnFamilyOptions FamilyOptions(const ColdTierOptions& options, bool blobs) {
  rocksdb::ColumnFamilyOptions family;
  // Blocks wait in memory, and in the log, until this much has come.
  family.write_buffer_size =
      std::clamp<uint64_t>(options.budget_bytes / 32, uint64_t{1} << 20, uint64_t{16} << 20);
  family.compression = rocksdb::kNoCompression;  // the codec compresses, where it pays
  family.enable_blob_files = blobs;
  family.min_blob_size = 512;
  family.blob_file_size =
      std::clamp<uint64_t>(options.budget_bytes / 64, uint64_t{1} << 20, uint64_t{256} << 20);
  family.blob_compression_type = rocksdb::kNoCompression;
  family.enable_blob_garbage_collection = false;  // by Reclaim only
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{4} << 20);
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return family;
}

Status Unusable(StatusCode code, const std::string& directory, const std::string& why) {
  return {code, "cold store '" + directory + "': " + why};
}

void RemoveFiles(const std::string& directory, bool (*which)(const fs::path&)) {
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(directory, error)) {
    if (which(file.path())) fs::remove_all(file.path(), error);
  }
}

// Makes or finds COLD_STORE and locks it; gives the descriptor.
Result<int> LockDirectory(const ColdTierOptions& options) {
  const std::string& directory = options.directory;
  std::error_code error;
  if (!options.read_only && fs::create_directories(directory, error)) {
    fs::permissions(directory, fs::perms::owner_all, error);  // blocks show tokens
  }
  if (!fs::is_directory(directory, error)) {
    return Unusable(StatusCode::kNotFound, directory,
                    error ? error.message() : "is not a directory");
  }
  const fs::path marker = fs::path(directory) / kMarkerName;
  if (!fs::exists(marker, error)) {
    if (options.read_only) {
      return Unusable(StatusCode::kNotFound, directory, "holds no cold store");
    }
    if (!fs::is_empty(directory, error)) {
      return Unusable(StatusCode::kFailedPrecondition, directory,
                      "is neither empty nor a cold store; give a directory of its own");
    }
  }
  const int flags = (options.read_only ? O_RDONLY : O_RDWR | O_CREAT) | O_CLOEXEC;
  const int lock = ::open(marker.c_str(), flags, 0644);
  if (lock < 0) {
    return Unusable(StatusCode::kUnavailable, directory, std::strerror(errno));
  }
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock);
    return Unusable(StatusCode::kFailedPrecondition, directory, "is in use by another process");
  }
  std::string text(kMarker.size() + 1, '\0');
  const ssize_t size = ::pread(lock, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  if (text.empty() && !options.read_only) {
    if (::pwrite(lock, kMarker.data(), kMarker.size(), 0) == static_cast<ssize_t>(kMarker.size())) {
      return lock;
    }
    const std::string why = std::strerror(errno);
    ::close(lock);
    return Unusable(StatusCode::kUnavailable, directory, why);
  }
  if (text != kMarker) {
    ::close(lock);
    return Unusable(StatusCode::kFailedPrecondition, directory,
                    "has another format than this version reads");
  }
  return lock;
}

}  // namespace

ErrorReason ReasonOf(const rocksdb::Status& status) {
  if (status.ok()) return ErrorReason::kNone;
  if (status.IsNoSpace()) return ErrorReason::kFull;
  if (status.IsCorruption()) return ErrorReason::kCorrupt;
  return ErrorReason::kIo;
}

Result<std::unique_ptr<ColdDatabase>> ColdDatabase::Open(const ColdTierOptions& options,
                                                         bool emptied) {
  Result<int> lock = LockDirectory(options);
  if (!lock.ok()) return lock.status();
  std::unique_ptr<ColdDatabase> database(new ColdDatabase(options.directory, *lock));
  if (emptied) {
    RemoveFiles(options.directory,
                [](const fs::path& file) { return file.filename() != kMarkerName; });
  }
  Status status = database->OpenRocks(options);
  if (status.code() == StatusCode::kResourceExhausted && !options.read_only) {
    // Reading the log back takes room. What was written last is lost, as it may be.
    RemoveFiles(options.directory, [](const fs::path& file) { return file.extension() == ".log"; });
    status = database->OpenRocks(options);
  }
  if (!status.ok()) return status;
  return database;
}

Status ColdDatabase::OpenRocks(const ColdTierOptions& options) {
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, FamilyOptions(options, false)},
      {"index", FamilyOptions(options, false)},
      {"blocks", FamilyOptions(options, true)}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* rocks = nullptr;
  const rocksdb::DBOptions database = DatabaseOptions(options);
  const rocksdb::Status status =
      options.read_only
          ? rocksdb::DB::OpenForReadOnly(database, directory_, families, &handles, &rocks)
          : rocksdb::DB::Open(database, directory_, families, &handles, &rocks);
  if (!status.ok()) {
    const bool damaged = status.IsCorruption() || status.IsNotFound() || status.IsPathNotFound();
    const StatusCode code = damaged              ? StatusCode::kDataLoss
                            : status.IsNoSpace() ? StatusCode::kResourceExhausted
                                                 : StatusCode::kUnavailable;
    return Unusable(code, directory_, status.ToString());
  }
  rocks_.reset(rocks);
  default_ = handles[0];
  index_ = handles[1];
  blocks_ = handles[2];
  return {};
}

ColdDatabase::~ColdDatabase() {
  if (rocks_) {
    for (rocksdb::ColumnFamilyHandle* handle : {default_, index_, blocks_}) {
      rocks_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
    }
    rocks_->Close().PermitUncheckedError();
    rocks_.reset();
  }
  ::close(lock_);
}

void ColdDatabase::Change::PutBlock(const BlockKey& key, std::string_view bytes) {
  batch_.Put(database_.blocks_, RocksKey(key), rocksdb::Slice(bytes.data(), bytes.size()))
      .PermitUncheckedError();
}

void ColdDatabase::Change::PutEntry(const BlockKey& key, const EvictionEntry& entry) {
  batch_.Put(database_.index_, RocksKey(key), EntryBytes(entry)).PermitUncheckedError();
}

void ColdDatabase::Change::Erase(const BlockKey& key) {
  batch_.Delete(database_.index_, RocksKey(key)).PermitUncheckedError();
  batch_.Delete(database_.blocks_, RocksKey(key)).PermitUncheckedError();
}

rocksdb::Status ColdDatabase::Change::Write() {
  if (empty()) return rocksdb::Status::OK();
  const rocksdb::Status status = database_.rocks_->Write(rocksdb::WriteOptions(), &batch_);
  batch_.Clear();
  return status;
}

rocksdb::Status ColdDatabase::Get(const BlockKey& key, rocksdb::PinnableSlice* bytes) const {
  rocksdb::ReadOptions read;
  // RocksDB's own checksums stay on, although the codec's covers the block and Debian's build has
  // no help from the processor for them (0.4 ms a MiB): without them a flipped byte in the tree
  // ends in one of RocksDB's assertions.
  read.verify_checksums = true;
  return rocks_->Get(read, blocks_, RocksKey(key), bytes);
}

rocksdb::Status ColdDatabase::LoadIndex(
    const std::function<void(const BlockKey&, const EvictionEntry&)>& visit) const {
  const std::unique_ptr<rocksdb::Iterator> at(rocks_->NewIterator(rocksdb::ReadOptions(), index_));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    const std::string_view key(at->key().data(), at->key().size());
    const std::string_view entry(at->value().data(), at->value().size());
    if (key.size() == sizeof(BlockKey) && entry.size() == kEntryBytes) {
      visit(KeyOf(key), EntryOf(entry));
    }
  }
  return at->status();
}

uint64_t ColdDatabase::DeviceBytes() const {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(directory_, error)) {
    const uint64_t size = file.file_size(error);  // a file may go away meanwhile
    if (!error) bytes += size;
  }
  return bytes;
}

uint64_t ColdDatabase::FreeBytes() const {
  std::error_code error;
  const fs::space_info space = fs::space(directory_, error);
  return error ? 0 : space.available;
}

rocksdb::Status ColdDatabase::Reclaim(double share) {
  rocksdb::Status status = rocks_->Flush(rocksdb::FlushOptions(), {index_, blocks_});
  if (!status.ok()) return status;
  rocksdb::CompactRangeOptions compact;
  compact.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  compact.blob_garbage_collection_policy = share > 0
                                               ? rocksdb::BlobGarbageCollectionPolicy::kForce
                                               : rocksdb::BlobGarbageCollectionPolicy::kDisable;
  compact.blob_garbage_collection_age_cutoff = share > 0 ? share : -1;
  for (rocksdb::ColumnFamilyHandle* family : {index_, blocks_}) {
    status = rocks_->CompactRange(compact, family, nullptr, nullptr);
    if (!status.ok()) return status;
  }
  // Obsolete files go in the background; this deletes them before it returns.
  status = rocks_->DisableFileDeletions();
  return status.ok() ? rocks_->EnableFileDeletions(/*force=*/true) : status;
}

rocksdb::Status ColdDatabase::Sync() { return rocks_->SyncWAL(); }

rocksdb::Status ColdDatabase::Resume() { return rocks_->Resume(); }

}  // namespace kvlink::tier
