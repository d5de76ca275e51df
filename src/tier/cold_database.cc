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
#include <string_view>

#include "base/endian.h"
#include "tier/cold_files.h"

namespace kvlink::tier {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kMarker = "kvlink cold store, format 2\n";
constexpr std::string_view kEarlierMarker = "kvlink cold store, format 1\n";
constexpr const char* kMarkerName = "COLD_STORE";
constexpr size_t kEntryBytes = 56;

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

std::string EntryBytes(const ColdEntry& of) {
  const EvictionEntry& entry = of.entry;
  std::string bytes;
  base::PutLe(bytes, entry.parent.lo);
  base::PutLe(bytes, entry.parent.hi);
  base::PutLe(bytes, entry.bytes);
  base::PutLe(bytes, std::bit_cast<uint64_t>(entry.cost_us));
  base::PutLe(bytes, std::bit_cast<uint64_t>(entry.worth));
  base::PutLe(bytes, entry.uses);
  base::PutLe(bytes, of.place.file);
  base::PutLe(bytes, of.place.offset);
  return bytes;
}

// Requires: kEntryBytes bytes.
ColdEntry EntryOf(std::string_view bytes) {
  const auto number = [bytes](size_t at) { return base::GetLe<uint64_t>(bytes.substr(at)); };
  ColdEntry of;
  of.entry.parent = {number(0), number(8)};
  of.entry.bytes = number(16);
  of.entry.cost_us = std::bit_cast<double>(number(24));
  of.entry.worth = std::bit_cast<double>(number(32));
  of.entry.uses = base::GetLe<uint32_t>(bytes.substr(40));
  of.place = {base::GetLe<uint32_t>(bytes.substr(44)), number(48), of.entry.bytes};
  return of;
}

rocksdb::Options DatabaseOptions(const ColdTierOptions& options) {
  rocksdb::Options database;
  database.create_if_missing = true;
  // After a torn or flipped byte in the log: what was written before it.
  database.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
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
  // A hundred bytes an entry: so many wait in memory, and in the log.
  database.write_buffer_size =
      std::clamp<uint64_t>(options.budget_bytes / 128, uint64_t{256} << 10, uint64_t{8} << 20);
  database.max_total_wal_size = 2 * database.write_buffer_size;
  database.compression = rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{1} << 20);
  database.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return database;
}

Status Unusable(StatusCode code, const std::string& directory, const std::string& why) {
  return {code, "cold store '" + directory + "': " + why};
}

// As far as the directory can be read: no exception ends a thread of the store.
template <typename Visit>
void ForFiles(const std::string& directory, Visit visit) {
  std::error_code error;
  fs::directory_iterator at(directory, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) visit(*at);
}

void RemoveFiles(const std::string& directory, bool (*which)(const fs::path&)) {
  ForFiles(directory, [which](const fs::directory_entry& file) {
    std::error_code error;
    if (which(file.path())) fs::remove_all(file.path(), error);
  });
}

rocksdb::Status NotOpen() { return rocksdb::Status::IOError("it could not be opened again"); }
rocksdb::Status LogFailed() { return rocksdb::Status::IOError("its log could not be written"); }

// Makes or finds COLD_STORE and locks it; gives the descriptor. `emptied`: a store of an earlier
// format becomes one of this.
Result<int> LockDirectory(const ColdTierOptions& options, bool emptied) {
  const std::string& directory = options.directory;
  std::error_code error;
  const bool makes = !options.read_only && !options.must_exist;
  if (makes && fs::create_directories(directory, error)) {
    fs::permissions(directory, fs::perms::owner_all, error);  // blocks show tokens
  }
  if (!fs::is_directory(directory, error)) {
    return Unusable(StatusCode::kNotFound, directory,
                    error ? error.message() : "is not a directory");
  }
  if (Status files = CheckColdFiles(directory); !files.ok()) return files;
  const fs::path marker = fs::path(directory) / kMarkerName;
  if (!fs::exists(marker, error)) {
    if (!makes) return Unusable(StatusCode::kNotFound, directory, "holds no cold store");
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
  const bool is_earlier = text == kEarlierMarker;
  if ((text.empty() || (is_earlier && emptied)) && !options.read_only) {
    if (::pwrite(lock, kMarker.data(), kMarker.size(), 0) == static_cast<ssize_t>(kMarker.size())) {
      return lock;
    }
    const std::string why = std::strerror(errno);
    ::close(lock);
    return Unusable(StatusCode::kUnavailable, directory, why);
  }
  if (text != kMarker) {
    ::close(lock);
    return Unusable(is_earlier ? StatusCode::kDataLoss : StatusCode::kFailedPrecondition, directory,
                    "has another format than this version reads");
  }
  return lock;
}

}  // namespace

ErrorReason ReasonOfErrno(int error) {
  if (error == 0) return ErrorReason::kNone;
  return error == ENOSPC || error == EDQUOT ? ErrorReason::kFull : ErrorReason::kIo;
}

ErrorReason ReasonOf(const rocksdb::Status& status) {
  if (status.ok()) return ErrorReason::kNone;
  if (status.IsNoSpace()) return ErrorReason::kFull;
  if (status.IsCorruption()) return ErrorReason::kCorrupt;
  return ErrorReason::kIo;
}

Result<std::unique_ptr<ColdDatabase>> ColdDatabase::Open(const ColdTierOptions& options,
                                                         bool emptied) {
  Result<int> lock = LockDirectory(options, emptied);
  if (!lock.ok()) return lock.status();
  std::unique_ptr<ColdDatabase> database(new ColdDatabase(options, *lock));
  if (emptied) {
    RemoveFiles(options.directory,
                [](const fs::path& file) { return file.filename() != kMarkerName; });
  }
  Status status = database->OpenRocks();
  if (status.code() == StatusCode::kResourceExhausted && !options.read_only) {
    // Reading the log back takes room. What was written last is lost, as it may be.
    RemoveFiles(options.directory, [](const fs::path& file) { return file.extension() == ".log"; });
    status = database->OpenRocks();
  }
  if (!status.ok()) return status;
  return database;
}

Status ColdDatabase::OpenRocks() {
  rocksdb::DB* rocks = nullptr;
  const std::string& directory = options_.directory;
  const rocksdb::Options database = DatabaseOptions(options_);
  const rocksdb::Status status = options_.read_only
                                     ? rocksdb::DB::OpenForReadOnly(database, directory, &rocks)
                                     : rocksdb::DB::Open(database, directory, &rocks);
  if (!status.ok()) {
    const bool damaged = status.IsCorruption() || status.IsNotFound() || status.IsPathNotFound();
    const StatusCode code = damaged              ? StatusCode::kDataLoss
                            : status.IsNoSpace() ? StatusCode::kResourceExhausted
                                                 : StatusCode::kUnavailable;
    return Unusable(code, directory, status.ToString());
  }
  rocks_.reset(rocks);
  return {};
}

ColdDatabase::~ColdDatabase() {
  if (rocks_) {
    rocks_->Close().PermitUncheckedError();
    rocks_.reset();
  }
  ::close(lock_);
}

void ColdDatabase::Change::Put(const BlockKey& key, const ColdEntry& entry) {
  batch_.Put(RocksKey(key), EntryBytes(entry)).PermitUncheckedError();
}

void ColdDatabase::Change::Erase(const BlockKey& key) {
  batch_.Delete(RocksKey(key)).PermitUncheckedError();
}

rocksdb::Status ColdDatabase::Change::Write() {
  if (empty()) return rocksdb::Status::OK();
  if (!database_.rocks_) return NotOpen();
  const rocksdb::Status status = database_.rocks_->Write(rocksdb::WriteOptions(), &batch_);
  batch_.Clear();
  database_.log_failed_ |= !status.ok();
  return status;
}

rocksdb::Status ColdDatabase::LoadIndex(
    const std::function<void(const BlockKey&, const ColdEntry&)>& visit) const {
  const std::unique_ptr<rocksdb::Iterator> at(rocks_->NewIterator(rocksdb::ReadOptions()));
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
  ForFiles(options_.directory, [&bytes](const fs::directory_entry& file) {
    if (BlobFiles::IsBlobFile(file.path().filename().string())) return;
    std::error_code error;
    const uint64_t size = file.file_size(error);  // a file may go away meanwhile
    if (!error) bytes += size;
  });
  return bytes;
}

uint64_t ColdDatabase::FreeBytes() const {
  std::error_code error;
  const fs::space_info space = fs::space(options_.directory, error);
  return error ? 0 : space.available;
}

rocksdb::Status ColdDatabase::Compact() {
  if (!rocks_) return NotOpen();
  rocksdb::Status status = rocks_->Flush(rocksdb::FlushOptions());
  if (!status.ok()) return status;
  rocksdb::CompactRangeOptions compact;
  compact.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  status = rocks_->CompactRange(compact, nullptr, nullptr);
  if (!status.ok()) return status;
  // Obsolete files go in the background; this deletes them before it returns.
  status = rocks_->DisableFileDeletions();
  return status.ok() ? rocks_->EnableFileDeletions(/*force=*/true) : status;
}

// RocksDB asserts that it is not asked for a log that has failed.
rocksdb::Status ColdDatabase::Sync() {
  if (!rocks_) return NotOpen();
  return log_failed_ ? LogFailed() : rocks_->SyncWAL();
}

// RocksDB goes on by itself when a full device has room again. After another error of its log it
// takes nothing more until it is opened anew; all that it has confirmed lies in its files.
rocksdb::Status ColdDatabase::Resume() {
  if (rocks_) {
    const rocksdb::Status status = rocks_->Resume();
    log_failed_ &= !status.ok();
    if (status.ok() || status.severity() < rocksdb::Status::kFatalError) return status;
    rocks_->Close().PermitUncheckedError();
    rocks_.reset();
  }
  const Status opened = OpenRocks();
  log_failed_ &= !opened.ok();
  return opened.ok() ? rocksdb::Status::OK() : rocksdb::Status::IOError(opened.message());
}

}  // namespace kvlink::tier
