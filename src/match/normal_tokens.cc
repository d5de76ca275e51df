#include "match/normal_tokens.h"

#include <unordered_map>

namespace kvlink::match {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// The lower case of a letter of two bytes: Latin-1, Greek and Cyrillic, where upper and lower case
// lie at fixed distances. Everything else is returned as it is.
uint32_t LowerCase(uint32_t letter) {
  if (letter >= 0xc0 && letter <= 0xde && letter != 0xd7) return letter + 0x20;
  if (letter >= 0x391 && letter <= 0x3a9 && letter != 0x3a2) return letter + 0x20;
  if (letter >= 0x410 && letter <= 0x42f) return letter + 0x20;
  if (letter >= 0x400 && letter <= 0x40f) return letter + 0x50;
  return letter;
}

// Appends the character that starts at `text`; returns its bytes (1 where it is no letter of two).
size_t AppendLower(std::string_view text, std::string* out) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first >= 0xc3 && first <= 0xdf && text.size() >= 2 &&
      (static_cast<unsigned char>(text[1]) & 0xc0) == 0x80) {
    const uint32_t letter =
        LowerCase((first & 0x1fu) << 6 | (static_cast<unsigned char>(text[1]) & 0x3fu));
    out->push_back(static_cast<char>(0xc0 | letter >> 6));
    out->push_back(static_cast<char>(0x80 | (letter & 0x3f)));
    return 2;
  }
  out->push_back(text[0] >= 'A' && text[0] <= 'Z' ? static_cast<char>(text[0] + ('a' - 'A'))
                                                  : text[0]);
  return 1;
}

}  // namespace

std::string NormalText(std::string_view text) {
  std::string normal;
  for (size_t i = 0; i < text.size();) {
    const char kind = IsSpace(text[i]) ? ' ' : IsDigit(text[i]) ? '0' : '\0';
    if (kind == '\0') {
      i += AppendLower(text.substr(i), &normal);
      continue;
    }
    while (i < text.size() && (kind == ' ' ? IsSpace(text[i]) : IsDigit(text[i]))) ++i;
    normal.push_back(kind);
  }
  // White space around a word depends on where the word stands; alone it is a class of its own.
  if (normal.size() > 1 && normal.front() == ' ') normal.erase(0, 1);
  if (normal.size() > 1 && normal.back() == ' ') normal.pop_back();
  return normal;
}

NormalTokens::NormalTokens(std::span<const std::string> texts) : classes_(texts.size()) {
  std::unordered_map<std::string, uint32_t> known;
  for (uint32_t id = 0; id < texts.size(); ++id) {
    classes_[id] =
        texts[id].empty() ? id : known.try_emplace(NormalText(texts[id]), id).first->second;
  }
}

}  // namespace kvlink::match
