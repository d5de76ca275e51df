// NormalTokens: which tokens count as the same when a donor is looked for. A table from token id to
// class, built once per vocabulary: letters in lower case, runs of white space as one blank and
// none around words, runs of digits as one zero. "The" = " the" = "THE"; "2026" = "7".
//
// For retrieval only: what decides an answer is often a digit, so alignment compares raw ids.
// Cost: ClassOf is one load. Memory: 4 bytes a token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink::match {

// What texts of one class have in common. Bytes that are no complete UTF-8 stay as they are; case
// is folded in ASCII, Latin-1, Greek and Cyrillic.
std::string NormalText(std::string_view text);

class NormalTokens {
 public:
  NormalTokens() = default;  // every token is a class of its own
  // texts[id] is what token `id` stands for, a special token's being its name. Tokens without a
  // text are classes of their own.
  explicit NormalTokens(std::span<const std::string> texts);

  // Ids outside the vocabulary are classes of their own.
  uint32_t ClassOf(TokenId token) const {
    const auto id = static_cast<uint32_t>(token);
    return id < classes_.size() ? classes_[id] : id;
  }
  size_t num_tokens() const { return classes_.size(); }
  size_t tracking_bytes() const { return classes_.capacity() * sizeof(uint32_t); }

 private:
  std::vector<uint32_t> classes_;  // the smallest id of the class
};

}  // namespace kvlink::match
