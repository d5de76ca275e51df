// Loading: what a good file says about itself, and that no bad file gets past Load or ends the
// process.
#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "kernel/isa.h"
#include "kernel/tile_kernels.h"
#include "model/testing/model_files.h"

namespace kvlink::model {
namespace {

using testing::HasSubstr;

Result<std::unique_ptr<Model>> Load(const std::string& path) {
  LoadOptions options;
  options.path = path;
  return Model::Load(options);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class TinyFile : public testing::Test {
 protected:
  std::string Write(const TinyModel& tiny) {
    EXPECT_TRUE(WriteTinyModel(tiny, path_));
    return path_;
  }
  // The status of loading a tiny model whose keys were changed.
  Status LoadEdited(std::function<void(gguf_context*)> edit) {
    TinyModel tiny;
    tiny.edit_keys = std::move(edit);
    return Load(Write(tiny)).status();
  }
  const std::string path_ =
      TestFolder() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
};

TEST_F(TinyFile, DescribesItself) {
  TinyModel tiny;
  tiny.weight_type = GGML_TYPE_Q8_0;
  auto model = Load(Write(tiny));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const ModelInfo& info = (*model)->info();
  EXPECT_EQ(info.name, "tiny");
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.weight_type, "Q8_0");
  EXPECT_EQ(info.num_layers, 2u);
  EXPECT_EQ(info.num_heads, 4u);
  EXPECT_EQ(info.num_kv_heads, 2u);
  EXPECT_EQ(info.head_dim, 64u);
  EXPECT_EQ(info.vocab_size, 300u);
  EXPECT_EQ(info.context_train, 2048u);
  EXPECT_EQ(info.file_bytes, std::filesystem::file_size(path_));
  KvShape shape = (*model)->kv_shape();
  shape.type = KvType::kF16;
  EXPECT_EQ(shape, (KvShape{2, 2, 64, 32, KvType::kF16}));
}

TEST_F(TinyFile, KeepsKvInBF16WhereThatIsFasterAndTheWeightsAreCoarser) {
  const bool multiplies = kernel::HasBf16Dot(kernel::CurrentIsa());
  for (const ggml_type weights : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
    TinyModel tiny;
    tiny.weight_type = weights;
    LoadOptions options;
    options.path = Write(tiny);
    const bool fine = weights == GGML_TYPE_F32 || weights == GGML_TYPE_F16;
    auto chosen = Model::Load(options);
    ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
    EXPECT_EQ((*chosen)->kv_shape().type, multiplies && !fine ? KvType::kBF16 : KvType::kF16)
        << ggml_type_name(weights);
    for (const KvType named : kKvTypes) {
      options.kv_type = named;
      auto model = Model::Load(options);
      ASSERT_TRUE(model.ok()) << model.status().ToString();
      EXPECT_EQ((*model)->kv_shape().type, named) << ggml_type_name(weights);
    }
  }
}

TEST_F(TinyFile, ReportsProgressUpToOne) {
  Write({});
  LoadOptions options;
  options.path = path_;
  double last = -1;
  options.progress = [&](double fraction) {
    EXPECT_GE(fraction, last);
    last = fraction;
  };
  ASSERT_TRUE(Model::Load(options).ok());
  EXPECT_EQ(last, 1.0);
}

// What a file and the options of its loading bring in; fingerprint_test.cc has every input.
TEST_F(TinyFile, FingerprintChangesWithEverythingThatKvDependsOn) {
  std::map<std::string, std::string> seen;
  const auto add = [&](const char* name, const TinyModel& tiny, LoadOptions options = {}) {
    options.path = Write(tiny);
    auto model = Model::Load(options);
    ASSERT_TRUE(model.ok()) << name << ": " << model.status().ToString();
    const auto [other, is_new] = seen.emplace((*model)->fingerprint(), name);
    EXPECT_TRUE(is_new || other->second == name) << name << " is as " << other->second;
  };
  const auto edited = [](std::function<void(gguf_context*)> edit) {
    TinyModel tiny;
    tiny.edit_keys = std::move(edit);
    return tiny;
  };
  const auto with = [](KvType type, uint32_t tokens_per_block = 32, uint32_t context = 0) {
    LoadOptions options;
    options.kv_type = type;
    options.tokens_per_block = tokens_per_block;
    options.context = context;
    return options;
  };
  LoadOptions options = with(KvType::kF16);
  add("as it is", {}, options);
  add("as it is", {}, options);
  EXPECT_EQ(seen.size(), 1u) << "the same file and options give the same fingerprint";

  add("bf16", {}, with(KvType::kBF16));
  add("q8_0", {}, with(KvType::kQ8_0));
  add("block size", {}, with(KvType::kF16, 64));
  TinyModel other;
  other.seed = 2;
  add("weights", other, options);
  other = {};
  other.num_layers = 3;
  add("layers", other, options);
  other = {};
  other.num_kv_heads = 4;
  add("KV heads", other, options);
  other = {};
  other.rope_factors = 32;
  add("factors of the rotation", other, options);
  add("rope base", edited([](auto* keys) { gguf_set_val_f32(keys, "llama.rope.freq_base", 5e5f); }),
      options);
  add("rope scaling", edited([](auto* keys) {
        gguf_set_val_str(keys, "llama.rope.scaling.type", "linear");
        gguf_set_val_f32(keys, "llama.rope.scaling.factor", 4);
      }),
      options);
  add("tokenizer",
      edited([](auto* keys) { gguf_set_val_u32(keys, "tokenizer.ggml.bos_token_id", 2); }),
      options);
  add("epsilon", edited([](auto* keys) {
        gguf_set_val_f32(keys, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
      }),
      options);
  TinyModel packable;
  packable.weight_type = GGML_TYPE_Q8_0;
  add("packed products", packable, options);
  options.pack_weights = false;
  add("ggml's products", packable, options);
  // Phi-3 rotates by the longest sequence.
  add("a longer context", TinyModelOf("phi3"), with(KvType::kF16, 32, 2000));
  add("a shorter context", TinyModelOf("phi3"), with(KvType::kF16, 32, 100));
  EXPECT_EQ(seen.size(), 16u);
}

TEST_F(TinyFile, OneChangedBitInTheWeightsChangesTheFingerprint) {
  std::string bytes = ReadFile(Write({}));
  const std::string before = (*Load(path_))->fingerprint();
  bytes[bytes.size() - 5] ^= 1;
  WriteFile(path_, bytes);
  EXPECT_NE((*Load(path_))->fingerprint(), before);
}

TEST_F(TinyFile, MissingFileAndFolderAreNamed) {
  const Status missing = Load("/no/such/file.gguf").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/no/such/file.gguf"));
  EXPECT_EQ(Load(TestFolder()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(TinyFile, UnsupportedArchitectureIsRefusedByNameWithTheList) {
  TinyModel tiny;
  tiny.architecture = "mamba";
  const Status status = Load(Write(tiny)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("'mamba' is not supported (supported: llama, qwen2, "));
}

TEST_F(TinyFile, BadOptionsAreRefused) {
  LoadOptions options;
  options.path = Write({});
  options.tokens_per_block = 48;
  EXPECT_THAT(Model::Load(options).status().message(), HasSubstr("tokens_per_block: 48"));
}

TEST_F(TinyFile, AbsurdHyperParametersAreRefusedByKeyAndValue) {
  const auto with = [](const char* key, uint32_t value) {
    return [=](gguf_context* keys) { gguf_set_val_u32(keys, key, value); };
  };
  EXPECT_THAT(LoadEdited(with("llama.block_count", 0)).message(),
              HasSubstr("'llama.block_count': 0"));
  EXPECT_THAT(LoadEdited(with("llama.block_count", 4000000000u)).message(),
              HasSubstr("4e+09 is not between"));
  EXPECT_THAT(LoadEdited(with("llama.block_count", 3)).message(),
              HasSubstr("'blk.2.attn_norm.weight' is missing"));
  EXPECT_THAT(LoadEdited(with("llama.block_count", 1)).message(), HasSubstr("is not known"));
  EXPECT_THAT(LoadEdited(with("llama.attention.head_count", 5)).message(),
              HasSubstr("5 is not a multiple of"));
  EXPECT_THAT(LoadEdited(with("llama.attention.head_count", 8)).message(),
              HasSubstr("expected [256, 512]"));
  EXPECT_THAT(LoadEdited(with("llama.attention.value_length", 32)).message(),
              HasSubstr("must be equal"));
  EXPECT_THAT(LoadEdited(with("llama.embedding_length", 128)).message(),
              HasSubstr("has the shape [256, 300]"));
  EXPECT_THAT(LoadEdited(with("llama.rope.dimension_count", 63)).message(),
              HasSubstr("63 is not even"));
  EXPECT_THAT(LoadEdited(with("llama.context_length", 0)).message(),
              HasSubstr("'llama.context_length': 0"));
  EXPECT_THAT(LoadEdited([](gguf_context* keys) {
                gguf_remove_key(keys, "llama.feed_forward_length");
              }).message(),
              HasSubstr("'llama.feed_forward_length' is missing"));
  EXPECT_THAT(LoadEdited([](gguf_context* keys) {
                gguf_set_val_str(keys, "llama.block_count", "two");
              }).message(),
              HasSubstr("is not a number but str"));
  EXPECT_THAT(LoadEdited([](gguf_context* keys) {
                gguf_set_val_f32(keys, "llama.attention.layer_norm_rms_epsilon", -1);
              }).message(),
              HasSubstr("-1 is not between"));
}

TEST_F(TinyFile, WhatWouldChangeTheComputationIsRefusedByName) {
  const auto refused = [&](std::function<void(gguf_context*)> edit, const char* words) {
    const Status status = LoadEdited(std::move(edit));
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  refused([](gguf_context* k) { gguf_set_val_u32(k, "llama.attention.sliding_window", 4096); },
          "'llama.attention.sliding_window': 4096 is not supported");
  refused([](gguf_context* k) { gguf_set_val_f32(k, "llama.attn_logit_softcapping", 50); },
          "'llama.attn_logit_softcapping': 50 is not supported");
  refused(
      [](gguf_context* k) { gguf_set_val_f32(k, "llama.rope.scaling.yarn_log_multiplier", 0.5f); },
      "'llama.rope.scaling.yarn_log_multiplier': 0.5 is not supported");
  refused([](gguf_context* k) { gguf_set_val_u32(k, "llama.expert_shared_count", 1); },
          "'llama.expert_shared_count': 1 is not supported");
  refused([](gguf_context* k) { gguf_set_val_bool(k, "llama.attention.causal", false); },
          "'llama.attention.causal': false is not supported");
  refused([](gguf_context* k) { gguf_set_val_str(k, "llama.rope.scaling.type", "dynamic"); },
          "'dynamic'");
  refused([](gguf_context* k) { gguf_set_val_u16(k, "split.count", 3); },
          "3 parts of a split model");
  refused([](gguf_context* k) { gguf_set_val_str(k, "tokenizer.ggml.model", "bert"); },
          "'bert' is not supported");
  const uint32_t differing[] = {2, 1};
  refused(
      [&](gguf_context* k) {
        gguf_set_arr_data(k, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, differing, 2);
      },
      "differs from layer to layer");
}

TEST_F(TinyFile, KeysThatChangeNothingAreTaken) {
  EXPECT_TRUE(LoadEdited([](gguf_context* k) {
                gguf_set_val_f32(k, "llama.logit_scale", 1);
                gguf_set_val_u32(k, "llama.attention.sliding_window", 0);
                gguf_set_val_bool(k, "llama.attention.causal", true);
                gguf_set_val_u32(k, "llama.anything_else", 7);
              }).ok());
}

TEST_F(TinyFile, FamiliesRefuseTheirOwnAbsurdities) {
  const auto refusal = [&](const std::string& family, std::function<void(gguf_context*)> edit) {
    TinyModel tiny = TinyModelOf(family);
    tiny.edit_keys = [before = tiny.edit_keys, edit](gguf_context* keys) {
      if (before) before(keys);
      edit(keys);
    };
    return Load(Write(tiny)).status().message();
  };
  EXPECT_THAT(refusal("mixtral",
                      [](gguf_context* k) { gguf_set_val_u32(k, "llama.expert_used_count", 9); }),
              HasSubstr("'llama.expert_used_count': 9 is not between 1 and 8"));
  EXPECT_THAT(
      refusal("mixtral", [](gguf_context* k) { gguf_set_val_u32(k, "llama.expert_count", 4); }),
      HasSubstr("expected [256, 4]"));
  EXPECT_THAT(
      refusal("qwen3moe", [](gguf_context* k) { gguf_set_val_u32(k, "qwen3moe.expert_count", 0); }),
      HasSubstr("'qwen3moe.expert_count': 0 must be at least 1"));
  EXPECT_THAT(refusal("gemma3",
                      [](gguf_context* k) {
                        const bool pattern[] = {true, false};
                        gguf_set_arr_data(k, "gemma3.attention.sliding_window_pattern",
                                          GGUF_TYPE_BOOL, pattern, 2);
                      }),
              HasSubstr("an array of 2 is not one flag for each of 7 layers"));
  EXPECT_THAT(
      refusal("gemma3", [](gguf_context* k) { gguf_remove_key(k, "gemma3.attention.head_count"); }),
      HasSubstr("'gemma3.attention.head_count' is missing"));
  EXPECT_THAT(
      refusal("granite", [](gguf_context* k) { gguf_set_val_f32(k, "granite.logit_scale", 0); }),
      HasSubstr("'granite.logit_scale': 0 is not between"));
  EXPECT_THAT(refusal("granite",
                      [](gguf_context* k) {
                        gguf_set_val_bool(k, "granite.rope.scaling.finetuned", false);
                      }),
              HasSubstr("'granite.rope.scaling.finetuned': false is not supported"));
  EXPECT_THAT(
      refusal("phi3",
              [](gguf_context* k) { gguf_set_val_u32(k, "phi3.rope.dimension_count", 64); }),
      HasSubstr("'rope_factors_long.weight' has the shape [24], expected [32]"));
}

TEST_F(TinyFile, BrokenVocabulariesAreRefused) {
  const char* twice[] = {"a", "b", "a"};
  EXPECT_THAT(LoadEdited([&](gguf_context* k) {
                gguf_set_arr_str(k, "tokenizer.ggml.tokens", twice, 3);
              }).message(),
              HasSubstr("has 3 tokens, the embeddings have 300"));
  EXPECT_THAT(LoadEdited([](gguf_context* k) {
                std::vector<std::string> texts(300, "same");
                std::vector<const char*> pointers;
                for (const auto& text : texts) pointers.push_back(text.c_str());
                gguf_set_arr_str(k, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
              }).message(),
              HasSubstr("'same' twice"));
  EXPECT_EQ(LoadEdited([](gguf_context* k) { gguf_remove_key(k, "tokenizer.ggml.merges"); }).code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(LoadEdited([](gguf_context* k) { gguf_remove_key(k, "tokenizer.ggml.tokens"); }).code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(LoadEdited([](gguf_context* k) {
              gguf_set_val_str(k, "tokenizer.chat_template", "{% if %}");
            }).code(),
            StatusCode::kDataLoss);
}

// Small enough that most of the file is header.
TinyModel Smallest() {
  TinyModel tiny;
  tiny.num_layers = 1;
  tiny.num_heads = tiny.num_kv_heads = 1;
  tiny.head_dim = tiny.embedding = tiny.feed_forward = 32;
  return tiny;
}

TEST_F(TinyFile, CutAnywhereItIsDataLoss) {
  const std::string bytes = ReadFile(Write(Smallest()));
  for (size_t size = bytes.size() - 1; size > 0;
       size -= std::min<size_t>(size, size < 12000 ? 97 : 1021)) {
    std::filesystem::resize_file(path_, size);
    const Status status = Load(path_).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss)
        << "cut to " << size << ": " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(path_));
  }
  std::filesystem::resize_file(path_, 0);
  EXPECT_EQ(Load(path_).status().code(), StatusCode::kDataLoss);
}

TEST_F(TinyFile, FlippedHeaderBytesNeverEndTheProcess) {
  const std::string bytes = ReadFile(Write(Smallest()));
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte).flush();
  };
  // Keys, vocabulary (a sample of it) and the list of tensors.
  const size_t header = bytes.find("blk.0.ffn_down.weight") + 64;
  ASSERT_LT(header, bytes.size());
  size_t refused = 0, tried = 0;
  for (size_t i = 0; i < header; i += i < 1200 || i + 1000 > header ? 1 : 13) {
    for (const char mask : {'\x01', '\x80', '\xff'}) {
      put(i, static_cast<char>(bytes[i] ^ mask));
      const Status status = Load(path_).status();
      ++tried;
      refused += status.ok() ? 0 : 1;
      EXPECT_EQ(status.ok(), status.message().empty());
    }
    put(i, bytes[i]);
  }
  EXPECT_GT(refused, tried / 4);
  EXPECT_TRUE(Load(path_).ok()) << "every byte is back";
}

}  // namespace
}  // namespace kvlink::model
