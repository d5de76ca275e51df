#include "verify/reuse_mode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvlink::verify {
namespace {

using Layers = std::vector<uint32_t>;

SimilarOptions With(ReuseMode mode, uint32_t distance) {
  SimilarOptions options;
  options.mode = mode;
  options.max_reuse_distance = distance;
  return options;
}

TEST(ReuseMode, RefusesToGoBeyondTheDistance) {
  for (const ReuseMode mode : {ReuseMode::kSeam, ReuseMode::kBlend}) {
    const auto refused = PlanLayers(With(mode, 7), 30, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.status().message().find(ReuseModeName(mode)), std::string::npos);
  }
  EXPECT_EQ(PlanLayers(With(ReuseMode::kSeam, 30), 30, {})->reuse_distance, 30u);
  EXPECT_EQ(PlanLayers(With(ReuseMode::kBlend, 28), 30, {})->reuse_distance, 28u);
  EXPECT_FALSE(PlanLayers(With(ReuseMode::kBlend, 27), 30, {}).ok());
}

TEST(ReuseMode, LayeredRestartsAtTheDeepestCheckpointWithinTheDistance) {
  const Layers checkpoints = {3, 7, 15};
  const auto plan = PlanLayers(With(ReuseMode::kLayered, 7), 30, checkpoints);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->reentry_layer, 7u);
  EXPECT_EQ(plan->layers_run(), 23u);
  EXPECT_FALSE(PlanLayers(With(ReuseMode::kLayered, 2), 30, checkpoints).ok());
}

TEST(ReuseMode, AnchoredKeepsTheDonorsValuesInShortRunsOnly) {
  const Layers checkpoints = {7, 15, 23};
  const auto plan = PlanLayers(With(ReuseMode::kAnchored, 7), 30, checkpoints);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->refreshed_layers, checkpoints);
  EXPECT_EQ(plan->full_layers, 1u);
  EXPECT_EQ(plan->reuse_distance, 7u);
  EXPECT_EQ(plan->layers_run(), 4u);
  EXPECT_FALSE(PlanLayers(With(ReuseMode::kAnchored, 7), 30, Layers{7, 15}).ok());
}

TEST(ReuseMode, ChoosesTheCheckpointsThatAModeNeeds) {
  EXPECT_EQ(CheckpointsFor(With(ReuseMode::kAnchored, 7), 30), (Layers{7, 15, 23}));
  EXPECT_EQ(CheckpointsFor(With(ReuseMode::kAnchored, 7), 16), (Layers{7}));
  EXPECT_EQ(CheckpointsFor(With(ReuseMode::kAnchored, 7), 24), (Layers{7, 15}));
  EXPECT_EQ(CheckpointsFor(With(ReuseMode::kLayered, 7), 30), (Layers{7}));
  EXPECT_TRUE(CheckpointsFor(With(ReuseMode::kSeam, 7), 30).empty());
}

TEST(ReuseMode, TheChosenCheckpointsAlwaysDo) {
  for (uint32_t num_layers = 2; num_layers < 100; ++num_layers) {
    for (uint32_t distance = 1; distance < 12; ++distance) {
      for (const ReuseMode mode : {ReuseMode::kLayered, ReuseMode::kAnchored}) {
        if (mode == ReuseMode::kLayered && distance >= num_layers) continue;
        const SimilarOptions options = With(mode, distance);
        const auto plan = PlanLayers(options, num_layers, CheckpointsFor(options, num_layers));
        ASSERT_TRUE(plan.ok()) << plan.status().ToString() << " of " << num_layers;
        ASSERT_LE(plan->reuse_distance, distance);
      }
    }
  }
}

TEST(ReuseMode, BandsCoverEachLayerOfASelectedRowOnce) {
  const auto bands_of = [](ReuseMode mode) {
    SimilarOptions options = With(mode, mode == ReuseMode::kBlend ? 30 : 7);
    if (mode == ReuseMode::kSeam) options.max_reuse_distance = 30;
    return BandsOf(*PlanLayers(options, 30, CheckpointsFor(options, 30)));
  };
  EXPECT_TRUE(bands_of(ReuseMode::kSeam).empty());
  EXPECT_EQ(bands_of(ReuseMode::kLayered),
            (std::vector<Band>{{0, 7, false, false, 0}, {7, 30, true, false, 0}}));
  EXPECT_EQ(bands_of(ReuseMode::kBlend),
            (std::vector<Band>{{0, 1, true, true, 1}, {1, 30, false, false, 0}}));
  EXPECT_EQ(bands_of(ReuseMode::kAnchored), (std::vector<Band>{{0, 1, true, true, 0.5},
                                                               {1, 7, false, false, 0},
                                                               {7, 8, true, true, 1},
                                                               {8, 15, false, false, 0},
                                                               {15, 16, true, true, 1.25},
                                                               {16, 23, false, false, 0},
                                                               {23, 24, true, true, 1.25},
                                                               {24, 30, false, false, 0}}));
  for (uint32_t num_layers = 2; num_layers < 60; ++num_layers) {
    for (const ReuseMode mode : {ReuseMode::kLayered, ReuseMode::kBlend, ReuseMode::kAnchored}) {
      SimilarOptions options = With(mode, mode == ReuseMode::kBlend ? 99 : 7);
      const auto plan = PlanLayers(options, num_layers, CheckpointsFor(options, num_layers));
      if (!plan.ok()) continue;
      uint32_t next = 0;
      for (const Band& band : BandsOf(*plan)) {
        ASSERT_EQ(band.first_layer, next);
        ASSERT_LT(band.first_layer, band.end_layer);
        ASSERT_FALSE(band.measures && band.end_layer == num_layers);
        next = band.end_layer;
      }
      ASSERT_EQ(next, num_layers);
    }
  }
}

}  // namespace
}  // namespace kvlink::verify
