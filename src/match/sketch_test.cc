#include "match/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/random.h"
#include "match/testing/tokens.h"

namespace kvlink::match {
namespace {

const NormalTokens kRaw;
const SimilarOptions kDefaults;

// The definition, window by window.
std::set<uint64_t> SmallestOfEveryWindow(const std::vector<uint64_t>& hashes, uint32_t window) {
  std::set<uint64_t> smallest;
  window = std::min<uint32_t>(window, static_cast<uint32_t>(hashes.size()));
  for (size_t i = 0; i + window <= hashes.size() && window > 0; ++i) {
    smallest.insert(*std::min_element(hashes.begin() + static_cast<std::ptrdiff_t>(i),
                                      hashes.begin() + static_cast<std::ptrdiff_t>(i + window)));
  }
  return smallest;
}

std::set<uint64_t> HashesOf(const std::vector<Anchor>& anchors) {
  std::set<uint64_t> hashes;
  for (const Anchor& anchor : anchors) hashes.insert(anchor.hash);
  return hashes;
}

TEST(GramHashes, DependOnThreeTokensInTheirOrderAndOnNothingElse) {
  base::Random random(1);
  const Tokens a = Text(random, 50, 4), b = Text(random, 60, 4);
  const auto ha = GramHashes(a, kRaw), hb = GramHashes(b, kRaw);
  ASSERT_EQ(ha.size(), 48u);
  int equal = 0;
  for (size_t i = 0; i < ha.size(); ++i) {
    for (size_t j = 0; j < hb.size(); ++j) {
      const bool same = std::equal(&a[i], &a[i] + 3, &b[j]);
      equal += same ? 1 : 0;
      ASSERT_EQ(ha[i] == hb[j], same) << i << " " << j;
    }
  }
  EXPECT_GT(equal, 10);
  EXPECT_TRUE(GramHashes(Tokens{1, 2}, kRaw).empty());
}

TEST(GramHashes, SeeClassesNotTokens) {
  const std::vector<std::string> texts = {"a", "A", "b", "7", "99"};
  const NormalTokens classes(texts);
  EXPECT_EQ(GramHashes(Tokens{0, 2, 3}, classes), GramHashes(Tokens{1, 2, 4}, classes));
  EXPECT_NE(GramHashes(Tokens{0, 2, 3}, classes), GramHashes(Tokens{2, 2, 3}, classes));
}

TEST(Winnow, KeepsTheSmallestHashOfEveryWindow) {
  base::Random random(2);
  for (int round = 0; round < 300; ++round) {
    const auto hashes =
        GramHashes(Text(random, random.Below(200), round % 3 == 0 ? 2 : 1000), kRaw);
    const auto window = static_cast<uint32_t>(1 + random.Below(20));
    const auto anchors = Winnow(hashes, window);
    EXPECT_EQ(HashesOf(anchors), SmallestOfEveryWindow(hashes, window));
    for (size_t i = 0; i < anchors.size(); ++i) {
      ASSERT_EQ(anchors[i].hash, hashes[anchors[i].position]);
      if (i > 0) {
        ASSERT_GT(anchors[i].position, anchors[i - 1].position);
        ASSERT_LE(anchors[i].position, anchors[i - 1].position + window);
      }
    }
  }
}

TEST(Winnow, KeepsTwoInWindowPlusOneOfRandomHashes) {
  base::Random random(3);
  const auto hashes = GramHashes(Text(random, 20000, 5000), kRaw);
  for (const uint32_t window : {4u, 8u, 32u}) {
    const double share =
        static_cast<double>(Winnow(hashes, window).size()) / static_cast<double>(hashes.size());
    EXPECT_NEAR(share, 2.0 / (window + 1), 0.01);
  }
}

TEST(Winnow, KeepsOneInWindowOfEqualHashes) {
  const std::vector<uint64_t> hashes(800, 5);
  EXPECT_EQ(Winnow(hashes, 8).size(), 100u);
}

TEST(Winnow, AnySharedRunOfWindowPlusTwoTokensIsFound) {
  base::Random random(4);
  for (int round = 0; round < 2000; ++round) {
    const auto wa = static_cast<uint32_t>(1 + random.Below(12));
    const auto wb = static_cast<uint32_t>(1 + random.Below(12));
    const size_t run = std::max(wa, wb) + 2;
    const uint64_t vocabulary = random.OneIn(4) ? 2 : 3000;  // two: repetitions everywhere
    Tokens a = Text(random, run + random.Below(100), vocabulary);
    Tokens b = Text(random, run + random.Below(100), vocabulary);
    const size_t at_a = random.Below(a.size() - run + 1), at_b = random.Below(b.size() - run + 1);
    std::copy_n(&a[at_a], run, &b[at_b]);
    std::set<uint64_t> inside_a;
    for (const Anchor& anchor : Winnow(GramHashes(a, kRaw), wa)) {
      if (anchor.position >= at_a && anchor.position + kGram <= at_a + run) {
        inside_a.insert(anchor.hash);
      }
    }
    bool found = false;
    for (const Anchor& anchor : Winnow(GramHashes(b, kRaw), wb)) {
      found |= anchor.position >= at_b && anchor.position + kGram <= at_b + run &&
               inside_a.contains(anchor.hash);
    }
    ASSERT_TRUE(found) << "windows " << wa << " " << wb << " round " << round;
  }
}

TEST(Coarsen, GivesWhatTheWiderWindowWouldHaveKept) {
  base::Random random(5);
  for (int round = 0; round < 300; ++round) {
    const Tokens tokens = Text(random, 3 + random.Below(300), round % 3 == 0 ? 2 : 1000);
    const auto hashes = GramHashes(tokens, kRaw);
    const auto narrow = static_cast<uint32_t>(1 + random.Below(10));
    const auto wide = static_cast<uint32_t>(narrow + random.Below(40));
    const auto coarse = Coarsen(Winnow(hashes, narrow), static_cast<uint32_t>(tokens.size()), wide);
    ASSERT_EQ(HashesOf(coarse), HashesOf(Winnow(hashes, wide))) << narrow << " " << wide;
  }
}

TEST(WindowFor, IsNarrowForShortPromptsAndWidensForLongOnes) {
  EXPECT_EQ(WindowFor(20, kDefaults), 4u);
  EXPECT_EQ(WindowFor(95, kDefaults), 4u);
  EXPECT_EQ(WindowFor(96, kDefaults), 8u);
  EXPECT_EQ(WindowFor(2000, kDefaults), 8u);
  EXPECT_EQ(WindowFor(4000, kDefaults), 16u);
  EXPECT_EQ(WindowFor(32000, kDefaults), 128u);
  SimilarOptions calibrated;
  calibrated.fingerprint_window = 24;
  EXPECT_EQ(WindowFor(500, calibrated), 24u);
  calibrated.fingerprint_window = 2;
  EXPECT_EQ(WindowFor(20, calibrated), 2u);
}

TEST(MakeSketch, NeverKeepsMoreAnchorsThanItMay) {
  base::Random random(6);
  for (const size_t size : {0u, 1u, 2u, 3u, 50u, 1000u, 5000u, 40000u}) {
    for (const uint64_t vocabulary : {1u, 2u, 10000u}) {
      const Tokens tokens = Text(random, size, vocabulary);
      const Sketch sketch = MakeSketch(tokens, kRaw, kDefaults);
      EXPECT_LE(sketch.anchors.size(), kDefaults.max_anchors);
      EXPECT_EQ(sketch.anchors.empty(), size < kGram);
      EXPECT_EQ(sketch.num_tokens, size);
    }
  }
}

TEST(MakeSketch, TagsTellNumbersApartThatClassesDoNot) {
  const std::vector<std::string> texts = {"a", "b", "7", "9"};
  const NormalTokens classes(texts);
  const Sketch seven = MakeSketch(Tokens{0, 2, 1}, classes, kDefaults);
  const Sketch nine = MakeSketch(Tokens{0, 3, 1}, classes, kDefaults);
  ASSERT_EQ(seven.anchors.size(), 1u);
  EXPECT_EQ(seven.anchors[0].hash, nine.anchors[0].hash);
  EXPECT_NE(seven.anchors[0].tag, nine.anchors[0].tag);
  EXPECT_EQ(seven.signature, nine.signature);
}

double Jaccard(const std::set<uint64_t>& a, const std::set<uint64_t>& b) {
  size_t both = 0;
  for (const uint64_t hash : a) both += b.contains(hash) ? 1 : 0;
  return static_cast<double>(both) / static_cast<double>(a.size() + b.size() - both);
}

// Sets of fewer elements than bins as well: without densification their empty bins would agree.
TEST(Signature, AgreesInAsManyPlacesAsTheSetsAreSimilar) {
  base::Random random(7);
  for (const size_t size : {15u, 60u, 250u}) {
    for (const double share : {0.0, 0.3, 0.6, 0.9}) {
      double agreement = 0, jaccard = 0;
      constexpr int kRounds = 200;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<Anchor> a, b;
        for (size_t i = 0; i < size; ++i) {
          a.push_back({.hash = random.Next()});
          b.push_back(random.Unit() < share ? a.back() : Anchor{.hash = random.Next()});
        }
        agreement += Agreement(SignatureOf(a), SignatureOf(b)) / double{kSignatureBins};
        jaccard += Jaccard(HashesOf(a), HashesOf(b));
      }
      EXPECT_NEAR(agreement / kRounds, jaccard / kRounds, 0.02) << size << " " << share;
    }
  }
}

TEST(Signature, BandsCollideAsOftenAsTheoryExpects) {
  base::Random random(8);
  int collided = 0;
  double expected = 0;
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Anchor> a, b;
    for (size_t i = 0; i < 300; ++i) {
      a.push_back({.hash = random.Next()});
      b.push_back(random.Unit() < 0.5 ? a.back() : Anchor{.hash = random.Next()});
    }
    const double s = Jaccard(HashesOf(a), HashesOf(b));
    expected += 1 - std::pow(1 - std::pow(s, kBandRows), kBands);
    const auto ba = BandHashes(SignatureOf(a)), bb = BandHashes(SignatureOf(b));
    for (uint32_t band = 0; band < kBands; ++band) {
      if (ba[band] != bb[band]) continue;
      ++collided;
      break;
    }
  }
  EXPECT_NEAR(collided, expected, 4 * std::sqrt(kRounds * 0.25));
  EXPECT_GT(collided, kRounds / 3);
}

}  // namespace
}  // namespace kvlink::match
