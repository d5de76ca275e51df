// Model files for tests: the default model, its expansion to F32, and small made-up models.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ggml.h"
#include "gguf.h"

namespace kvlink::model {

// The model that the set-up fetched: KVLINK_TEST_MODEL in the environment, or the file configured
// at build time. Empty when there is none; tests then fail and say so.
std::string DefaultModelPath();

// A folder beside this executable for made files; they are kept from run to run.
std::string TestFolder();

// Writes every tensor of `source` as F32 to `target`, all keys kept (but for general.file_type).
// Returns false on an error.
bool ExpandToF32(const std::string& source, const std::string& target);

// ExpandToF32 of `source` (the default model) in TestFolder(), made when it is not there. Empty on
// an error.
std::string ExpandedPathOf(const std::string& source);
std::string ExpandedModelPath();

// A model with seeded random weights and a vocabulary of 300 tokens: real shapes, small enough to
// load in milliseconds. No text comes out of it, but its logits are as good as any.
struct TinyModel {
  uint32_t num_layers = 2, num_heads = 4, num_kv_heads = 2, head_dim = 64, embedding = 256,
           feed_forward = 512;
  ggml_type weight_type = GGML_TYPE_F32;
  bool tied_embeddings = true, biases = false;
  uint64_t seed = 1;
  std::string architecture = "llama";
  // Changes keys before the file is written, or adds tensors' factors: called with the keys of the
  // file.
  std::function<void(gguf_context*)> edit_keys;
  uint32_t rope_factors = 0;  // values of rope_freqs.weight, 0: none

  // What families have beside Llama's tensors, or otherwise.
  bool qkv_biases = false, head_norms = false, post_norms = false;
  bool fused_qkv = false, gate_in_up = false;
  uint32_t long_short_factors = 0;  // values of rope_factors_{long,short}.weight, 0: none
  uint32_t num_experts = 0, num_experts_used = 2;
};
// The tensors and keys of an architecture, all of its hyper-parameters set to something that
// matters; "mixtral" is `llama` with experts.
TinyModel TinyModelOf(const std::string& family);
bool WriteTinyModel(const TinyModel& model, const std::string& path);

}  // namespace kvlink::model
