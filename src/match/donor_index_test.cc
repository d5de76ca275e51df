#include "match/donor_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "base/random.h"
#include "match/testing/tokens.h"

namespace kvlink::match {
namespace {

class DonorIndexTest : public ::testing::Test {
 protected:
  Tokens Text(size_t count) { return match::Text(random_, count); }
  Sketch SketchOf(const Tokens& tokens) const { return MakeSketch(tokens, classes_, options_); }
  void Lend(DonorId id, const Tokens& tokens) { index_.Add(id, root_, SketchOf(tokens)); }
  std::optional<DonorId> Find(const Tokens& tokens, uint32_t exact = 0) {
    const auto match = index_.Find(root_, SketchOf(tokens), exact);
    return match ? std::optional(match->donor) : std::nullopt;
  }

  const KeyMaker keys_{"model"};
  const Root root_ = keys_.MakeRoot({"tenant", ""});
  const NormalTokens classes_;
  SimilarOptions options_;
  base::Random random_{1};
  DonorIndex index_{options_};
};

TEST_F(DonorIndexTest, FindsThePromptWhoseHeadChanged) {
  const Tokens policy = Text(1000);
  Lend(1, Text(1000));
  Lend(2, Text(20) + policy + Text(30));
  Lend(3, Text(1000));
  const auto match = index_.Find(root_, SketchOf(Text(25) + policy + Text(40)), 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->donor, 2u);
  EXPECT_EQ(match->donor_tokens, 1050u);
  EXPECT_NEAR(match->estimated_rows, 1000, 20);
}

TEST_F(DonorIndexTest, FindsNobodyForAStranger) {
  for (DonorId id = 0; id < 50; ++id) Lend(id, Text(500));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Find(Text(500)), std::nullopt);
}

TEST_F(DonorIndexTest, FindsARunInTheMiddleOfSomethingElse) {
  const Tokens passage = Text(120);
  Lend(1, Text(700) + passage + Text(900));
  EXPECT_EQ(Find(Text(300) + passage + Text(100)), 1u);
}

TEST_F(DonorIndexTest, LooksOnlyBehindTheExactHit) {
  const Tokens head = Text(400), body = Text(200);
  Lend(1, head + Text(200));
  Lend(2, Text(100) + body);
  EXPECT_EQ(Find(head + body, 400), 2u) << "the first donor's rows are there already";
  EXPECT_EQ(Find(head + Text(200), 400), std::nullopt);
  EXPECT_EQ(Find(head + Text(63), 400), std::nullopt) << "too little is left";
}

TEST_F(DonorIndexTest, PrefersTheDonorThatCoversMore) {
  const Tokens common = Text(200), more = Text(200);
  Lend(1, common + more);
  Lend(2, common + Text(200));
  EXPECT_EQ(Find(Text(10) + common + more), 1u);
}

TEST_F(DonorIndexTest, AmongEqualsPrefersTheNewest) {
  const Tokens policy = Text(500);
  for (DonorId id = 0; id < 8; ++id) Lend(id, Text(10) + policy);
  EXPECT_EQ(Find(Text(10) + policy), 7u);
}

// The changed-clock case: every n-gram is in every donor.
TEST_F(DonorIndexTest, BehindATemplateFindsOneOfTheNewest) {
  const Tokens policy = Text(800);
  for (DonorId id = 0; id < 300; ++id) Lend(id, Text(12) + policy + Text(20));
  const auto found = Find(Text(12) + policy + Text(20));
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(*found, 284u);
}

// As when eviction spares what many use: newer donors that nobody used go first.
TEST_F(DonorIndexTest, AnOldDonorIsFoundWhenTheNewerOnesAreGone) {
  const Tokens policy = Text(800);
  for (DonorId id = 0; id < 100; ++id) Lend(id, Text(12) + policy);
  for (DonorId id = 1; id < 100; ++id) index_.Erase(id);
  EXPECT_EQ(Find(Text(12) + policy), 0u);
}

TEST_F(DonorIndexTest, ATemplateDoesNotHideTheDonorWhoseBodyIsAlike) {
  const Tokens policy = Text(600);
  std::vector<Tokens> bodies;
  for (DonorId id = 0; id < 300; ++id) {
    bodies.push_back(Text(100));
    Lend(id, Text(12) + policy + bodies.back());
  }
  for (DonorId id = 0; id < 300; id += 7) {
    Tokens body = bodies[id];
    body[50] = 20001;
    EXPECT_EQ(Find(Text(12) + policy + body), id);
  }
}

TEST_F(DonorIndexTest, FindsScatteredEditsAcrossWindowsOfDifferentWidth) {
  Tokens text = Text(3000);  // a wider window than the query's
  Lend(1, text + Text(3000));
  Lend(2, Text(6000));
  for (size_t i = 10; i < text.size(); i += 60) text[i] = 20001;
  text.resize(1500);
  EXPECT_EQ(Find(text), 1u);
}

TEST_F(DonorIndexTest, NeverCrossesNamespaces) {
  const Tokens text = Text(500);
  Lend(1, text);
  const Root other = keys_.MakeRoot({"other", ""});
  const Root salted = keys_.MakeRoot({"tenant", "salt"});
  EXPECT_FALSE(index_.Find(other, SketchOf(text), 0).has_value());
  EXPECT_FALSE(index_.Find(salted, SketchOf(text), 0).has_value());
  index_.Add(2, other, SketchOf(Text(500)));
  EXPECT_FALSE(index_.Find(other, SketchOf(text), 0).has_value());
  EXPECT_EQ(Find(text), 1u);
  index_.Erase(2);
  EXPECT_EQ(index_.num_namespaces(), 1u);
}

TEST_F(DonorIndexTest, ADonorThatLosesItsLastRowsLendsTheRest) {
  const Tokens text = Text(640);
  Lend(1, text);
  index_.Move(1, 11, 608);
  EXPECT_FALSE(index_.Contains(1));
  const auto match = index_.Find(root_, SketchOf(text), 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->donor, 11u);
  EXPECT_EQ(match->donor_tokens, 608u);
  index_.Move(11, 12, 320);
  EXPECT_EQ(Find(text), 12u);
  index_.Move(12, 13, 288);
  EXPECT_EQ(Find(text), std::nullopt) << "less than half is left";
  EXPECT_EQ(index_.num_donors(), 0u);
  index_.Move(13, 14, 0);  // unknown: nothing happens
}

TEST_F(DonorIndexTest, TwoDonorsThatShrinkToOneBlockBecomeOne) {
  const Tokens text = Text(640);
  Lend(1, text + Text(64));
  Lend(2, text + Text(64));
  index_.Move(1, 9, 640);
  index_.Move(2, 9, 640);
  EXPECT_EQ(index_.num_donors(), 1u);
  EXPECT_EQ(Find(text), 9u);
}

TEST_F(DonorIndexTest, DoesNotTakePromptsThatCouldLendTooLittle) {
  EXPECT_FALSE(index_.Add(1, root_, SketchOf(Text(63))));
  EXPECT_TRUE(index_.Add(1, root_, SketchOf(Text(64))));
  EXPECT_FALSE(index_.Add(1, root_, SketchOf({}))) << "and forgets the one before";
  EXPECT_EQ(index_.num_donors(), 0u);
}

TEST_F(DonorIndexTest, MemoryGoesWithLiveDonorsAndIsBoundedForEach) {
  constexpr DonorId kDonors = 200;
  for (DonorId id = 0; id < 20 * kDonors; ++id) {
    Lend(id, Text(200 + id % 3000));
    if (id >= kDonors) index_.Erase(id - kDonors);
  }
  EXPECT_EQ(index_.num_donors(), kDonors);
  EXPECT_LE(index_.num_postings(), kDonors * (options_.max_anchors + kBands));
  EXPECT_LT(index_.tracking_bytes(), kDonors * (options_.max_anchors + kBands) * 40u);
  index_.Clear();
  EXPECT_EQ(index_.num_postings(), 0u);
  EXPECT_EQ(index_.num_namespaces(), 0u);
  EXPECT_LT(index_.tracking_bytes(), 60000u);
}

// Beside a list of prompts: whoever is found is here, in the namespace, with the tokens it says;
// and where exactly one prompt shares a long run, it is found.
TEST_F(DonorIndexTest, DoesWhatAListOfPromptsDoes) {
  struct Prompt {
    size_t space;
    Tokens tokens;
    size_t rows;
  };
  std::map<DonorId, Prompt> naive;
  std::vector<Root> roots;
  for (const char* tenant : {"a", "b", "c"}) roots.push_back(keys_.MakeRoot({tenant, ""}));
  DonorId next = 0;
  int found = 0;
  for (int step = 0; step < 3000; ++step) {
    const size_t space = random_.Below(roots.size());
    const bool filling = step / 500 % 2 == 0;
    const uint64_t action = random_.Below(10);
    if (action < (filling ? 5u : 2u)) {
      const Prompt prompt{space, Text(64 + random_.Below(300)), 0};
      ASSERT_TRUE(index_.Add(next, roots[space], SketchOf(prompt.tokens)));
      naive[next] = prompt;
      naive[next++].rows = prompt.tokens.size();
    } else if (!naive.empty()) {
      auto any = naive.begin();
      std::advance(any, random_.Below(naive.size()));
      const auto [id, prompt] = *any;
      if (action < 5) {
        index_.Erase(id);
        naive.erase(any);
      } else if (action < 6) {
        const size_t rows = prompt.rows - random_.Below(40);
        index_.Move(id, next, static_cast<uint32_t>(rows));
        naive.erase(any);
        if (2 * rows >= prompt.tokens.size()) naive[next] = {prompt.space, prompt.tokens, rows};
        ASSERT_EQ(index_.Contains(next), naive.contains(next));
        ++next;
      } else {
        const Sketch sketch = SketchOf(Text(30) + prompt.tokens + Text(10));
        const auto match = index_.Find(roots[space], sketch, 0);
        ASSERT_EQ(match.has_value(), space == prompt.space) << step;
        if (match) {
          ASSERT_EQ(match->donor, id);
          ASSERT_EQ(match->donor_tokens, prompt.rows);
          ++found;
        }
      }
    }
    ASSERT_EQ(index_.num_donors(), naive.size());
  }
  EXPECT_GT(found, 200);
  for (const auto& [id, prompt] : naive) index_.Erase(id);
  EXPECT_EQ(index_.num_postings(), 0u);
  EXPECT_EQ(index_.num_namespaces(), 0u);
}

TEST_F(DonorIndexTest, LookupsRunTogether) {
  const Tokens text = Text(500);
  Lend(1, text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(index_.Find(root_, SketchOf(text), 0)->donor, 1u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvlink::match
