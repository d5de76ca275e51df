#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvlink::engine {
namespace {

std::string AppendAll(TextStream& stream, const std::vector<std::string>& pieces) {
  std::string shown;
  for (const std::string& piece : pieces) shown += stream.Append(piece);
  return shown;
}

// Of all occurrences of all stop strings the one that ends first; of those the longest.
struct NaiveStop {
  size_t begin = std::string::npos;
  std::string stop;
};
NaiveStop FindStop(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    NaiveStop found;
    for (const std::string& stop : stops) {
      if (stop.empty() || stop.size() > end || stop.size() <= found.stop.size()) continue;
      if (text.compare(end - stop.size(), stop.size(), stop) == 0)
        found = {end - stop.size(), stop};
    }
    if (!found.stop.empty()) return found;
  }
  return {};
}

TEST(Utf8Stream, HoldsAnIncompleteCharacterBackUntilItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Append("a\xE4"), "a");
  EXPECT_EQ(stream.Append("\xBD"), "");
  EXPECT_EQ(stream.Append("\xA0z"), "\xE4\xBD\xA0z");
  EXPECT_EQ(stream.Flush(), "");
  EXPECT_EQ(stream.clean_bytes(), 5u);
}

TEST(Utf8Stream, FlushesAnIncompleteTailAsOneReplacementCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Append("ok\xF0\x9F\x98"), "ok");
  EXPECT_EQ(stream.Flush(), kReplacementCharacter);
  EXPECT_EQ(stream.clean_bytes(), 2u);
}

TEST(Utf8Stream, ReplacesWhatCanNeverBecomeACharacter) {
  const std::string r(kReplacementCharacter);
  const auto whole = [](std::string_view bytes) {
    Utf8Stream stream;
    std::string out = stream.Append(bytes);
    return out + stream.Flush();
  };
  EXPECT_EQ(whole("\xFFok"), r + "ok");
  EXPECT_EQ(whole("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(whole("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(whole("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(whole("\xE4\xBD"
                  "a"),
            r + "a");  // one for the part that began well
  EXPECT_EQ(whole("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
}

TEST(Utf8Stream, GivesTheSameTextHoweverTheBytesAreCut) {
  base::Random random(1);
  for (int round = 0; round < 2000; ++round) {
    static const char kBytes[] = "a\xE4\xBD\xA0\xF0\x9F\x98\x80\xC3\xA9\xFF";
    std::string bytes;
    for (uint64_t i = random.Below(12); i > 0; --i)
      bytes += kBytes[random.Below(sizeof(kBytes) - 1)];
    Utf8Stream at_once, in_pieces;
    std::string expected = at_once.Append(bytes);
    expected += at_once.Flush();
    std::string seen;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t length = 1 + random.Below(3);
      seen += in_pieces.Append(std::string_view(bytes).substr(begin, length));
      EXPECT_TRUE(IsValidUtf8(seen));
      begin += length;
    }
    seen += in_pieces.Flush();
    ASSERT_EQ(seen, expected);
    ASSERT_TRUE(IsValidUtf8(expected));
    ASSERT_EQ(in_pieces.clean_bytes(), at_once.clean_bytes());
    ASSERT_EQ(bytes.substr(0, at_once.clean_bytes()), expected.substr(0, at_once.clean_bytes()));
  }
}

TEST(StopMatcher, FindsAStopStringAcrossPieces) {
  StopMatcher matcher({"###"});
  EXPECT_EQ(matcher.Append("one#"), "one");
  EXPECT_EQ(matcher.Append("#"), "");
  EXPECT_EQ(matcher.Append("#two"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.stop_text(), "###");
}

TEST(StopMatcher, ShowsWhatWasHeldBackWhenItBecomesSomethingElse) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Append("aa"), "");
  EXPECT_EQ(matcher.Append("a"), "a");  // "aa" may still begin the stop string
  EXPECT_EQ(matcher.Append("c"), "aac");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, FlushesTheBeginningOfAStopString) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.Append("go st"), "go ");
  EXPECT_EQ(matcher.Flush(), "st");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, AgreesWithANaiveSearchHoweverTheTextIsCut) {
  base::Random random(2);
  const auto word = [&](uint64_t length) {
    std::string text;
    for (; length > 0; --length) text += static_cast<char>('a' + random.Below(2));
    return text;
  };
  int matched = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t i = random.Below(4); i > 0; --i) stops.push_back(word(random.Below(5)));
    const std::string text = word(random.Below(20));
    const NaiveStop expected = FindStop(text, stops);
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = 1 + random.Below(4);
      shown += matcher.Append(std::string_view(text).substr(begin, length));
      ASSERT_LE(shown.size(), std::min(expected.begin, text.size())) << "shown too early";
      begin += length;
    }
    if (!matcher.matched()) shown += matcher.Flush();
    ASSERT_EQ(shown, text.substr(0, expected.begin)) << text;
    ASSERT_EQ(matcher.stop_text(), expected.stop);
    matched += matcher.matched() ? 1 : 0;
  }
  EXPECT_GT(matched, 1000);
}

TEST(TextStream, MatchesAStopStringOfSplitCharacters) {
  TextStream stream({"\xE4\xBD\xA0"});
  EXPECT_EQ(AppendAll(stream, {"a", "\xE4", "\xBD", "\xA0", "b"}), "a");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Spelled().tokens, 1u);
}

TEST(TextStream, KnowsWhichTokensSpellTheText) {
  TextStream whole;
  AppendAll(whole, {"ab", "\xE4", "\xBD\xA0"});
  EXPECT_EQ(whole.Spelled().tokens, 3u);
  EXPECT_EQ(whole.Spelled().bytes, 5u);

  TextStream cut_inside({"b"});
  AppendAll(cut_inside, {"xy", "abc"});
  EXPECT_EQ(cut_inside.text(), "xya");
  EXPECT_EQ(cut_inside.Spelled().tokens, 1u);
  EXPECT_EQ(cut_inside.Spelled().bytes, 2u);

  TextStream replaced;
  AppendAll(replaced, {"ok", "\xFF", "more"});
  EXPECT_EQ(replaced.Spelled().tokens, 1u);
}

// Whoever sends the text back does not send the special token.
TEST(TextStream, SpellsNothingFromATokenWithoutAPieceOn) {
  TextStream stream;
  AppendAll(stream, {"ab", "c", "", "de"});
  EXPECT_EQ(stream.text(), "abcde");
  EXPECT_EQ(stream.Spelled().tokens, 2u);
  EXPECT_EQ(stream.Spelled().bytes, 3u);
  TextStream first;
  AppendAll(first, {"", "de"});
  EXPECT_EQ(first.Spelled().tokens, 0u);
  EXPECT_EQ(first.Spelled().bytes, 0u);
}

}  // namespace
}  // namespace kvlink::engine
