#include "engine/utf8_stream.h"

#include <cstdint>

namespace kvlink::engine {
namespace {

enum class Step { kCharacter, kIncomplete, kInvalid };
struct Scan {
  Step step;
  size_t bytes;  // of the character, or of the part that began as one
};

// Table 3-7 of the Unicode standard: the second byte's range depends on the first.
Scan ScanOne(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Step::kCharacter, 1};
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Step::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == s.size()) return {Step::kIncomplete, i};
    if (at(i) < low || at(i) > high) return {Step::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Step::kCharacter, length};
}

}  // namespace

std::string Utf8Stream::Append(std::string_view bytes) {
  held_.append(bytes);
  std::string out;
  out.reserve(held_.size());
  size_t begin = 0;
  while (begin < held_.size()) {
    const Scan scan = ScanOne(std::string_view(held_).substr(begin));
    if (scan.step == Step::kIncomplete) break;
    if (scan.step == Step::kCharacter) {
      out.append(held_, begin, scan.bytes);
    } else {
      if (!replaced_) clean_bytes_ = taken_;
      replaced_ = true;
      out.append(kReplacementCharacter);
    }
    begin += scan.bytes;
    taken_ += scan.bytes;
  }
  held_.erase(0, begin);
  return out;
}

std::string Utf8Stream::Flush() {
  if (held_.empty()) return {};
  if (!replaced_) clean_bytes_ = taken_;
  replaced_ = true;
  taken_ += held_.size();
  held_.clear();
  return std::string(kReplacementCharacter);
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Scan scan = ScanOne(text);
    if (scan.step != Step::kCharacter) return false;
    text.remove_prefix(scan.bytes);
  }
  return true;
}

}  // namespace kvlink::engine
