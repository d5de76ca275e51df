// Sequences whose layers run for different rows (Sequence::NextBand): what is copied, what chooses
// the rows that run, what can be read of the donor, and what is given back.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "link/similar_harness.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 32, kLayers = 6, kExact = 50, kEmbedding = 8;
using Action = Verdict::Action;

std::set<uint32_t> RowsOf(std::span<const Selection::Range> ranges) {
  std::set<uint32_t> rows;
  for (const Selection::Range& range : ranges) {
    for (uint32_t i = 0; i < range.num_rows; ++i) rows.insert(range.position + i);
  }
  return rows;
}

class BandsTest : public ::testing::Test {
 protected:
  void Create(ReuseMode mode, uint32_t max_reuse_distance) {
    CacheOptions& options = harness_.options;
    options.shape.num_layers = kLayers;
    options.budget_bytes = 400 * options.shape.page_bytes();
    options.similar.mode = mode;
    options.similar.max_reuse_distance = max_reuse_distance;
    options.similar_model.embedding = kEmbedding;
    harness_.Create();
  }
  Tokens Prompt(uint64_t seed) const {
    return system_ + RandomTokens(1000 + seed, 6) + policy_ + RandomTokens(2000 + seed, 20);
  }
  Running Lend() {
    Running run = harness_.Start(harness_.RequestOf(Prompt(1)));
    harness_.Compute(run);
    return run;
  }
  Running Borrow(SimilarPolicy policy = SimilarPolicy::kOn) {
    Running run = harness_.Start(harness_.Similar(Prompt(2), {}, policy));
    EXPECT_TRUE(run.tainted) << SimilarReasonName(run.plan.similar_reason);
    EXPECT_TRUE(run->runs_in_bands());
    EXPECT_EQ(run.ready(), kExact);
    return run;
  }
  void Commit(Running& run) { run->Commit(std::span(run.tokens).subspan(run.ready())); }
  uint64_t PagesInUse() const { return harness_.cache->Stats().in_use_pages; }

  std::pair<BlockView, uint32_t> PlaceOf(const Running& run, uint32_t position) const {
    const SpanTable& table = run.sequence->table();
    for (const Span& span : table.spans) {
      if (position >= span.position + span.num_rows) continue;
      const uint32_t row = span.first_row + position - span.position;
      return {table.blocks[span.first_block + row / kBlock], row % kBlock};
    }
    ADD_FAILURE() << "no span has row " << position;
    return {};
  }
  // The K of a row in a layer, the same number in both heads.
  uint64_t KeyAt(const Running& run, uint32_t position, uint32_t layer) const {
    const auto [block, row] = PlaceOf(run, position);
    std::array<uint64_t, 2> marks{};
    for (uint32_t head = 0; head < 2; ++head) {
      const auto place = KvRowOf(harness_.options.shape, block, layer, head, row);
      for (uint32_t d = 0; d < 4; ++d) {
        uint16_t k;
        std::memcpy(&k, place.k + d * place.k_stride, 2);
        marks[head] |= uint64_t{k} << (16 * d);
      }
    }
    EXPECT_EQ(marks[0], marks[1]) << "row " << position << " layer " << layer;
    return marks[0];
  }
  void PutKey(Running& run, uint32_t position, uint32_t layer, uint64_t mark) {
    const auto [block, row] = PlaceOf(run, position);
    for (uint32_t head = 0; head < 2; ++head) {
      const auto place = KvRowOf(harness_.options.shape, block, layer, head, row);
      for (uint32_t d = 0; d < 4; ++d) {
        const auto k = static_cast<uint16_t>(mark >> (16 * d));
        std::memcpy(place.k + d * place.k_stride, &k, 2);
      }
    }
    written_[{position, layer}] = mark;
  }
  // The V of a row in a layer becomes another one altogether.
  void MoveValue(Running& run, uint32_t position, uint32_t layer) {
    const auto [block, row] = PlaceOf(run, position);
    for (uint32_t head = 0; head < 2; ++head) {
      const auto place = KvRowOf(harness_.options.shape, block, layer, head, row);
      const uint16_t eight = 0x4800;
      for (uint32_t d = 0; d < 4; ++d) std::memcpy(place.v + d * 2, &eight, 2);
    }
  }
  // As an engine does: K of the layers that run, and of the next one where the band says so.
  void RunBand(Running& run, const LayerBand& band) {
    const uint32_t end = band.end_layer + (band.writes_next ? 1 : 0);
    ASSERT_LE(end, kLayers);
    for (const uint32_t position : RowsOf(band.rows)) {
      for (uint32_t layer = band.first_layer; layer < end; ++layer) {
        PutKey(run, position, layer, ++last_mark_);
      }
    }
  }
  // Behind the exact rows every layer of every row is what ran last, or the donor's.
  void ExpectRowsAreOwnOrTheDonors(const Running& run, const Tokens& donor) const {
    Running lender;
    lender.tokens = donor;
    std::map<uint32_t, uint32_t> donor_rows;
    for (const ReuseSpan& span : run.plan.similar->spans) {
      for (uint32_t i = 0; i < span.num_rows; ++i) {
        donor_rows[span.position + i] = span.donor_position + i;
      }
    }
    for (uint32_t p = kExact; p < run.prompt; ++p) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const auto own = written_.find({p, layer});
        if (own != written_.end()) {
          ASSERT_EQ(KeyAt(run, p, layer), own->second) << "row " << p << " layer " << layer;
        } else {
          ASSERT_TRUE(donor_rows.contains(p)) << "nobody has row " << p << " layer " << layer;
          ASSERT_EQ(KeyAt(run, p, layer), SimilarHarness::PrefixMark(lender, donor_rows.at(p)))
              << "row " << p << " layer " << layer;
        }
      }
    }
  }

  const Tokens system_ = RandomTokens(1, kExact);
  const Tokens policy_ = RandomTokens(2, 400);
  SimilarHarness harness_{kBlock, 400};
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> written_;  // by position and layer
  uint64_t last_mark_ = uint64_t{1} << 63;
};

TEST_F(BandsTest, RowsThatMovedMostInTheFirstLayerRunTheOthers) {
  for (const uint32_t first : {250u, 350u}) {
    Create(ReuseMode::kBlend, kLayers);
    static_cast<void>(Lend());
    written_.clear();
    Running run = Borrow();
    const auto all = run->NextBand();
    ASSERT_TRUE(all.has_value());
    EXPECT_EQ(std::pair(all->first_layer, all->end_layer), std::pair(0u, 1u));
    EXPECT_TRUE(all->writes_next);
    EXPECT_EQ(all->rows, (std::vector<Selection::Range>{{kExact, run.prompt - kExact}}));
    for (const ReuseSpan& span : run.plan.similar->spans) {  // copied before anything runs
      Running lender;
      lender.tokens = Prompt(1);
      EXPECT_EQ(KeyAt(run, span.position, kLayers - 1),
                SimilarHarness::PrefixMark(lender, span.donor_position));
    }
    RunBand(run, *all);
    for (uint32_t i = 0; i < 10; ++i) MoveValue(run, first + i, 1);
    const auto rest = run->NextBand();
    ASSERT_TRUE(rest.has_value());
    EXPECT_EQ(std::pair(rest->first_layer, rest->end_layer), std::pair(1u, kLayers));
    EXPECT_FALSE(rest->writes_next);
    const std::set<uint32_t> rows = RowsOf(rest->rows);
    for (uint32_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(rows.contains(first + i)) << first + i;
      EXPECT_FALSE(rows.contains(600 - first + i)) << "nothing moved there";
    }
    EXPECT_EQ(rows, RowsOf(run->computed_rows()));
    RunBand(run, *rest);
    EXPECT_FALSE(run->NextBand().has_value());
    Commit(run);
    EXPECT_EQ(run.ready(), run.prompt);
    ExpectRowsAreOwnOrTheDonors(run, Prompt(1));
    EXPECT_EQ(run->CheckFirstToken(SimilarHarness::Certain(1)).action, Action::kAccept);
    ExpectRowsAreOwnOrTheDonors(run, Prompt(1));
  }
}

TEST_F(BandsTest, WithTheVerdictTheDonorsPagesAreGivenBackAndBranchesShareTheRest) {
  Create(ReuseMode::kBlend, kLayers);
  static_cast<void>(Lend());
  Running run = Borrow();
  const auto in_pages = [](uint32_t rows) { return (rows + kBlock - 1) / kBlock; };
  const uint32_t own = in_pages(run.prompt + 1 - kExact);
  EXPECT_EQ(PagesInUse(), in_pages(run.prompt - 20) + own);  // the donor's up to its question
  EXPECT_EQ(run->Fork(kExact, 8).status().code(), StatusCode::kFailedPrecondition);
  while (const auto band = run->NextBand()) RunBand(run, *band);
  Commit(run);
  ASSERT_EQ(run->CheckFirstToken(SimilarHarness::Certain(1)).action, Action::kAccept);
  EXPECT_EQ(PagesInUse(), in_pages(kExact) + own);
  EXPECT_FALSE(run->runs_in_bands());
  EXPECT_FALSE(run->NextBand().has_value());

  auto branch = harness_.Fork(run, run.prompt);
  ASSERT_TRUE(branch.ok()) << branch.status().ToString();
  EXPECT_EQ(PagesInUse(), in_pages(kExact) + own + 1) << "the page that both go on in";
  for (TokenId token = 0; token < 40; ++token) {
    ASSERT_TRUE(harness_.Generate(run, token).ok());
    ASSERT_TRUE(harness_.Generate(*branch, token + 100).ok());
  }
  for (uint32_t p = kExact; p < run.prompt; ++p) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_EQ(KeyAt(run, p, layer), KeyAt(*branch, p, layer)) << "row " << p;
    }
  }
  EXPECT_NE(KeyAt(run, run.prompt, 0), KeyAt(*branch, run.prompt, 0));
  // What the donor left is as it was.
  Running again = harness_.Start(harness_.RequestOf(Prompt(1)));
  EXPECT_GE(again.ready(), run.prompt - 1);
  EXPECT_EQ(harness_.WrongRows(again), "");
}

TEST_F(BandsTest, ADonorsResidualStreamIsReadWhereItWasRecordedAndNowhereElse) {
  Create(ReuseMode::kLayered, 4);
  const KvShape shape = harness_.cache->shape();
  ASSERT_EQ(shape.checkpoint_bytes, kEmbedding * 2);
  const auto bits = [](uint32_t position, uint32_t k) {
    return static_cast<uint16_t>(0x3c00u | ((position * 7 + k) & 0x3ffu));  // in [1, 2) as F16
  };
  {
    Running donor = Lend();
    ASSERT_EQ(
        std::vector<uint32_t>(donor->checkpoint_layers().begin(), donor->checkpoint_layers().end()),
        std::vector<uint32_t>{4});
    for (uint32_t p = 0; p < donor.prompt; ++p) {
      const auto [block, row] = PlaceOf(donor, p);
      for (uint32_t k = 0; k < kEmbedding; ++k) {
        const uint16_t half = bits(p, k);
        std::memcpy(block.page + shape.checkpoints_offset() + row * shape.checkpoint_bytes + k * 2,
                    &half, 2);
      }
    }
  }
  Running run = Borrow();
  const auto selected = run->NextBand();
  ASSERT_TRUE(selected.has_value());
  EXPECT_EQ(std::pair(selected->first_layer, selected->end_layer), std::pair(0u, 4u));
  EXPECT_LT(RowsOf(selected->rows).size(), size_t{run.prompt - kExact});
  RunBand(run, *selected);
  const auto all = run->NextBand();
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(std::pair(all->first_layer, all->end_layer), std::pair(4u, kLayers));
  EXPECT_EQ(RowsOf(all->rows).size(), size_t{run.prompt - kExact});

  std::vector<float> out(kEmbedding);
  for (const ReuseSpan& span : run.plan.similar->spans) {
    for (const uint32_t i : {0u, span.num_rows / 2, span.num_rows - 1}) {
      ASSERT_TRUE(run->ReadCheckpoint(4, span.position + i, out));
      for (uint32_t k = 0; k < kEmbedding; ++k) {
        EXPECT_EQ(out[k],
                  1 + static_cast<float>(bits(span.donor_position + i, k) & 0x3ffu) / 1024.0f);
      }
    }
  }
  const uint32_t lent = run.plan.similar->spans.front().position;
  std::vector<float> shorter(kEmbedding - 1);
  EXPECT_FALSE(run->ReadCheckpoint(3, lent, out)) << "another layer";
  EXPECT_FALSE(run->ReadCheckpoint(4, kExact + 1, out)) << "a row of no span";
  EXPECT_FALSE(run->ReadCheckpoint(4, lent, shorter)) << "another width";
  RunBand(run, *all);
  EXPECT_FALSE(run->NextBand().has_value());
  Commit(run);
  ExpectRowsAreOwnOrTheDonors(run, Prompt(1));
  ASSERT_EQ(run->CheckFirstToken(SimilarHarness::Certain(1)).action, Action::kAccept);
  EXPECT_FALSE(run->ReadCheckpoint(4, lent, out)) << "the donor is given back";
}

TEST_F(BandsTest, AnEnlargementRunsAllBandsAgainWithMoreRowsAndKeepsWhatWasComputed) {
  Create(ReuseMode::kAnchored, 2);
  static_cast<void>(Lend());
  Running run = Borrow(SimilarPolicy::kStrict);
  const std::vector<std::pair<uint32_t, uint32_t>> layers = {{0, 1}, {1, 2}, {2, 3}, {3, kLayers}};
  std::vector<std::set<uint32_t>> before;
  for (const bool is_again : {false, true}) {
    std::vector<std::set<uint32_t>> rows;
    for (const auto& [first, end] : layers) {
      const auto band = run->NextBand();
      ASSERT_TRUE(band.has_value()) << first;
      EXPECT_EQ(std::pair(band->first_layer, band->end_layer), std::pair(first, end));
      EXPECT_EQ(band->writes_next, end == first + 1 && first % 2 == 0) << first;
      if (is_again && first == 0) {  // nothing was copied over what ran
        ExpectRowsAreOwnOrTheDonors(run, Prompt(1));
      }
      rows.push_back(RowsOf(band->rows));
      RunBand(run, *band);
    }
    EXPECT_FALSE(run->NextBand().has_value());
    EXPECT_EQ(rows[0].size(), size_t{run.prompt - kExact});
    EXPECT_EQ(rows[2].size(), size_t{run.prompt - kExact});
    EXPECT_TRUE(std::ranges::includes(rows[3], rows[1])) << "others join at the checkpoint";
    if (!is_again) {
      EXPECT_GT(rows[3].size(), rows[1].size());
    }
    Commit(run);
    ExpectRowsAreOwnOrTheDonors(run, Prompt(1));
    const Action action = run->CheckFirstToken(SimilarHarness::Certain(1)).action;
    if (is_again) {
      EXPECT_EQ(action, Action::kAccept);
      EXPECT_TRUE(std::ranges::includes(rows[1], before[1]));
      EXPECT_GE(rows[3].size(), before[3].size());
    } else {
      ASSERT_EQ(action, Action::kEnlarge);
      EXPECT_EQ(run.ready(), kExact);
      EXPECT_TRUE(run->runs_in_bands());
      before = rows;
    }
  }
  EXPECT_EQ(harness_.cache->Stats().similar_enlarged, 1u);
}

TEST_F(BandsTest, ASequenceThatIsDroppedBetweenBandsLeavesNothingInUse) {
  Create(ReuseMode::kAnchored, 2);
  static_cast<void>(Lend());
  const uint64_t cached = harness_.cache->Stats().cached_pages;
  for (uint32_t bands = 0; bands < 4; ++bands) {
    Running run = Borrow();
    for (uint32_t i = 0; i < bands; ++i) RunBand(run, *run->NextBand());
    EXPECT_GT(PagesInUse(), 0u);
    run.sequence.reset();
    EXPECT_EQ(PagesInUse(), 0u);
    EXPECT_EQ(harness_.cache->Stats().cached_pages, cached);
    harness_.ExpectConserved();
  }
}

}  // namespace
}  // namespace kvlink::link
