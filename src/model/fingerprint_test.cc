// That nothing is left out: every input of the fingerprint, and every setting of attention in it.
#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kvlink::model {
namespace {

FingerprintInputs Inputs() {
  FingerprintInputs inputs{.file_digest = "digest",
                           .architecture = "llama",
                           .attention = {kernel::LayerParams{}, kernel::LayerParams{}},
                           .tokens_per_block = 32,
                           .kernels = "avx2",
                           .ggml = "0.9",
                           .cpu_features = "AVX2=1"};
  for (kernel::LayerParams& layer : inputs.attention) {
    layer.scale = 0.125f;
    layer.rope.num_rot = 4;
    layer.rope.freq_factors = {1.0f, 2.0f};
  }
  return inputs;
}

// A new field stops these from compiling: put it into the fingerprint and into the changes below.
void CountFields(const FingerprintInputs& inputs) {
  [[maybe_unused]] const auto& [file_digest, architecture, attention, layout, tokens_per_block,
                                kv_type, kernels, packed, ggml, cpu_features] = inputs;
  [[maybe_unused]] const auto& [scale, rope, window, softcap] = attention.front();
  [[maybe_unused]] const auto& [neox, num_rot, freq_base, freq_scale, ext_factor, attn_factor,
                                beta_fast, beta_slow, orig_context, freq_factors] = rope;
}

// By name; two that gave one fingerprint would be two that share blocks.
const std::map<std::string, std::function<void(FingerprintInputs&)>> kChanges = {
    {"nothing", [](FingerprintInputs&) {}},
    {"file", [](auto& in) { in.file_digest = "digesu"; }},
    {"architecture", [](auto& in) { in.architecture = "llam"; }},
    {"layers", [](auto& in) { in.attention.push_back(in.attention.back()); }},
    {"one layer", [](auto& in) { in.attention.pop_back(); }},
    {"no layer", [](auto& in) { in.attention.clear(); }},
    {"layout", [](auto& in) { ++in.layout; }},
    {"tokens_per_block", [](auto& in) { in.tokens_per_block = 64; }},
    {"kv_type bf16", [](auto& in) { in.kv_type = KvType::kBF16; }},
    {"kv_type q8_0", [](auto& in) { in.kv_type = KvType::kQ8_0; }},
    {"kernels", [](auto& in) { in.kernels = "avx512"; }},
    {"kernels' dot", [](auto& in) { in.kernels = "avx512+bf16dot"; }},
    {"packed", [](auto& in) { in.packed = true; }},
    {"ggml", [](auto& in) { in.ggml = "0.10"; }},
    {"cpu_features", [](auto& in) { in.cpu_features = "AVX2=1 FMA=1"; }},
    {"a value between two fields",
     [](auto& in) {
       in.file_digest = "digestllama";
       in.architecture.clear();
     }},
    {"scale", [](auto& in) { in.attention[1].scale = 0.25f; }},
    {"scale of the other layer", [](auto& in) { in.attention[0].scale = 0.25f; }},
    {"window", [](auto& in) { in.attention[1].window = 512; }},
    {"softcap", [](auto& in) { in.attention[1].softcap = 50; }},
    {"neox", [](auto& in) { in.attention[1].rope.neox = true; }},
    {"num_rot", [](auto& in) { in.attention[1].rope.num_rot = 2; }},
    {"freq_base", [](auto& in) { in.attention[1].rope.freq_base = 5e5f; }},
    {"freq_scale", [](auto& in) { in.attention[1].rope.freq_scale = 0.5f; }},
    {"ext_factor", [](auto& in) { in.attention[1].rope.ext_factor = 1; }},
    {"attn_factor", [](auto& in) { in.attention[1].rope.attn_factor = 1.1f; }},
    {"beta_fast", [](auto& in) { in.attention[1].rope.beta_fast = 16; }},
    {"beta_slow", [](auto& in) { in.attention[1].rope.beta_slow = 2; }},
    {"orig_context", [](auto& in) { in.attention[1].rope.orig_context = 4096; }},
    {"freq_factor", [](auto& in) { in.attention[1].rope.freq_factors[1] = 2.0000002f; }},
    {"order of freq_factors",
     [](auto& in) {
       in.attention[1].rope.freq_factors = {2, 1};
     }},
    {"no freq_factors", [](auto& in) { in.attention[1].rope.freq_factors.clear(); }},
};

TEST(Fingerprint, NoTwoInputsGiveTheSame) {
  CountFields(Inputs());
  std::map<std::string, std::string> seen;  // to the change
  for (const auto& [name, change] : kChanges) {
    FingerprintInputs inputs = Inputs();
    change(inputs);
    const std::string fingerprint = Fingerprint(inputs);
    EXPECT_EQ(fingerprint, Fingerprint(inputs)) << name;
    const auto [other, is_new] = seen.emplace(fingerprint, name);
    EXPECT_TRUE(is_new) << name << " is as " << other->second;
  }
  EXPECT_EQ(seen.size(), kChanges.size());
}

}  // namespace
}  // namespace kvlink::model
