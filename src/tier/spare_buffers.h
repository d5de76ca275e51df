// SpareBuffers: memory of copies that were written, for the next ones. A block is larger than what
// malloc keeps, and the kernel zeroes fresh memory page by page: that costs as much as the copy.
//
// Bounded: what does not fit is freed. Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvlink::tier {

class SpareBuffers {
 public:
  explicit SpareBuffers(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Empty, as a rule with room for what copies of late needed.
  std::string Take() {
    const base::MutexLock lock(mutex_);
    if (buffers_.empty()) return {};
    std::string buffer = std::move(buffers_.back());
    buffers_.pop_back();
    bytes_ -= buffer.capacity();
    return buffer;
  }
  void Give(std::string buffer) {
    buffer.clear();
    const base::MutexLock lock(mutex_);
    if (bytes_ + buffer.capacity() > most_bytes_) return;
    bytes_ += buffer.capacity();
    buffers_.push_back(std::move(buffer));
  }
  size_t bytes() const {
    const base::MutexLock lock(mutex_);
    return bytes_;
  }

 private:
  const size_t most_bytes_;
  mutable base::Mutex mutex_;
  std::vector<std::string> buffers_ KVLINK_GUARDED_BY(mutex_);
  size_t bytes_ KVLINK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvlink::tier
