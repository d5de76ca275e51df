#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/endian.h"
#include "base/hash.h"
#include "base/key_builder.h"
#include "base/mutex.h"
#include "base/random.h"

namespace kvlink::base {
namespace {

TEST(CheckDeathTest, SaysWhatAndWhere) {
  const int seen = 7;
  EXPECT_DEATH(KVLINK_CHECK(seen == 8) << "seen " << seen,
               "base_test.cc:[0-9]+: check failed: seen == 8 seen 7");
}

TEST(Check, EvaluatesItsMessageOnlyOnFailure) {
  int evaluated = 0;
  KVLINK_CHECK(true) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(Check, IsOneStatementInAnElse) {
  bool other = false;
  if (other)
    KVLINK_CHECK(false);
  else
    other = true;
  EXPECT_TRUE(other);
}

TEST(Hash, IsXxh3OnEveryMachine) {
  // Values of the XXH3 specification's empty input; a change would orphan every stored block.
  EXPECT_EQ(Hash64(""), 0x2d06800538d394c2u);
  EXPECT_EQ(Hash128(std::string_view("")), (BlockKey{0x6001c324468d497fu, 0x99aa06d3014798d8u}));
}

TEST(Hash, StreamedInPiecesEqualsTheWhole) {
  Random random(1);
  std::string text;
  for (int i = 0; i < 3000; ++i) text.push_back(static_cast<char>(random.Below(256)));
  StreamHash64 stream;
  for (size_t at = 0; at < text.size();) {
    EXPECT_EQ(stream.Value(), Hash64(text.substr(0, at)));
    const size_t piece = std::min<size_t>(1 + random.Below(400), text.size() - at);
    stream.Append(std::string_view(text).substr(at, piece));
    at += piece;
  }
  EXPECT_EQ(stream.Value(), Hash64(text));
}

TEST(Random, RepeatsForASeedAndDiffersBetweenSeeds) {
  Random a(42), b(42), c(43);
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.Next();
    EXPECT_EQ(value, b.Next());
    EXPECT_NE(value, c.Next());
  }
}

TEST(Random, StaysInRangeAndReachesAllOfIt) {
  Random random(1);
  std::map<uint64_t, int> seen;
  for (int i = 0; i < 7000; ++i) ++seen[random.Below(7)];
  ASSERT_EQ(seen.size(), 7u);
  for (const auto& [value, times] : seen) {
    EXPECT_LT(value, 7u);
    EXPECT_GT(times, 800);
  }
  for (int i = 0; i < 1000; ++i) {
    const double unit = random.Unit();
    EXPECT_GE(unit, 0.0);
    EXPECT_LT(unit, 1.0);
  }
}

TEST(FakeClock, StandsUntilItIsAdvanced) {
  FakeClock fake;
  const Clock clock = fake.clock();
  const TimePoint before = clock();
  EXPECT_EQ(clock(), before);
  fake.Advance(std::chrono::seconds(3));
  EXPECT_EQ(clock() - before, std::chrono::seconds(3));
}

TEST(Endian, PutsTheLowByteFirstAndReadsItBack) {
  std::string bytes;
  PutLe(bytes, uint32_t{0x01020304});
  PutLe(bytes, uint64_t{0xfedcba9876543210});
  PutLe(bytes, uint8_t{0xff});
  EXPECT_EQ(bytes.substr(0, 4), "\x04\x03\x02\x01");
  std::string_view rest = bytes;
  uint32_t a = 0;
  uint64_t b = 0;
  uint8_t c = 0;
  ASSERT_TRUE(TakeLe(rest, a) && TakeLe(rest, b) && TakeLe(rest, c));
  EXPECT_EQ(a, 0x01020304u);
  EXPECT_EQ(b, 0xfedcba9876543210u);
  EXPECT_EQ(c, 0xffu);
  EXPECT_TRUE(rest.empty());
}

TEST(Endian, TakesNothingFromTooFewBytes) {
  std::string_view bytes = "abc";
  uint32_t value = 9;
  EXPECT_FALSE(TakeLe(bytes, value));
  EXPECT_EQ(value, 9u);
  EXPECT_EQ(bytes, "abc");
}

TEST(KeyBuilder, KeepsFieldBoundariesApart) {
  const auto pair = [](std::string_view a, std::string_view b) {
    return KeyBuilder().Add("tenant", a).Add("salt", b).bytes();
  };
  const std::vector<std::string> keys = {
      pair("org_1", "2345"), pair("org_12345", ""), pair("", "org_12345"), pair("org_1234", "5"),
      pair("X", ""),         pair("", "X"),         pair("", ""),
  };
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
}

TEST(KeyBuilder, TellsSaltFromAdapterAndNumberFromText) {
  EXPECT_NE(KeyBuilder().Add("salt", "X").bytes(), KeyBuilder().Add("adapter", "X").bytes());
  EXPECT_NE(KeyBuilder().AddNumber("a", 1).bytes(),
            KeyBuilder().Add("a", std::string_view("\1\0\0\0\0\0\0\0", 8)).bytes());
}

TEST(KeyBuilder, CannotBeForgedByAValueThatLooksLikeAField) {
  const std::string inner = KeyBuilder().Add("salt", "X").bytes();
  EXPECT_NE(KeyBuilder().Add("tenant", "a" + inner).bytes(),
            KeyBuilder().Add("tenant", "a").Add("salt", "X").bytes());
}

TEST(KeyBuilder, WritesTheDocumentedBytes) {
  EXPECT_EQ(KeyBuilder().Add("salt", "X").bytes(), std::string("s\4\0\0\0salt\1\0\0\0X", 14));
}

TEST(Mutex, LetsReadersInTogetherAndWritersInAlone) {
  SharedMutex mutex;
  int value = 0;
  {
    const ReaderLock first(mutex);
    std::thread([&] {
      const ReaderLock second(mutex);  // would hang if readers excluded each other
      EXPECT_EQ(value, 0);
    }).join();
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const WriterLock lock(mutex);
        ++value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value, 4000);
}

}  // namespace
}  // namespace kvlink::base
