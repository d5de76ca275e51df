// Utf8Ranges: sets of Unicode code points, and the byte sequences that spell them.
//
// A range of code points is split where the number of bytes changes and where a continuation byte
// wraps around, so that each piece is a product of byte ranges:
//
//   [U+00E9, U+0451]  ->  C3 A9..BF | C4..D0 80..BF | D1 80..91
//
// Surrogates (U+D800 to U+DFFF) are no characters and are left out: what is built from these
// sequences can only write valid UTF-8.
#pragma once

#include <cstdint>
#include <vector>

namespace kvlink::grammar {

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

struct CodeRange {
  uint32_t first = 0, last = 0;  // inclusive
};

struct ByteRange {
  uint8_t first = 0, last = 0;  // inclusive
};
using ByteSequence = std::vector<ByteRange>;  // 1 to 4

// Sorted, without overlaps, within [0, kLastCodePoint].
std::vector<CodeRange> Normalized(std::vector<CodeRange> ranges);
// Everything else, without surrogates.
std::vector<CodeRange> Complement(const std::vector<CodeRange>& ranges);
// The UTF-8 forms of one range. Requires: first <= last <= kLastCodePoint.
std::vector<ByteSequence> Utf8Sequences(CodeRange range);

}  // namespace kvlink::grammar
