#include "tier/blob_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace kvlink::tier {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "kv-", kSuffix = ".blob";
constexpr size_t kMostParts = 512;  // of one system call; below IOV_MAX

std::optional<uint32_t> NumberOf(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  if (name.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number == 0) return std::nullopt;
  return number;
}

// All of `parts` at `offset`; 0 or an errno.
int WriteAll(int fd, std::vector<iovec> parts, uint64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    if (parts[first].iov_len == 0) {
      ++first;
      continue;
    }
    const auto count = static_cast<int>(std::min(kMostParts, parts.size() - first));
    const ssize_t written = ::pwritev(fd, &parts[first], count, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;
    offset += static_cast<uint64_t>(written);
    auto left = static_cast<size_t>(written);
    while (left > 0) {
      iovec& part = parts[first];
      const size_t taken = std::min(left, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      left -= taken;
      if (part.iov_len == 0) ++first;
    }
  }
  return 0;
}

}  // namespace

BlobFiles::File::~File() { ::close(fd); }

BlobFiles::~BlobFiles() = default;

bool BlobFiles::IsBlobFile(std::string_view name) { return NumberOf(name).has_value(); }

std::string BlobFiles::PathOf(uint32_t number) const {
  char name[32];
  std::snprintf(name, sizeof(name), "kv-%06u.blob", number);
  return directory_ + "/" + name;
}

Result<std::unique_ptr<BlobFiles>> BlobFiles::Open(std::string directory, uint64_t file_bytes) {
  std::unique_ptr<BlobFiles> files(new BlobFiles(std::move(directory), file_bytes));
  std::error_code error;
  fs::directory_iterator entries(files->directory_, error);
  if (error) {
    return Status(StatusCode::kUnavailable,
                  "cold store '" + files->directory_ + "': " + error.message());
  }
  const base::MutexLock lock(files->mutex_);
  for (const fs::directory_entry& entry : entries) {
    const std::optional<uint32_t> number = NumberOf(entry.path().filename().string());
    if (!number) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    struct stat seen = {};
    if (fd < 0 || ::fstat(fd, &seen) != 0) {
      const std::string why = std::strerror(errno);
      if (fd >= 0) ::close(fd);
      return Status(StatusCode::kUnavailable,
                    "cold store: '" + entry.path().string() + "': " + why);
    }
    auto file = std::make_shared<File>(fd);
    file->bytes = static_cast<uint64_t>(seen.st_size);
    files->total_bytes_ += file->bytes;
    files->next_number_ = std::max(files->next_number_, *number + 1);
    files->files_.emplace(*number, std::move(file));
  }
  return files;
}

std::shared_ptr<BlobFiles::File> BlobFiles::Find(uint32_t number) const {
  const base::MutexLock lock(mutex_);
  const auto found = files_.find(number);
  return found == files_.end() ? nullptr : found->second;
}

bool BlobFiles::Restore(const Place& place) {
  // Also of a file that is gone: a new file must not answer for it.
  if (place.file >= next_number_ && place.file < UINT32_MAX) next_number_ = place.file + 1;
  const std::shared_ptr<File> file = Find(place.file);
  if (file == nullptr || place.bytes > file->bytes || place.offset > file->bytes - place.bytes) {
    return false;
  }
  file->live_bytes += place.bytes;
  ++file->live_blobs;
  return true;
}

void BlobFiles::RemoveDead() {
  std::vector<uint32_t> dead;
  {
    const base::MutexLock lock(mutex_);
    for (const auto& [number, file] : files_) {
      if (file->live_blobs == 0 && number != current_) dead.push_back(number);
    }
  }
  for (const uint32_t number : dead) RemoveFile(number);
}

void BlobFiles::RemoveFile(uint32_t number) {
  std::shared_ptr<File> file;
  {
    const base::MutexLock lock(mutex_);
    const auto found = files_.find(number);
    file = std::move(found->second);
    files_.erase(found);
  }
  ::unlink(PathOf(number).c_str());
  total_bytes_ -= file->bytes;
}

int BlobFiles::StartFile() {
  const uint32_t number = next_number_;
  const int fd = ::open(PathOf(number).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  next_number_ = number + 1;
  current_ = number;
  const base::MutexLock lock(mutex_);
  files_.emplace(number, std::make_shared<File>(fd));
  return 0;
}

void BlobFiles::Seal() {
  if (current_ == 0) return;
  const uint32_t number = std::exchange(current_, 0);
  if (Find(number)->live_blobs == 0) RemoveFile(number);
}

int BlobFiles::Append(std::span<const std::string_view> blobs, std::vector<Place>* places) {
  if (current_ != 0 && Find(current_)->bytes >= file_bytes_) Seal();
  if (current_ == 0) {
    if (const int error = StartFile(); error != 0) return error;
  }
  const std::shared_ptr<File> file = Find(current_);
  const uint64_t begin = file->bytes;
  uint64_t end = begin;
  std::vector<iovec> parts;
  places->clear();
  for (const std::string_view blob : blobs) {
    parts.push_back({const_cast<char*>(blob.data()), blob.size()});
    places->push_back({current_, end, blob.size()});
    end += blob.size();
  }
  if (const int error = WriteAll(file->fd, std::move(parts), begin); error != 0) {
    // Gives back the room of what was written. Another file next time: this one may be at a limit.
    if (::ftruncate(file->fd, static_cast<off_t>(begin)) != 0) {
      struct stat seen = {};
      if (::fstat(file->fd, &seen) == 0) {
        total_bytes_ += static_cast<uint64_t>(seen.st_size) - begin;
        file->bytes = static_cast<uint64_t>(seen.st_size);
      }
    }
    Seal();
    places->clear();
    return error;
  }
  file->bytes = end;
  file->live_bytes += end - begin;
  file->live_blobs += blobs.size();
  file->is_dirty = true;
  total_bytes_ += end - begin;
  return 0;
}

int BlobFiles::Read(const Place& place, std::string* bytes) const {
  const std::shared_ptr<const File> file = Find(place.file);
  if (file == nullptr) return ENOENT;
  bytes->resize(place.bytes);
  for (uint64_t done = 0; done < place.bytes;) {
    const ssize_t read = ::pread(file->fd, bytes->data() + done, place.bytes - done,
                                 static_cast<off_t>(place.offset + done));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return errno;
    if (read == 0) return ENODATA;
    done += static_cast<uint64_t>(read);
  }
  return 0;
}

void BlobFiles::Drop(const Place& place) {
  const std::shared_ptr<File> file = Find(place.file);
  KVLINK_CHECK(file != nullptr && file->live_blobs > 0) << "nothing lives in file " << place.file;
  file->live_bytes -= place.bytes;
  --file->live_blobs;
  if (file->live_blobs == 0 && place.file != current_) RemoveFile(place.file);
}

int BlobFiles::Sync() {
  std::vector<std::shared_ptr<File>> dirty;
  {
    const base::MutexLock lock(mutex_);
    for (const auto& [number, file] : files_) {
      if (file->is_dirty) dirty.push_back(file);
    }
  }
  for (const std::shared_ptr<File>& file : dirty) {
    if (::fdatasync(file->fd) != 0) return errno;
    file->is_dirty = false;
  }
  return 0;
}

std::optional<BlobFiles::Usage> BlobFiles::Sparsest() const {
  std::optional<Usage> sparsest;
  double smallest = 0;
  const base::MutexLock lock(mutex_);
  for (const auto& [number, file] : files_) {
    if (number == current_) continue;
    const double share = static_cast<double>(file->live_bytes) /
                         static_cast<double>(std::max<uint64_t>(file->bytes, 1));
    if (sparsest && share >= smallest) continue;
    sparsest = Usage{number, file->bytes, file->live_bytes};
    smallest = share;
  }
  return sparsest;
}

}  // namespace kvlink::tier
