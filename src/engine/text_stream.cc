#include "engine/text_stream.h"

#include <algorithm>

namespace kvlink::engine {

std::string TextStream::Append(std::string_view piece) {
  is_hidden_ = is_hidden_ || piece.empty();
  if (!is_hidden_) {
    piece_ends_.push_back((piece_ends_.empty() ? 0 : piece_ends_.back()) + piece.size());
  }
  std::string shown = stops_.Append(utf8_.Append(piece));
  text_ += shown;
  return shown;
}

std::string TextStream::Flush() {
  if (stopped()) return {};
  std::string shown = stops_.Append(utf8_.Flush());
  if (!stopped()) shown += stops_.Flush();
  text_ += shown;
  return shown;
}

TextStream::Spelling TextStream::Spelled() const {
  const size_t same = std::min(utf8_.clean_bytes(), text_.size());
  const auto end = std::upper_bound(piece_ends_.begin(), piece_ends_.end(), same);
  Spelling spelled;
  spelled.tokens = static_cast<uint32_t>(end - piece_ends_.begin());
  if (spelled.tokens > 0) spelled.bytes = piece_ends_[spelled.tokens - 1];
  return spelled;
}

}  // namespace kvlink::engine
