// Made-up models of every family against libllama: logits of a prompt longer than any window, and
// of a token after it, with hyper-parameters as TinyModelOf sets them and then with each of them
// changed. A change must change the logits, or a hyper-parameter that we do not read would pass.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "libllama_reference.h"
#include "model/model.h"
#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"

namespace kvlink::model {
namespace {

constexpr float kBound = 0.01f;   // of |difference of logits|
constexpr float kEffect = 0.05f;  // at least, of a hyper-parameter on some logit
constexpr uint32_t kPrompt = 700, kVocabulary = 300;

using Edit = std::function<void(gguf_context*)>;

struct Variant {
  std::string name;
  std::string family;
  TinyModel tiny;
  uint32_t context = 1024;
  bool packed = true;
  bool same_logits = false;  // as the family's own
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class VariantList {
 public:
  explicit VariantList(std::string family) : family_(std::move(family)) { Add("plain", Same); }

  static void Same(TinyModel&) {}
  template <typename Change>
  Variant& Add(const std::string& name, Change change) {
    TinyModel tiny = TinyModelOf(family_);
    change(tiny);
    variants_.push_back({family_ + "_" + name, family_, std::move(tiny)});
    variants_.back().same_logits = variants_.size() == 1;
    return variants_.back();
  }
  Variant& Keys(const std::string& name, Edit edit) {
    return Add(name, [&](TinyModel& tiny) {
      tiny.edit_keys = [before = tiny.edit_keys, edit](gguf_context* keys) {
        if (before) before(keys);
        edit(keys);
      };
    });
  }
  Variant& Float(const std::string& key, float value) {
    return Keys(Words(key), [=, full = FullKey(key)](gguf_context* keys) {
      gguf_set_val_f32(keys, full.c_str(), value);
    });
  }
  Variant& Uint(const std::string& key, uint32_t value) {
    return Keys(
        Words(key) + "_" + std::to_string(value),
        [=, full = FullKey(key)](gguf_context* k) { gguf_set_val_u32(k, full.c_str(), value); });
  }
  Variant& Linear(float factor) {
    return Keys("linear_scaling", [=, full = FullKey("rope.scaling.")](gguf_context* keys) {
      gguf_set_val_str(keys, (full + "type").c_str(), "linear");
      gguf_set_val_f32(keys, (full + "factor").c_str(), factor);
    });
  }
  Variant& Yarn(float factor, uint32_t context, float attn_factor = 1) {
    return Keys(attn_factor == 1 ? "yarn" : "yarn_attn_factor",
                [=, full = FullKey("rope.scaling.")](gguf_context* keys) {
                  gguf_set_val_str(keys, (full + "type").c_str(), "yarn");
                  gguf_set_val_f32(keys, (full + "factor").c_str(), factor);
                  gguf_set_val_f32(keys, (full + "attn_factor").c_str(), attn_factor);
                  gguf_set_val_u32(keys, (full + "original_context_length").c_str(), context);
                });
  }
  std::string FullKey(const std::string& key) const {
    return (family_ == "mixtral" ? "llama" : family_) + "." + key;
  }
  std::vector<Variant> Take() { return std::move(variants_); }

 private:
  static std::string Words(std::string key) {
    for (char& c : key) c = c == '.' ? '_' : c;
    return key;
  }
  const std::string family_;
  std::vector<Variant> variants_;
};

// What every family has.
VariantList Common(const std::string& family, float epsilon = 1e-2f) {
  VariantList list(family);
  list.Float("attention.layer_norm_rms_epsilon", epsilon);
  list.Float("rope.freq_base", 2e3f);
  list.Linear(4);
  Variant& unpacked = list.Add("products_by_ggml", VariantList::Same);
  unpacked.packed = false;
  unpacked.same_logits = true;
  return list;
}

std::vector<Variant> LlamaVariants() {
  VariantList list = Common("llama");
  list.Add("biases", [](TinyModel& t) { t.biases = true; });
  list.Add("untied", [](TinyModel& t) { t.tied_embeddings = false; });
  list.Add("fused_qkv", [](TinyModel& t) { t.fused_qkv = true; }).same_logits = true;
  list.Add("multi_head", [](TinyModel& t) { t.num_kv_heads = t.num_heads = 4; });
  list.Add("multi_query", [](TinyModel& t) { t.num_kv_heads = 1; });
  list.Add("head_dim_128", [](TinyModel& t) { t.head_dim = 128; });
  list.Add("head_dim_32", [](TinyModel& t) { t.head_dim = 32; });
  list.Add("head_dim_80", [](TinyModel& t) { t.head_dim = 80; });
  list.Add("nine_heads", [](TinyModel& t) { t.num_heads = 9, t.num_kv_heads = 3; });
  list.Add("one_layer", [](TinyModel& t) { t.num_layers = 1; });
  list.Add("llama3_rope", [](TinyModel& t) { t.rope_factors = 32; });
  list.Float("rope.scale_linear", 2);
  list.Yarn(8, 256);
  list.Yarn(4, 512, 1.2f);
  list.Keys("no_scaling",
            [](gguf_context* k) {
              gguf_set_val_str(k, "llama.rope.scaling.type", "none");
              gguf_set_val_f32(k, "llama.rope.scaling.factor", 4);
            })
      .same_logits = true;
  return list.Take();
}

std::vector<Variant> QwenVariants(const std::string& family) {
  VariantList list = Common(family);
  list.Yarn(4, 512);
  list.Add("untied", [](TinyModel& t) { t.tied_embeddings = false; });
  // Without biases between them, the random weights come out the same.
  list.Add("fused_qkv", [](TinyModel& t) { t.fused_qkv = true; }).same_logits = family != "qwen2";
  if (family == "qwen2") list.Add("no_biases", [](TinyModel& t) { t.qkv_biases = false; });
  if (family == "qwen3") list.Add("head_dim_32", [](TinyModel& t) { t.head_dim = 32; });
  return list.Take();
}

std::vector<Variant> ExpertVariants(const std::string& family) {
  VariantList list = Common(family);
  for (const uint32_t used : {1u, 3u, 8u}) {
    list.Add(std::to_string(used) + "_experts_used",
             [used](TinyModel& t) { t.num_experts_used = used; });
  }
  list.Add("sixteen_experts", [](TinyModel& t) { t.num_experts = 16; });
  if (family == "qwen3moe") {
    list.Add("width_by_default", [](TinyModel& t) {  // 192 / 2 = 96
      t.feed_forward = 96;
      t.edit_keys = [](gguf_context* k) {
        gguf_set_val_u32(k, "qwen3moe.feed_forward_length", 192);
      };
    });
  }
  return list.Take();
}

std::vector<Variant> GemmaVariants(const std::string& family) {
  VariantList list = Common(family, 1.0f);
  list.Float("rope.freq_base_swa", 300);
  list.Uint("attention.sliding_window", 64);
  list.Uint("attention.sliding_window", 3000);
  list.Uint("attention.sliding_window_pattern", 3);
  list.Keys("pattern_array",
            [&, full = list.FullKey("attention.sliding_window_pattern")](gguf_context* k) {
              const bool pattern[] = {false, true, true, false, true, false, false};
              gguf_set_arr_data(k, full.c_str(), GGUF_TYPE_BOOL, pattern, 7);
            });
  list.Float("final_logit_softcapping", 2);
  if (family == "gemma2") list.Float("attn_logit_softcapping", 0.3f);
  if (family == "gemma3") list.Uint("attention.sliding_window", 0);
  // The layers of the 27B models, whose scores are scaled otherwise.
  list.Add("27b", [&](TinyModel& t) {
    t.num_layers = family == "gemma2" ? 46 : 62;
    t.embedding = t.feed_forward = 64;
  });
  return list.Take();
}

std::vector<Variant> Phi3Variants() {
  VariantList list = Common("phi3");
  list.Float("rope.scaling.attn_factor", 1);
  list.Add("all_dimensions_rotate", [](TinyModel& t) {
    t.long_short_factors = 32;
    t.edit_keys = nullptr;
  });
  list.Add("no_factors", [](TinyModel& t) { t.long_short_factors = 0; });
  list.Add("long_factors", VariantList::Same).context = 2048;
  list.Uint("rope.scaling.original_context_length", 900);
  list.Add("separate_qkv", [](TinyModel& t) { t.fused_qkv = false; }).same_logits = true;
  list.Uint("attention.sliding_window", 100).same_logits = true;  // as llama.cpp
  return list.Take();
}

std::vector<Variant> GraniteVariants() {
  VariantList list = Common("granite");
  list.Float("embedding_scale", 3);
  list.Float("residual_scale", 0.5f);
  list.Float("attention.scale", 0.05f);
  list.Float("logit_scale", 0.7f);
  list.Add("biases", [](TinyModel& t) { t.biases = true; });
  list.Add("llama3_rope", [](TinyModel& t) { t.rope_factors = 32; });
  return list.Take();
}

std::vector<Variant> AllVariants() {
  std::vector<Variant> all;
  for (std::vector<Variant> variants :
       {LlamaVariants(), QwenVariants("qwen2"), QwenVariants("qwen3"), ExpertVariants("qwen3moe"),
        ExpertVariants("mixtral"), GemmaVariants("gemma2"), GemmaVariants("gemma3"), Phi3Variants(),
        GraniteVariants()}) {
    for (Variant& variant : variants) all.push_back(std::move(variant));
  }
  return all;
}

// The logits after the prompt and after one more token.
struct Logits {
  std::vector<float> prompt, next;
};

std::vector<TokenId> PromptTokens() {
  std::vector<TokenId> tokens(kPrompt);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>((i * i + 7 * i) % kVocabulary);
  return tokens;
}

Logits Ours(const std::string& path, uint32_t longest, bool packed) {
  LoadOptions options;
  options.path = path;
  options.context = longest;
  options.pack_weights = packed;
  auto model = Model::Load(options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  if (!model.ok()) return {};
  auto runner = (*model)->NewRunner(1, 512);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  PlainContext context((*model)->kv_shape(), kPrompt + 4);
  Logits logits;
  logits.prompt = RunPrompt(**runner, context, PromptTokens(), 0, 300, 1, kVocabulary).at(0);
  const TestRow next[] = {{&context, 5, kPrompt, true, true}};
  logits.next = RunRows(**runner, next, kVocabulary).at(0);
  return logits;
}

Logits Libllamas(const std::string& path, uint32_t context) {
  auto reference = LibllamaReference::Open(path, {.context = context});
  EXPECT_NE(reference, nullptr);
  if (reference == nullptr) return {};
  Logits logits;
  logits.prompt = reference->Prompt(PromptTokens());
  logits.next = reference->Next(5);
  return logits;
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

class Family : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(All, Family, testing::ValuesIn(AllVariants()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Family, LogitsAreLibllamas) {
  const Variant& variant = GetParam();
  const std::string path = TestFolder() + "/variant-" + variant.name + ".gguf";
  ASSERT_TRUE(WriteTinyModel(variant.tiny, path));
  const Logits ours = Ours(path, variant.context, variant.packed);
  const Logits expected = Libllamas(path, variant.context);
  ASSERT_EQ(ours.next.size(), kVocabulary);
  ASSERT_EQ(expected.next.size(), kVocabulary);
  const float difference = std::max(LargestDifference(ours.prompt, expected.prompt),
                                    LargestDifference(ours.next, expected.next));
  EXPECT_LT(difference, kBound);
  std::printf("%s: |difference of logits| %.5f\n", variant.name.c_str(), difference);
  EXPECT_GT(LargestDifference(ours.prompt, std::vector<float>(kVocabulary)), 0.5f)
      << "logits near zero would compare equal whatever was computed";
  std::filesystem::remove(path);

  static std::map<std::string, std::vector<float>> plain;  // by family
  if (!plain.contains(variant.family)) {
    const std::string plain_path = TestFolder() + "/plain-" + variant.family + ".gguf";
    ASSERT_TRUE(WriteTinyModel(TinyModelOf(variant.family), plain_path));
    plain[variant.family] = Ours(plain_path, 1024, true).prompt;
    std::filesystem::remove(plain_path);
  }
  const float effect = LargestDifference(ours.prompt, plain[variant.family]);
  EXPECT_EQ(effect < kEffect, variant.same_logits)
      << "the variant must matter, or it tests nothing: " << effect;
}

}  // namespace
}  // namespace kvlink::model
