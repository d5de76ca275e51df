// UnsentBytes: an answer on its way out: what is being written, and what waits behind it; and
// whether the client keeps up.
//
//   Add -> waiting -> Next -> being written -> Wrote
//
// Parts that are added while a write is under way leave with the next one together. From the first
// write on the client has a window of time (the caller's timer) in which to take `window_bytes`, or
// all there is. Not thread-safe; no I/O.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlink::server {

class UnsentBytes {
 public:
  explicit UnsentBytes(size_t window_bytes) : window_bytes_(window_bytes) {}

  void Add(std::string_view text);
  // What to write now; stands still until Wrote. Requires: bytes() > 0, and nothing is being
  // written.
  std::string_view Next();
  // So much of that was written. True: the client has kept up, and the window is closed.
  bool Wrote(size_t bytes);
  // True: it was closed, and its time begins now.
  bool OpenWindow();
  // What waits will not be written; what is being written stands still.
  void DropWaiting() { waiting_.clear(); }

  size_t bytes() const { return bytes_; }
  bool writing() const { return writing_; }
  bool window_is_open() const { return window_is_open_; }

 private:
  const size_t window_bytes_;
  std::string sending_, waiting_;
  size_t sent_ = 0;   // of sending_
  size_t bytes_ = 0;  // not written, of both
  bool writing_ = false;
  bool window_is_open_ = false;
  size_t taken_ = 0;  // since it is
};

}  // namespace kvlink::server
