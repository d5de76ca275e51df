// TextStream: the text of one branch as the client sees it.
//
//   token pieces -> whole UTF-8 characters -> text before the first stop string
//
// It also knows which tokens spell which text, so that an own output can be remembered: the first
// `text_tokens` pieces are byte for byte the first `text_bytes` of the shown text. A token without
// a piece (a special one) spells nothing that could be tokenised back: from there on none do. A
// value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/stop_matcher.h"
#include "engine/utf8_stream.h"

namespace kvlink::engine {

class TextStream {
 public:
  TextStream() = default;  // no stop strings
  explicit TextStream(const std::vector<std::string>& stops) : stops_(stops) {}

  // Takes the piece of the next token; returns what can be shown now.
  std::string Append(std::string_view piece);
  // The branch has ended: returns the rest (nothing after a stop string).
  std::string Flush();

  bool stopped() const { return stops_.matched(); }
  const std::string& stop_text() const { return stops_.stop_text(); }
  const std::string& text() const { return text_; }

  struct Spelling {
    uint32_t tokens = 0;
    size_t bytes = 0;
  };
  Spelling Spelled() const;  // of text(), so far

 private:
  Utf8Stream utf8_;
  StopMatcher stops_;
  std::string text_;  // all that was shown
  // [token]: bytes of the pieces up to and with it; only those in front of the first token without
  // a piece.
  std::vector<size_t> piece_ends_;
  bool is_hidden_ = false;  // there is such a token
};

}  // namespace kvlink::engine
