// Tokens for the tests of match: sequences that can be joined, and random text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "kvlink/kv_shape.h"

namespace kvlink::match {

using Tokens = std::vector<TokenId>;

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tokens Text(base::Random& random, size_t count, uint64_t vocabulary = 20000) {
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(vocabulary));
  return tokens;
}

}  // namespace kvlink::match
