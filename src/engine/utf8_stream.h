// Utf8Stream: bytes that come in pieces -> whole UTF-8 characters.
//
// An incomplete character at the end is held back until its rest comes; bytes that can never become
// a character are replaced by U+FFFD, one for each longest run that began as a character would
// (Unicode 15, section 3.9, "maximal subparts"). Overlong forms, surrogates and values above
// U+10FFFF are no characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlink::engine {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

class Utf8Stream {
 public:
  std::string Append(std::string_view bytes);
  std::string Flush();  // the end: an incomplete character becomes U+FFFD

  // Bytes from the beginning that came out as they went in.
  size_t clean_bytes() const { return replaced_ ? clean_bytes_ : taken_; }

 private:
  std::string held_;  // at most 3 bytes
  size_t taken_ = 0;  // bytes that left, replaced or not
  size_t clean_bytes_ = 0;
  bool replaced_ = false;
};

bool IsValidUtf8(std::string_view text);

}  // namespace kvlink::engine
