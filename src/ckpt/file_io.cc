#include "ckpt/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace kvlink::ckpt {
namespace {

Status Failed(const char* what, const std::string& path) {
  const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable;
  return {code, std::string("cannot ") + what + " '" + path + "': " + std::strerror(errno)};
}

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<File> OpenForReading(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Failed("open", path);
  return File(fd);
}

Result<File> CreateFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Failed("create", path);
  return File(fd);
}

Result<uint64_t> SizeOf(const File& file, const std::string& path) {
  struct stat info;
  if (::fstat(file.fd(), &info) != 0) return Failed("read the size of", path);
  return static_cast<uint64_t>(info.st_size);
}

Result<std::string> ReadAt(const File& file, const std::string& path, uint64_t offset,
                           uint64_t size) {
  std::string bytes(size, '\0');
  for (uint64_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(file.fd(), bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path);
    if (got == 0) {
      return Status(StatusCode::kDataLoss, "'" + path + "' ends at byte " +
                                               std::to_string(offset + done) + ", " +
                                               std::to_string(offset + size) + " were expected");
    }
    done += static_cast<uint64_t>(got);
  }
  return bytes;
}

Result<std::string> ReadWhole(const std::string& path) {
  const Result<File> file = OpenForReading(path);
  if (!file.ok()) return file.status();
  const Result<uint64_t> size = SizeOf(*file, path);
  if (!size.ok()) return size.status();
  return ReadAt(*file, path, 0, *size);
}

Status WriteAll(const File& file, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.fd(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed("write", path);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return Status::Ok();
}

Status WriteAtomically(const std::string& path, std::string_view bytes, bool sync) {
  const std::string temporary = path + std::string(kTemporarySuffix);
  {
    const Result<File> file = CreateFile(temporary);
    if (!file.ok()) return file.status();
    if (const Status status = WriteAll(*file, temporary, bytes); !status.ok()) return status;
    if (sync && ::fsync(file->fd()) != 0) return Failed("sync", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return Failed("rename to", path);
  if (!sync) return Status::Ok();
  const std::string folder = std::filesystem::path(path).parent_path();
  const Result<File> parent = OpenForReading(folder);
  if (!parent.ok()) return parent.status();
  if (::fsync(parent->fd()) != 0) return Failed("sync", folder);
  return Status::Ok();
}

Status SyncFileSystem(const std::string& folder) {
  const Result<File> file = OpenForReading(folder);
  if (!file.ok()) return file.status();
  if (::syncfs(file->fd()) != 0) return Failed("sync", folder);
  return Status::Ok();
}

}  // namespace kvlink::ckpt
