// Locks of a store, between processes: flock(2) on two files, given back when the process ends,
// however it ends.
//
//                 write.lock    read.lock
//   add           exclusive
//   get, list                   shared
//   gc            exclusive     exclusive     waits for readers, and keeps new ones out
#pragma once

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "ckpt/file_io.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

// Holds the lock as long as it lives. Without `wait`, kUnavailable when another process has it.
inline Result<File> LockFile(const std::string& path, bool exclusive, bool wait) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  File file(fd);
  if (fd < 0) {
    return Status(StatusCode::kUnavailable,
                  "cannot open the lock '" + path + "': " + std::strerror(errno));
  }
  const int how = (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB);
  int result = 0;
  do {
    result = ::flock(fd, how);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return file;
  if (errno == EWOULDBLOCK) {
    return Status(StatusCode::kUnavailable, "another process holds the lock '" + path + "'");
  }
  return Status(StatusCode::kUnavailable, "cannot lock '" + path + "': " + std::strerror(errno));
}

}  // namespace kvlink::ckpt
