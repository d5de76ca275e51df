// LayerPlan: what a mode does to the rows of a span that are not selected, layer by layer.
//
//   kSeam      [ donor's K and V in every layer                                        ]
//   kLayered   [ donor's K and V | from the checkpoint at layer d on: computed         ]
//   kBlend     [run|fresh| donor's K and V                                             ]
//   kAnchored  [run|fresh| donor's ... c1 |fresh| donor's ... c2 |fresh| donor's ...   ]
//
// A layer that runs for a row makes its K and V of the *next* layer fresh; it starts from the
// donor's residual stream at that layer (a checkpoint: the input of the layer), or from the token.
// The longest run of layers in which a row keeps the donor's K and V is the reuse distance; it is
// limited, because what is taken over uncorrected drifts with depth.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvlink/similar_options.h"
#include "kvlink/status.h"

namespace kvlink::verify {

struct LayerPlan {
  uint32_t num_layers = 0;
  uint32_t reentry_layer = 0;  // as in Selection
  uint32_t full_layers = 0;
  std::vector<uint32_t> refreshed_layers;
  std::vector<uint32_t> checkpoints;  // layers at which donors' residual streams are needed
  uint32_t reuse_distance = 0;
  // Layers that run for a row that is not selected, and those whose K and V are then its own.
  uint32_t layers_run() const {
    return num_layers - reentry_layer + full_layers +
           static_cast<uint32_t>(refreshed_layers.size());
  }
};

// One run of layers [first_layer, end_layer), for the selected rows or for all.
struct Band {
  uint32_t first_layer = 0, end_layer = 0;
  bool all_rows = false;
  // K and V of end_layer are written as well; what they say of each row's deviation chooses the
  // rows that run next: those before it and others, up to so much of the mode's budget.
  bool measures = false;
  double budget_share = 0;
  bool operator==(const Band&) const = default;
};

// The runs that make up a plan, in order: none for kSeam, whose rows run all layers at once.
//   kLayered   [0, d) selected, [d, L) all
//   kBlend     [0, 1) all, [1, L) selected
//   kAnchored  [0, 1) all, [1, c) selected, [c, c + 1) all, [c + 1, ...
// Rows that did not run in the band before begin with the donor's checkpoint.
std::vector<Band> BandsOf(const LayerPlan& plan);

const char* ReuseModeName(ReuseMode mode);

// The plan of options.mode for donors that recorded `checkpoints` (ascending layers).
// kFailedPrecondition: the mode goes beyond max_reuse_distance, or needs a checkpoint that is not
// there.
Result<LayerPlan> PlanLayers(const SimilarOptions& options, uint32_t num_layers,
                             std::span<const uint32_t> checkpoints);

// The checkpoints that donors must record for options.mode: none, the deepest that kLayered may
// use, or as few as keep kAnchored within max_reuse_distance.
std::vector<uint32_t> CheckpointsFor(const SimilarOptions& options, uint32_t num_layers);

}  // namespace kvlink::verify
