#include "server/unsent_bytes.h"

#include <utility>

namespace kvlink::server {

void UnsentBytes::Add(std::string_view text) {
  bytes_ += text.size();
  waiting_ += text;
}

std::string_view UnsentBytes::Next() {
  if (sent_ == sending_.size()) {
    sending_.clear();
    std::swap(sending_, waiting_);
    sent_ = 0;
  }
  writing_ = true;
  return std::string_view(sending_).substr(sent_);
}

bool UnsentBytes::Wrote(size_t bytes) {
  writing_ = false;
  sent_ += bytes;
  bytes_ -= bytes;
  taken_ += bytes;
  const bool keeps_up = taken_ >= window_bytes_ || bytes_ == 0;
  if (keeps_up) window_is_open_ = false;
  return keeps_up;
}

bool UnsentBytes::OpenWindow() {
  if (window_is_open_) return false;
  window_is_open_ = true;
  taken_ = 0;
  return true;
}

}  // namespace kvlink::server
