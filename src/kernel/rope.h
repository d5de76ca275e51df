// Rotary position embedding: the angles of one batch, computed once for all layers.
//
// Formula and scaling (linear, NTK by parts as YaRN, llama3 frequency factors) follow ggml's rope
// so that rotated K is equal to llama.cpp's to the last bits: theta_i = p * base^(-2i/n_rot),
// interpolated per dimension.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlink::kernel {

struct RopeParams {
  bool neox = false;     // pairs (i, i + n_rot/2) instead of (2i, 2i + 1)
  uint32_t num_rot = 0;  // rotated dimensions of a head, even, <= head_dim
  float freq_base = 10000.0f;
  float freq_scale = 1.0f;  // 1 / linear factor
  float ext_factor = 0.0f;  // YaRN mix
  float attn_factor = 1.0f;
  float beta_fast = 32.0f, beta_slow = 1.0f;
  uint32_t orig_context = 0;
  std::vector<float> freq_factors;  // llama3 scaling; [num_rot / 2] or empty

  bool operator==(const RopeParams&) const = default;
};

// cos/sin pairs for one position: [num_rot / 2][2]. `magnitude` false leaves YaRN's attention
// factor out (rotation of an already scaled vector).
void RopeAngles(const RopeParams& rope, float position, bool magnitude, float* cos_sin);

}  // namespace kvlink::kernel
