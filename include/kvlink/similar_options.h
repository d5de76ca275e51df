// SimilarOptions: every parameter of similar reuse. The defaults are where calibration starts; what
// `kvlink calibrate` measured for the model replaces them.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvlink {

enum class SimilarPolicy : uint8_t {
  kOff,
  kOn,
  kStrict,  // accepts only after the convergence test
};

// Which rows run although a donor has them (Selection).
enum class ReuseMode : uint8_t {
  kSeam,      // rows around the edits, the tail, the donor's strongest receivers; nothing else
  kLayered,   // the same rows, and all others from layer `max_reuse_distance` on
  kBlend,     // the first layer for all rows; then rows chosen by what it measured
  kAnchored,  // as kBlend, and all rows again at every checkpoint
};

struct SimilarOptions {
  SimilarPolicy policy = SimilarPolicy::kOff;

  // Finding a donor. Windows are counted in 3-grams: any shared run of window + 2 tokens is found.
  uint32_t fingerprint_window = 8;
  uint32_t short_window = 4;  // for prompts of fewer tokens than
  uint32_t short_prompt_tokens = 96;
  uint32_t max_anchors = 512;    // of a prompt; longer ones get wider windows
  double frequent_share = 0.10;  // n-grams in more donors than this are a template's

  // Aligning with it.
  uint32_t min_run = 16;            // shorter runs of equal tokens are not worth a span
  double max_edit_share = 0.25;     // of the prompt: tokens inserted or deleted at most
  double lookup_cost_share = 0.01;  // of the prefill time that the lookup can save

  // Forward check.
  double mask_similarity = 0.85;
  double span_similarity = 0.5;
  double max_moved_share = 0.05;  // of the rows with the donor's tokens: those in another order
  uint32_t min_reused_rows = 64;  // behind the exact prefix
  double max_compute_share = 0.6;

  // Which rows run.
  ReuseMode mode = ReuseMode::kSeam;
  uint32_t max_reuse_distance = 7;   // layers in a row with the donor's K and V
  uint32_t seam_rows = 8;            // behind every edit, and further ones ever thinner, up to
  uint32_t seam_reach = 8;           //   so many times as far
  uint32_t shifted_seam_rows = 16;   // instead of seam_rows where the rows that follow are shifted
  uint32_t tail_rows = 32;           // at the end of the prompt
  double note_share = 0.01;          // strongest receivers of the donor's tail attention,
  uint32_t min_notes = 16;           //   at least so many
  double compute_share = 0.30;       // of the rows: the budget of kLayered, kBlend and kAnchored
  double seam_compute_share = 0.15;  // of the spans' rows: the most that kSeam adds notes up to
  double deviation_exponent = 0.5;   // score of a row: attention * deviation ^ this
  uint32_t close_gap = 4;            // gaps between selected rows up to this are selected, too

  // Last rows of a prompt whose attention and likelihood are recorded, of donors and of borrowers.
  uint32_t observed_rows = 8;

  // Backward check. Nats.
  double max_nll_increase = 0.5;
  double max_entropy_increase = 2.0;
  double accept_blast_radius = 0.05;
  double refuse_blast_radius = 0.5;
  double converged_js = 0.02;
  double stale_js = 0.005;  // closer to the donor than this, with a blast: stale
  double garbled_js = 0.3;  // further than this, without a blast: garbled
  double enlarge_factor = 1.5;
  // Score = 1 / (1 + exp(-(bias + sum of weight * feature))); accepted up to max_score. The weights
  // are not negative; with all at 0 the score is not looked at.
  struct ScoreWeights {
    double bias = 0;
    double blast_radius = 0;
    double nll_increase = 0;
    double convergence_js = 0;
    double mask_mismatch = 0;  // of 1 - mask_similarity
    double indecision = 0;     // of exp(-(first - second logit))
  } score_weights;
  double max_score = 1.0;

  // The bound on wrong accepts, per cluster of requests.
  double max_false_accepts = 0.05;
  double confidence = 0.95;
  uint32_t min_trials = 60;  // 60 without a failure bound 5 % at 95 %
  // Nats by which the exact run may prefer its first token to the answer's without a trial counting
  // as a failure: what the model's own noise moves (another type of K and V), as calibrated.
  double tie_gap = 0;
  uint32_t always_shadowed = 50;        // first accepts of a cluster
  double shadow_share = 0.02;           // of the later ones
  std::chrono::seconds closed_for{60};  // after the first failure of the bound; doubles each time

  // Compute that failed attempts may waste, of all compute.
  double wasted_compute_share = 0.05;
};

}  // namespace kvlink
