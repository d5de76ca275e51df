// Made-up models of every kind that the architecture `llama` has, against libllama: what a real
// default model does not use (biases, scaled rotations, separate output matrix, other head sizes)
// is computed as libllama computes it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "libllama_reference.h"
#include "model/model.h"
#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"

namespace kvlink::model {
namespace {

struct Variant {
  std::string name;
  TinyModel tiny;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

Variant WithKeys(const std::string& name, std::function<void(gguf_context*)> edit) {
  TinyModel tiny;
  tiny.edit_keys = std::move(edit);
  return {name, tiny};
}

std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{"plain", {}}};
  const auto add = [&](const std::string& name, auto change) {
    TinyModel tiny;
    change(tiny);
    variants.push_back({name, tiny});
  };
  add("biases", [](TinyModel& t) { t.biases = true; });
  add("untied", [](TinyModel& t) { t.tied_embeddings = false; });
  add("multi_head", [](TinyModel& t) { t.num_kv_heads = t.num_heads = 4; });
  add("multi_query", [](TinyModel& t) { t.num_kv_heads = 1; });
  add("head_dim_128", [](TinyModel& t) { t.head_dim = 128; });
  add("head_dim_32", [](TinyModel& t) { t.head_dim = 32; });
  add("head_dim_80", [](TinyModel& t) { t.head_dim = 80; });
  add("nine_heads", [](TinyModel& t) { t.num_heads = 9, t.num_kv_heads = 3; });
  add("one_layer", [](TinyModel& t) { t.num_layers = 1; });
  add("llama3_rope", [](TinyModel& t) { t.rope_factors = 32; });
  variants.push_back(WithKeys(
      "rope_base", [](gguf_context* k) { gguf_set_val_f32(k, "llama.rope.freq_base", 5e5f); }));
  variants.push_back(WithKeys("linear_scaling", [](gguf_context* k) {
    gguf_set_val_str(k, "llama.rope.scaling.type", "linear");
    gguf_set_val_f32(k, "llama.rope.scaling.factor", 4);
  }));
  variants.push_back(WithKeys("old_linear_scaling", [](gguf_context* k) {
    gguf_set_val_f32(k, "llama.rope.scale_linear", 2);
  }));
  variants.push_back(WithKeys("no_scaling", [](gguf_context* k) {
    gguf_set_val_str(k, "llama.rope.scaling.type", "none");
    gguf_set_val_f32(k, "llama.rope.scaling.factor", 4);
  }));
  variants.push_back(WithKeys("yarn", [](gguf_context* k) {
    gguf_set_val_str(k, "llama.rope.scaling.type", "yarn");
    gguf_set_val_f32(k, "llama.rope.scaling.factor", 8);
    gguf_set_val_u32(k, "llama.rope.scaling.original_context_length", 256);
  }));
  variants.push_back(WithKeys("yarn_attn_factor", [](gguf_context* k) {
    gguf_set_val_str(k, "llama.rope.scaling.type", "yarn");
    gguf_set_val_f32(k, "llama.rope.scaling.factor", 4);
    gguf_set_val_f32(k, "llama.rope.scaling.attn_factor", 1.2f);
    gguf_set_val_u32(k, "llama.rope.scaling.original_context_length", 512);
  }));
  return variants;
}

class LlamaVariant : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(All, LlamaVariant, testing::ValuesIn(Variants()),
                         [](const auto& test) { return test.param.name; });

TEST_P(LlamaVariant, LogitsAreLibllamas) {
  const std::string path = TestFolder() + "/variant-" + GetParam().name + ".gguf";
  ASSERT_TRUE(WriteTinyModel(GetParam().tiny, path));
  LoadOptions options;
  options.path = path;
  auto model = Model::Load(options);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  auto runner = (*model)->NewRunner(1, 512);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  auto reference = LibllamaReference::Open(path, {.context = 1024});
  ASSERT_NE(reference, nullptr);

  std::vector<TokenId> tokens(700);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>((i * i + 7 * i) % 300);
  PlainContext context((*model)->kv_shape(), 704);
  const auto prompt = RunPrompt(**runner, context, tokens, 0, 300, 1, 300).at(0);
  const TestRow next[] = {{&context, 5, 700, true, true}};
  const auto after = RunRows(**runner, next, 300).at(0);
  const auto expected_prompt = reference->Prompt(tokens);
  const auto expected_after = reference->Next(5);
  float largest = 0, from_plain = 0;
  static std::vector<float> plain;  // the first variant's
  if (plain.empty()) plain = prompt;
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_NEAR(prompt[i], expected_prompt[i], 0.01f) << "token " << i;
    EXPECT_NEAR(after[i], expected_after[i], 0.01f) << "token " << i;
    largest = std::max(largest, std::abs(prompt[i]));
    from_plain = std::max(from_plain, std::abs(prompt[i] - plain[i]));
  }
  EXPECT_GT(largest, 0.5f) << "logits near zero would compare equal whatever was computed";
  const bool same = GetParam().name == "plain" || GetParam().name == "no_scaling";
  EXPECT_EQ(from_plain < 0.05f, same)
      << "the variant must matter, or it tests nothing: " << from_plain;
}

}  // namespace
}  // namespace kvlink::model
