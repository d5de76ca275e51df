#include "grammar/utf8_ranges.h"

#include <algorithm>
#include <utility>

namespace kvlink::grammar {
namespace {

constexpr uint32_t kSurrogatesBegin = 0xD800, kSurrogatesEnd = 0xDFFF;
// The last code point of each length.
constexpr uint32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

// `code` in `length` bytes, written to bytes[0..length).
void Encode(uint32_t code, int length, uint8_t* bytes) {
  if (length == 1) {
    bytes[0] = static_cast<uint8_t>(code);
    return;
  }
  for (int i = length - 1; i > 0; --i) {
    bytes[i] = static_cast<uint8_t>(0x80 | (code & 0x3F));
    code >>= 6;
  }
  static constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  bytes[0] = static_cast<uint8_t>(kLead[length] | code);
}

// Splits a range of one length until the last bytes either agree in front or cover whole blocks.
void AddOfLength(CodeRange range, int length, std::vector<ByteSequence>* out) {
  for (int tail = 1; tail < length; ++tail) {
    const uint32_t block = (uint32_t{1} << (6 * tail)) - 1;  // code points below the first bytes
    if ((range.first & ~block) == (range.last & ~block)) continue;
    if ((range.first & block) != 0) {
      AddOfLength({range.first, range.first | block}, length, out);
      AddOfLength({(range.first | block) + 1, range.last}, length, out);
      return;
    }
    if ((range.last & block) != block) {
      AddOfLength({range.first, (range.last & ~block) - 1}, length, out);
      AddOfLength({range.last & ~block, range.last}, length, out);
      return;
    }
  }
  uint8_t first[4], last[4];
  Encode(range.first, length, first);
  Encode(range.last, length, last);
  ByteSequence sequence;
  for (int i = 0; i < length; ++i) sequence.push_back({first[i], last[i]});
  out->push_back(std::move(sequence));
}

}  // namespace

std::vector<CodeRange> Normalized(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
  std::vector<CodeRange> out;
  for (CodeRange range : ranges) {
    range.last = std::min(range.last, kLastCodePoint);
    if (range.first > range.last) continue;
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

std::vector<CodeRange> Complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> taken = ranges;
  taken.push_back({kSurrogatesBegin, kSurrogatesEnd});
  std::vector<CodeRange> out;
  uint32_t next = 0;
  for (const CodeRange& range : Normalized(std::move(taken))) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return out;
}

std::vector<ByteSequence> Utf8Sequences(CodeRange range) {
  std::vector<ByteSequence> out;
  uint32_t begin = 0;
  for (int length = 1; length <= 4; ++length) {
    const uint32_t end = kLastOfLength[length - 1];
    const uint32_t first = std::max(range.first, begin), last = std::min(range.last, end);
    begin = end + 1;
    if (first > last) continue;
    // The surrogates lie inside the three-byte forms.
    if (first < kSurrogatesBegin)
      AddOfLength({first, std::min(last, kSurrogatesBegin - 1)}, length, &out);
    if (last > kSurrogatesEnd)
      AddOfLength({std::max(first, kSurrogatesEnd + 1), last}, length, &out);
  }
  return out;
}

}  // namespace kvlink::grammar
