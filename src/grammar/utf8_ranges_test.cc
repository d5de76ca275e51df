#include "grammar/utf8_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvlink::grammar {
namespace {

std::string Utf8(uint32_t code) {
  std::string out;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
            static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
            static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
  return out;
}

int Matches(const std::vector<ByteSequence>& sequences, const std::string& text) {
  int matches = 0;
  for (const ByteSequence& sequence : sequences) {
    bool same = sequence.size() == text.size();
    for (size_t i = 0; same && i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      same = byte >= sequence[i].first && byte <= sequence[i].last;
    }
    matches += same ? 1 : 0;
  }
  return matches;
}

TEST(Utf8Ranges, SequencesMatchEachCharacterOfTheRangeOnceAndNoOther) {
  std::mt19937 random(7);
  std::vector<CodeRange> ranges = {{0, 0x7F},         {0x41, 0x41},        {0x7F, 0x80},
                                   {0xE9, 0x451},     {0x7FF, 0x800},      {0xD000, 0xE0FF},
                                   {0xFFFF, 0x10000}, {0, kLastCodePoint}, {0x10FFFE, 0x10FFFF}};
  std::uniform_int_distribution<uint32_t> code(0, kLastCodePoint);
  for (int i = 0; i < 20; ++i) {
    const uint32_t a = code(random), b = code(random);
    ranges.push_back({std::min(a, b), std::max(a, b)});
  }
  for (const CodeRange& range : ranges) {
    const std::vector<ByteSequence> sequences = Utf8Sequences(range);
    std::vector<uint32_t> probes = {range.first,    range.last,      range.first + 1,
                                    range.last - 1, range.first - 1, range.last + 1};
    for (int i = 0; i < 500; ++i) probes.push_back(code(random));
    for (const uint32_t probe : probes) {
      if (probe > kLastCodePoint) continue;
      const bool surrogate = probe >= 0xD800 && probe <= 0xDFFF;
      const bool inside = probe >= range.first && probe <= range.last && !surrogate;
      EXPECT_EQ(Matches(sequences, Utf8(probe)), inside ? 1 : 0)
          << std::hex << probe << " in " << range.first << " to " << range.last;
    }
  }
}

TEST(Utf8Ranges, ComplementIsEverythingElseButSurrogates) {
  const std::vector<CodeRange> rest = Complement({{'b', 'd'}, {'c', 'x'}});
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0].last, uint32_t{'a'});
  EXPECT_EQ(rest[1].first, uint32_t{'y'});
  EXPECT_EQ(rest[1].last, 0xD7FFu);
  EXPECT_EQ(rest[2].first, 0xE000u);
  EXPECT_EQ(rest[2].last, kLastCodePoint);
  EXPECT_TRUE(Complement({{0, kLastCodePoint}}).empty());
}

}  // namespace
}  // namespace kvlink::grammar
