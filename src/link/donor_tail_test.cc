// What is recorded of a donor's last rows acts: on which rows run, on the blast radius, on the
// checks of likelihood; and it is paid for out of the byte budget.
#include <gtest/gtest.h>

#include <cmath>

#include "link/similar_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 32;
using Action = Verdict::Action;

class DonorTailTest : public ::testing::Test {
 protected:
  void SetUp() override { harness_.Create(); }
  CacheStats Stats() const { return harness_.cache->Stats(); }
  // A clock, the policy, then the question, which only some prompts have in common.
  Tokens Prompt(uint64_t seed, uint64_t question = 1) const {
    return system_ + RandomTokens(1000 + seed, 6) + policy_ + RandomTokens(2000 + question, 20);
  }
  // Attention that falls evenly on all rows, and on `strong` rows a hundred times as much.
  static std::vector<float> Received(const Tokens& prompt, uint32_t first, uint32_t count) {
    std::vector<float> received(prompt.size(), 0.001f);
    for (uint32_t i = 0; i < count; ++i) received[first + i] = 0.1f;
    return received;
  }
  void Lend(const Tokens& prompt, const PromptTail& tail, const std::vector<float>& logits) {
    Running run = harness_.Start(harness_.RequestOf(prompt));
    EXPECT_EQ(run->observed_rows(), 8u);
    harness_.Compute(run);
    run->RecordTail(tail, logits);
    EXPECT_EQ(run->observed_rows(), 0u);
    run->RecordTail(tail, logits);  // once is enough
  }
  Running Borrow(const Tokens& prompt) {
    Running run = harness_.Start(harness_.Similar(prompt));
    EXPECT_TRUE(run.tainted) << SimilarReasonName(run.plan.similar_reason);
    harness_.Compute(run);
    return run;
  }
  Verdict Check(Running& run, const std::vector<float>& nll, const std::vector<float>& logits) {
    run->RecordTail({.received = {}, .nll = nll}, logits);
    return run->CheckFirstToken(logits);
  }
  static bool Runs(const Running& run, uint32_t row) {
    for (const Selection::Range& range : run.sequence->computed_rows()) {
      if (row >= range.position && row < range.position + range.num_rows) return true;
    }
    return false;
  }
  static std::vector<float> Certain(TokenId token) { return SimilarHarness::Certain(token); }
  static std::vector<float> Nll(float each) { return std::vector<float>(7, each); }

  const Tokens system_ = RandomTokens(1, 50);
  const Tokens policy_ = RandomTokens(2, 1000);
  SimilarHarness harness_{kBlock, 400};
};

TEST_F(DonorTailTest, RowsThatTheDonorAttendedToRunAgain) {
  Lend(Prompt(1), {.received = Received(Prompt(1), 600, 16), .nll = {}}, Certain(1));
  Running run = Borrow(Prompt(2, 2));
  for (uint32_t row = 600; row < 616; ++row) EXPECT_TRUE(Runs(run, row)) << row;
  EXPECT_FALSE(Runs(run, 599));
  EXPECT_FALSE(Runs(run, 700));
  EXPECT_EQ(harness_.WrongRows(run), "");
  // Moved by three rows they are found, too.
  const Tokens longer = system_ + RandomTokens(77, 9) + policy_ + RandomTokens(78, 20);
  Running moved = Borrow(longer);
  for (uint32_t row = 603; row < 619; ++row) EXPECT_TRUE(Runs(moved, row)) << row;
  EXPECT_EQ(harness_.WrongRows(moved), "");
}

TEST_F(DonorTailTest, AChangeWhereNobodyLookedIsNoReasonForMoreRows) {
  harness_.options.similar.note_share = 0;
  harness_.options.similar.min_notes = 0;
  harness_.context = 0.25f;  // every row behind the edit has changed somewhat
  harness_.Create();
  Lend(Prompt(1), {}, Certain(1));  // its attention is not known: every row counts
  EXPECT_EQ(Borrow(Prompt(2, 2))->CheckFirstToken(Certain(1)).action, Action::kEnlarge);
  // All attention on rows that run.
  harness_.Create();
  std::vector<float> received(Prompt(1).size(), 0.0f);
  for (uint32_t row = 56; row < 64; ++row) received[row] = 1;
  Lend(Prompt(1), {.received = received, .nll = {}}, Certain(1));
  EXPECT_EQ(Borrow(Prompt(2, 2))->CheckFirstToken(Certain(1)).action, Action::kAccept);
  // All of it on rows that do not.
  harness_.Create();
  std::vector<float> elsewhere(Prompt(1).size(), 0.0f);
  elsewhere[600] = 1;
  Lend(Prompt(1), {.received = elsewhere, .nll = {}}, Certain(1));
  EXPECT_EQ(Borrow(Prompt(2, 2))->CheckFirstToken(Certain(1)).action, Action::kEnlarge);
}

TEST_F(DonorTailTest, APromptThatBecameLessLikelyIsGarbled) {
  Lend(Prompt(1), {.received = {}, .nll = Nll(1.0f)}, Certain(1));
  Running same = Borrow(Prompt(2));
  EXPECT_EQ(same->observed_rows(), 8u);
  EXPECT_EQ(Check(same, Nll(1.4f), Certain(1)).action, Action::kAccept);
  Running worse = Borrow(Prompt(3));
  const Verdict verdict = Check(worse, Nll(1.6f), Certain(1));
  EXPECT_EQ(verdict.action, Action::kFallBack);
  EXPECT_EQ(verdict.reason, SimilarReason::kGarbled);
  // Of fewer rows the last ones are compared.
  Running few = Borrow(Prompt(4));
  EXPECT_EQ(Check(few, {1.6f, 1.6f}, Certain(1)).reason, SimilarReason::kGarbled);
  Running unknown = Borrow(Prompt(5));
  EXPECT_EQ(Check(unknown, {}, Certain(1)).action, Action::kAccept);
  Running not_a_number = Borrow(Prompt(6));
  EXPECT_EQ(Check(not_a_number, Nll(NAN), Certain(1)).reason, SimilarReason::kGarbled);
}

TEST_F(DonorTailTest, AnAnswerFarLessCertainThanTheDonorsIsGarbled) {
  Lend(Prompt(1), {.received = {}, .nll = Nll(1.0f)}, Certain(1));
  Running run = Borrow(Prompt(2));
  const std::vector<float> uncertain(100, 0.0f);  // ln 100 nats
  EXPECT_EQ(Check(run, Nll(1.0f), uncertain).reason, SimilarReason::kGarbled);
  // Another question may have an uncertain answer.
  Running other = Borrow(Prompt(3, 9));
  EXPECT_EQ(other->observed_rows(), 0u);
  EXPECT_EQ(Check(other, Nll(9.0f), uncertain).action, Action::kAccept);
}

TEST_F(DonorTailTest, TheDonorsAnswerWhereItsGroundsHaveChangedIsStale) {
  harness_.context = 0.25f;
  Lend(Prompt(1), {.received = std::vector<float>(Prompt(1).size(), 0.01f), .nll = {}}, Certain(1));
  Running run = Borrow(Prompt(2));
  EXPECT_EQ(run->CheckFirstToken(Certain(1)).reason, SimilarReason::kStale);
  // Another answer than the donor's is not: more rows are asked for.
  Running other = Borrow(Prompt(3));
  EXPECT_EQ(other->CheckFirstToken(Certain(2)).action, Action::kEnlarge);
}

TEST_F(DonorTailTest, AnotherAnswerAlthoughNothingHasChangedIsGarbled) {
  Lend(Prompt(1), {.received = {}, .nll = Nll(1)}, Certain(1));
  Running run = Borrow(Prompt(2));
  EXPECT_EQ(Check(run, Nll(1), Certain(2)).reason, SimilarReason::kGarbled);
}

TEST_F(DonorTailTest, NotesLieInCachedPagesAndSeveralInOne) {
  const uint64_t before = Stats().cached_pages;
  for (uint64_t i = 0; i < 3; ++i) {
    Lend(Prompt(1, i), {.received = Received(Prompt(1, i), 600, 1), .nll = Nll(1)}, Certain(1));
  }
  const CacheStats stats = Stats();
  EXPECT_EQ(stats.donor_notes, 3u);
  // A header, 1,076 + 7 floats and 64 entries each.
  const uint64_t bytes = 3 * (32 + 4 * (1076 + 7) + 8 * 64);
  EXPECT_EQ(stats.note_pages, (bytes + stats.page_bytes - 1) / stats.page_bytes);
  EXPECT_EQ(stats.in_use_pages, 0u);
  EXPECT_GE(stats.cached_pages - before, stats.note_pages);
  harness_.ExpectConserved();
  harness_.cache->Clear();
  EXPECT_EQ(Stats().note_pages, 0u);
  EXPECT_EQ(Stats().free_pages, Stats().total_pages);
}

TEST_F(DonorTailTest, ANoteGoesWithItsDonorAtTheLatest) {
  harness_.options.budget_bytes = 60 * harness_.options.shape.page_bytes();
  harness_.Create();
  Lend(Prompt(1), {.received = Received(Prompt(1), 600, 1), .nll = {}}, Certain(1));
  EXPECT_EQ(Stats().donor_notes, 1u);
  for (uint64_t i = 0; i < 5; ++i) {
    Running run = harness_.Start(harness_.RequestOf(RandomTokens(50 + i, 1000)));
    harness_.Compute(run);
    harness_.ExpectConserved();
  }
  EXPECT_EQ(Stats().donor_notes, 0u);
  EXPECT_EQ(Stats().note_pages, 0u);
}

TEST_F(DonorTailTest, WhereThereIsNoRoomNothingIsRecorded) {
  harness_.options.budget_bytes = 34 * harness_.options.shape.page_bytes();
  harness_.Create();
  const Tokens prompt = Prompt(1);  // all 34 pages
  Running run = harness_.Start(harness_.RequestOf(prompt));
  harness_.Compute(run);
  run->RecordTail({.received = Received(prompt, 600, 1), .nll = {}}, Certain(1));
  EXPECT_EQ(Stats().donor_notes, 0u);
  EXPECT_EQ(Stats().donors, 1u);
  harness_.ExpectConserved();
  // What it needs next is taken from notes, and never the other way round.
  harness_.options.budget_bytes = 40 * harness_.options.shape.page_bytes();
  harness_.Create();
  Running other = harness_.Start(harness_.RequestOf(prompt));
  harness_.Compute(other);
  other->RecordTail({.received = Received(prompt, 600, 1), .nll = {}}, Certain(1));
  EXPECT_EQ(Stats().donor_notes, 1u);
  for (TokenId token = 0; token < 6 * 32; ++token) {
    ASSERT_TRUE(harness_.Generate(other, token).ok()) << token;
  }
  EXPECT_EQ(Stats().donor_notes, 0u);
}

TEST_F(DonorTailTest, ADonorWithoutItsNoteLendsAsBefore) {
  harness_.options.budget_bytes = 45 * harness_.options.shape.page_bytes();
  harness_.Create();
  Lend(Prompt(1), {.received = Received(Prompt(1), 600, 16), .nll = Nll(1)}, Certain(1));
  EXPECT_EQ(Stats().donor_notes, 1u);
  // The donor's pages are used, and what goes is the note.
  Running user = harness_.Start(harness_.RequestOf(Prompt(1)));
  Running pressure = harness_.Start(harness_.RequestOf(RandomTokens(99, 280)));
  EXPECT_EQ(Stats().donor_notes, 0u);
  pressure.sequence.reset();
  Running run = Borrow(Prompt(2));
  EXPECT_FALSE(Runs(run, 600));
  EXPECT_EQ(run->CheckFirstToken(Certain(1)).action, Action::kAccept);
}

TEST_F(DonorTailTest, WithoutSimilarReuseNothingIsRecorded) {
  harness_.options.similar.policy = SimilarPolicy::kOff;
  harness_.Create();
  Running run = harness_.Start(harness_.RequestOf(Prompt(1)));
  EXPECT_EQ(run->observed_rows(), 0u);
  harness_.Compute(run);
  run->RecordTail({.received = {}, .nll = Nll(1)}, Certain(1));
  EXPECT_EQ(Stats().note_pages, 0u);
}

}  // namespace
}  // namespace kvlink::link
