#include "cli/calibrate_corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace kvlink::cli {
namespace {

constexpr const char* kSmall = R"(
= desk
You sit at a desk.

One. It takes {days:3|5} days and
{hours:two|four} hours.

Two. Nothing to choose.

Three. {colour:red|blue}.

Four. The end.

? days: How many days does it take?
* Anything else?

= +
A passage of no domain.
)";

Corpus Small(uint64_t seed = 1) {
  auto corpus = Corpus::Parse(kSmall, seed);
  EXPECT_TRUE(corpus.ok()) << corpus.status().message();
  return *std::move(corpus);
}

std::string SystemOf(const std::vector<model::ChatMessage>& messages) {
  return messages.front().content;
}

TEST(Corpus, ThePairsOfAGroupDifferFromTheirDonorByOneEdit) {
  Corpus corpus = Small();
  for (int i = 0; i < 20; ++i) {
    const CalibrationGroup group = corpus.Next();
    EXPECT_FALSE(group.pairs.empty());
    std::set<std::string> systems;
    for (const CalibrationPair& pair : group.pairs) {
      EXPECT_NE(SystemOf(pair.messages), SystemOf(group.donor)) << PairKindName(pair.kind);
      EXPECT_TRUE(systems.insert(SystemOf(pair.messages)).second) << "the same trial twice";
      EXPECT_EQ(pair.messages.size(), 2u);
      EXPECT_EQ(SystemOf(pair.messages).find('{'), std::string::npos);
    }
  }
}

TEST(Corpus, AnEditThatDecidesPutsItsFactIntoOneTextAndTheDonorsIntoTheOther) {
  Corpus corpus = Small();
  std::set<PairKind> seen;
  for (int i = 0; i < 20; ++i) {
    const CalibrationGroup group = corpus.Next();
    for (const CalibrationPair& pair : group.pairs) {
      if (!Decides(pair.kind)) {
        EXPECT_TRUE(pair.fact.signs.empty());
        continue;
      }
      seen.insert(pair.kind);
      EXPECT_NE(pair.fact.signs, pair.donor_fact.signs);
      if (pair.kind == PairKind::kNegation) continue;  // "yes" stands in the answer only
      EXPECT_TRUE(Holds(SystemOf(pair.messages), pair.fact)) << PairKindName(pair.kind);
      EXPECT_TRUE(Holds(SystemOf(group.donor), pair.donor_fact)) << PairKindName(pair.kind);
      EXPECT_NE(pair.messages.back().content, group.donor.back().content);
    }
  }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(Corpus, ADecisiveAnswerGoesOnBehindItsStartAsThePromptDoes) {
  auto corpus = Corpus::Parse(CalibrationTemplates(), 1);
  ASSERT_TRUE(corpus.ok());
  std::set<PairKind> kinds;
  int donors_asked = 0;
  size_t shortest = ~size_t{0}, longest = 0;
  for (int i = 0; i < 48; ++i) {
    const CalibrationGroup group = corpus->NextDecisive();
    const std::string donor = SystemOf(group.donor);
    donors_asked += group.start.empty() ? 0 : 1;
    EXPECT_FALSE(group.pairs.empty());
    for (const CalibrationPair& pair : group.pairs) {
      kinds.insert(pair.kind);
      const std::string system = SystemOf(pair.messages);
      shortest = std::min(shortest, system.size());
      longest = std::max(longest, system.size());
      // What the text says behind the start holds the one fact, and the donor's text the other.
      // (The donor's words may have another clock: their end stands there, too.)
      constexpr size_t kNear = 24, kEnd = 40;
      const std::string end =
          pair.start.substr(pair.start.size() - std::min(pair.start.size(), kEnd));
      const size_t at = system.find(pair.start), donor_at = donor.find(end);
      ASSERT_NE(at, std::string::npos) << pair.start;
      ASSERT_NE(donor_at, std::string::npos) << pair.start;
      EXPECT_EQ(system.find(pair.start, at + 1), std::string::npos) << "twice: " << pair.start;
      const std::string said = pair.Said(system.substr(at + pair.start.size(), kNear));
      const std::string donor_said = pair.Said(donor.substr(donor_at + end.size(), kNear));
      EXPECT_TRUE(Holds(said, pair.fact)) << pair.start << "|" << said;
      EXPECT_TRUE(Holds(donor_said, pair.donor_fact)) << pair.start << "|" << donor_said;
      EXPECT_FALSE(Holds(said, pair.donor_fact)) << pair.start << "|" << said;
      EXPECT_NE(pair.fact.signs, pair.donor_fact.signs);
    }
  }
  EXPECT_EQ(kinds.size(), 4u);
  EXPECT_EQ(donors_asked, 24) << "every second donor was asked the same";
  EXPECT_LT(2 * shortest, longest) << "short and long texts";
}

TEST(Corpus, TheSameSeedMakesTheSamePairs) {
  Corpus one = Small(7), same = Small(7), other = Small(8);
  const CalibrationGroup group = one.Next();
  EXPECT_EQ(SystemOf(group.donor), SystemOf(same.Next().donor));
  EXPECT_NE(SystemOf(group.donor), SystemOf(other.Next().donor));
}

TEST(Corpus, TheBuiltInTextsMakeEveryKindOfPair) {
  auto corpus = Corpus::Parse(CalibrationTemplates(), 1);
  ASSERT_TRUE(corpus.ok()) << corpus.status().message();
  EXPECT_GE(corpus->num_domains(), 4u);
  std::set<PairKind> kinds;
  std::set<EditPlace> places;
  for (size_t i = 0; i < 12 * corpus->num_domains(); ++i) {
    const CalibrationGroup group = corpus->Next();
    EXPECT_EQ(SystemOf(group.donor).find('{'), std::string::npos);
    for (const CalibrationPair& pair : group.pairs) {
      kinds.insert(pair.kind);
      places.insert(pair.place);
    }
  }
  EXPECT_EQ(kinds.size(), static_cast<size_t>(PairKind::kOwnHead));
  EXPECT_EQ(places.size(), 3u);
}

TEST(Corpus, BadTemplatesAreRefusedWithTheLine) {
  const auto message = [](const std::string& text) {
    return Corpus::Parse(text, 1).status().message();
  };
  EXPECT_EQ(message("\nhello\n"), "templates, line 2: text before the first domain");
  EXPECT_EQ(message("= a\n? no slot\n"),
            "templates, line 2: a question that decides names its slot");
  EXPECT_NE(message("= a\nintro\n\none section\n").find("'a' has fewer than four"),
            std::string::npos);
  EXPECT_EQ(message(""), "templates: no domain, or no passages");
}

TEST(Corpus, APromptOfTheUsersStandsBehindTwoClocksAndBesideItsNeighbour) {
  Workload prompts;
  for (const char* text : {"first", "second"}) {
    prompts.conversations.push_back({"id", "", {{{{"user", text, ""}}, 8, 1, {}}}});
  }
  const auto groups = GroupsOf(prompts, 1);
  ASSERT_EQ(groups.size(), 3u);  // the last one has no neighbour
  EXPECT_EQ(groups[0].pairs[0].kind, PairKind::kOwnHead);
  EXPECT_NE(SystemOf(groups[0].donor), SystemOf(groups[0].pairs[0].messages));
  EXPECT_TRUE(SystemOf(groups[0].donor).ends_with("\n\nfirst"));
  EXPECT_EQ(groups[1].pairs[0].kind, PairKind::kOwnNext);
  EXPECT_EQ(SystemOf(groups[1].donor), "first");
  EXPECT_EQ(SystemOf(groups[1].pairs[0].messages), "second");
}

TEST(Holds, FindsWholeWordsOnly) {
  const Fact fact{{"14", "fourteen"}};
  EXPECT_TRUE(Holds("within 14 days", fact));
  EXPECT_TRUE(Holds("14", fact));
  EXPECT_TRUE(Holds("It is (fourteen).", fact));
  EXPECT_FALSE(Holds("within 145 days", fact));
  EXPECT_FALSE(Holds("within 2014 days", fact));
  EXPECT_FALSE(Holds("", fact));
}

}  // namespace
}  // namespace kvlink::cli
