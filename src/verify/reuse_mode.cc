#include "verify/reuse_mode.h"

#include <algorithm>
#include <string>

namespace kvlink::verify {
namespace {

Status Refused(ReuseMode mode, const std::string& why) {
  return {StatusCode::kFailedPrecondition,
          std::string("similar mode ") + ReuseModeName(mode) + ": " + why};
}

// Layers with the donor's K and V behind `first` that are not fresh: those up to `last`.
uint32_t Distance(uint32_t first, uint32_t last) { return last > first ? last - first : 0; }

LayerPlan Anchored(uint32_t num_layers, std::span<const uint32_t> checkpoints) {
  LayerPlan plan{.num_layers = num_layers, .reentry_layer = num_layers, .full_layers = 1};
  uint32_t fresh = 1;  // the last layer whose K and V are the row's own
  for (const uint32_t layer : checkpoints) {
    if (layer <= fresh || layer + 1 >= num_layers) continue;
    plan.refreshed_layers.push_back(layer);
    plan.reuse_distance = std::max(plan.reuse_distance, Distance(fresh, layer));
    fresh = layer + 1;
  }
  plan.reuse_distance = std::max(plan.reuse_distance, Distance(fresh + 1, num_layers));
  return plan;
}

}  // namespace

// Lower layers run fewer rows: whom they leave out can join at the next checkpoint.
std::vector<Band> BandsOf(const LayerPlan& plan) {
  constexpr double kFirst = 0.5, kSecond = 1, kLater = 1.25;
  std::vector<Band> bands;
  uint32_t layer = 0;
  const auto add = [&](uint32_t end, bool all_rows, bool measures, double share) {
    if (end > layer) bands.push_back({layer, end, all_rows, measures, share});
    layer = std::max(layer, end);
  };
  if (plan.reentry_layer < plan.num_layers) {
    add(plan.reentry_layer, false, false, 0);
    add(plan.num_layers, true, false, 0);
    return bands;
  }
  if (plan.full_layers == 0) return bands;
  const bool is_anchored = !plan.refreshed_layers.empty();
  add(plan.full_layers, true, plan.full_layers < plan.num_layers, is_anchored ? kFirst : 1);
  double share = kSecond;
  for (const uint32_t refreshed : plan.refreshed_layers) {
    add(refreshed, false, false, 0);
    add(refreshed + 1, true, refreshed + 1 < plan.num_layers, share);
    share = kLater;
  }
  add(plan.num_layers, false, false, 0);
  return bands;
}

const char* ReuseModeName(ReuseMode mode) {
  switch (mode) {
    case ReuseMode::kSeam:
      return "seam";
    case ReuseMode::kLayered:
      return "layered";
    case ReuseMode::kBlend:
      return "blend";
    case ReuseMode::kAnchored:
      return "anchored";
  }
  return "unknown";
}

Result<LayerPlan> PlanLayers(const SimilarOptions& options, uint32_t num_layers,
                             std::span<const uint32_t> checkpoints) {
  LayerPlan plan{.num_layers = num_layers, .reentry_layer = num_layers};
  switch (options.mode) {
    case ReuseMode::kSeam:
      plan.reuse_distance = num_layers;
      break;
    case ReuseMode::kLayered:
      plan.reentry_layer = 0;
      for (const uint32_t layer : checkpoints) {
        if (layer <= options.max_reuse_distance) plan.reentry_layer = layer;
      }
      if (plan.reentry_layer == 0) {
        return Refused(options.mode, "no checkpoint in layers 1 to " +
                                         std::to_string(options.max_reuse_distance));
      }
      plan.checkpoints = {plan.reentry_layer};
      plan.reuse_distance = plan.reentry_layer;
      break;
    case ReuseMode::kBlend:
      plan = Anchored(num_layers, {});
      break;
    case ReuseMode::kAnchored:
      plan = Anchored(num_layers, checkpoints);
      plan.checkpoints = plan.refreshed_layers;
      break;
  }
  if (plan.reuse_distance > options.max_reuse_distance) {
    return Refused(options.mode, "takes over the donor's K and V in " +
                                     std::to_string(plan.reuse_distance) +
                                     " layers in a row, the limit is " +
                                     std::to_string(options.max_reuse_distance));
  }
  return plan;
}

std::vector<uint32_t> CheckpointsFor(const SimilarOptions& options, uint32_t num_layers) {
  const uint32_t distance = std::max(options.max_reuse_distance, 1u);
  std::vector<uint32_t> layers;
  if (options.mode == ReuseMode::kLayered && distance < num_layers) layers.push_back(distance);
  if (options.mode == ReuseMode::kAnchored) {
    // Donor's K and V in layers (fresh, layer], then layer + 1 is fresh again.
    for (uint32_t layer = std::max(distance, 2u);
         Distance(layers.empty() ? 2 : layers.back() + 2, num_layers) > distance &&
         layer + 1 < num_layers;
         layer += distance + 1) {
      layers.push_back(layer);
    }
  }
  return layers;
}

}  // namespace kvlink::verify
