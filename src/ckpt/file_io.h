// Files as the store needs them: whole reads, and writes that are there in whole or not at all.
// Errors name the path and what the system said.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kvlink/status.h"

namespace kvlink::ckpt {

// An open file descriptor; closes it.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// kNotFound: it is not there; kUnavailable: the system refuses it.
Result<File> OpenForReading(const std::string& path);
Result<File> CreateFile(const std::string& path);  // empties one that is there
Result<uint64_t> SizeOf(const File& file, const std::string& path);

// kDataLoss: the file ends before `offset` + `size`.
Result<std::string> ReadAt(const File& file, const std::string& path, uint64_t offset,
                           uint64_t size);
Result<std::string> ReadWhole(const std::string& path);
Status WriteAll(const File& file, const std::string& path, std::string_view bytes);

// Writes beside `path` and renames: a reader sees the old file, the new one, or none. With `sync`
// it also survives a power failure, once this returns.
Status WriteAtomically(const std::string& path, std::string_view bytes, bool sync);

// All that was written to the file system of `folder` is on the disk.
Status SyncFileSystem(const std::string& folder);

// Ends the temporary names that WriteAtomically uses; an interrupted one leaves such a file.
inline constexpr std::string_view kTemporarySuffix = ".tmp";

}  // namespace kvlink::ckpt
