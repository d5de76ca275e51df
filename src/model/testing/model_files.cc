#include "model/testing/model_files.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "model/gguf_file.h"

namespace kvlink::model {
namespace {

// Writes a GGUF file tensor by tensor, so that a large one needs no memory.
class GgufWriter {
 public:
  GgufWriter(gguf_context* keys, const std::string& path) : keys_(keys), path_(path) {}

  // `data_of` returns a tensor's bytes.
  bool Write(const std::vector<ggml_tensor*>& tensors,
             const std::function<std::vector<char>(ggml_tensor*)>& data_of) {
    // Tests run beside each other and may make the same file.
    const std::string unfinished = path_ + "." + std::to_string(getpid());
    for (ggml_tensor* tensor : tensors) gguf_add_tensor(keys_, tensor);
    std::vector<char> header(gguf_get_meta_size(keys_));
    gguf_get_meta_data(keys_, header.data());
    std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    const size_t alignment = gguf_get_alignment(keys_);
    for (ggml_tensor* tensor : tensors) {
      std::vector<char> data = data_of(tensor);
      data.resize((data.size() + alignment - 1) / alignment * alignment);
      out.write(data.data(), static_cast<std::streamsize>(data.size()));
    }
    out.close();
    std::error_code error;
    std::filesystem::rename(unfinished, path_, error);
    return out.good() && !error;
  }

 private:
  gguf_context* keys_;
  std::string path_;
};

std::vector<char> Dequantised(const ggml_tensor* tensor) {
  const auto count = static_cast<size_t>(ggml_nelements(tensor));
  std::vector<char> bytes(count * sizeof(float));
  if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(bytes.data(), tensor->data, bytes.size());
  } else {
    ggml_get_type_traits(tensor->type)
        ->to_float(tensor->data, reinterpret_cast<float*>(bytes.data()),
                   static_cast<int64_t>(count));
  }
  return bytes;
}

void SetTokens(gguf_context* keys) {
  // The 256 bytes as byte-level BPE writes them, the merges of a few pairs, and special tokens.
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), 3);  // control
  const auto utf8 = [](uint32_t c) {
    return c < 0x80 ? std::string(1, static_cast<char>(c))
                    : std::string{static_cast<char>(0xc0 | (c >> 6)),
                                  static_cast<char>(0x80 | (c & 0x3f))};
  };
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    tokens.push_back(utf8(printable ? byte : next++));
  }
  std::vector<std::string> merges;
  for (char first = 'a'; tokens.size() < 300; ++first) {
    merges.push_back(std::string(1, first) + " e");
    tokens.push_back(std::string(1, first) + "e");
    if (first == 'z') first = '@';  // then 'A'
  }
  types.resize(tokens.size(), 1);  // normal
  std::vector<const char*> token_texts, merge_texts;
  for (const std::string& token : tokens) token_texts.push_back(token.c_str());
  for (const std::string& merge : merges) merge_texts.push_back(merge.c_str());
  gguf_set_val_str(keys, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(keys, "tokenizer.ggml.pre", "gpt-2");
  gguf_set_arr_str(keys, "tokenizer.ggml.tokens", token_texts.data(), token_texts.size());
  gguf_set_arr_data(keys, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_arr_str(keys, "tokenizer.ggml.merges", merge_texts.data(), merge_texts.size());
  gguf_set_val_u32(keys, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(keys, "tokenizer.ggml.eos_token_id", 2);
}

void SetHyperParameters(gguf_context* keys, const TinyModel& m) {
  const auto set = [&](const char* name, uint32_t value) {
    gguf_set_val_u32(keys, (m.architecture + "." + name).c_str(), value);
  };
  gguf_set_val_str(keys, "general.architecture", m.architecture.c_str());
  gguf_set_val_str(keys, "general.name", "tiny");
  set("context_length", 2048);
  set("embedding_length", m.embedding);
  set("block_count", m.num_layers);
  set("feed_forward_length", m.feed_forward);
  set("attention.head_count", m.num_heads);
  set("attention.head_count_kv", m.num_kv_heads);
  set("attention.key_length", m.head_dim);
  set("attention.value_length", m.head_dim);
  set("rope.dimension_count", m.head_dim);
  gguf_set_val_f32(keys, (m.architecture + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5f);
  if (m.num_experts > 0) {
    set("expert_count", m.num_experts);
    set("expert_used_count", m.num_experts_used);
  }
}

struct Shape {
  std::string name;
  int64_t columns, rows;  // rows 0: a vector
  int64_t count = 1;      // of matrices
};

void AddLayerShapes(const TinyModel& m, uint32_t index, std::vector<Shape>& shapes) {
  const int64_t q = m.num_heads * m.head_dim, kv = m.num_kv_heads * m.head_dim, e = m.embedding,
                f = m.feed_forward, experts = m.num_experts;
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto norm = [&](const char* name, int64_t size) {
    shapes.push_back({prefix + name + ".weight", size, 0});
  };
  const auto linear = [&](const char* name, int64_t columns, int64_t rows, bool bias) {
    shapes.push_back({prefix + name + ".weight", columns, rows});
    if (bias) shapes.push_back({prefix + name + ".bias", rows, 0});
  };
  const bool qkv_biases = m.biases || m.qkv_biases;
  norm("attn_norm", e);
  norm("ffn_norm", e);
  if (m.post_norms) norm("post_attention_norm", e);
  if (m.post_norms) norm("post_ffw_norm", e);
  if (m.head_norms) norm("attn_q_norm", m.head_dim);
  if (m.head_norms) norm("attn_k_norm", m.head_dim);
  if (m.fused_qkv) {
    linear("attn_qkv", e, q + 2 * kv, qkv_biases);
  } else {
    linear("attn_q", e, q, qkv_biases);
    linear("attn_k", e, kv, qkv_biases);
    linear("attn_v", e, kv, qkv_biases);
  }
  linear("attn_output", q, e, m.biases);
  if (experts > 0) {
    linear("ffn_gate_inp", e, experts, false);
    shapes.push_back({prefix + "ffn_gate_exps.weight", e, f, experts});
    shapes.push_back({prefix + "ffn_up_exps.weight", e, f, experts});
    shapes.push_back({prefix + "ffn_down_exps.weight", f, e, experts});
    return;
  }
  if (!m.gate_in_up) linear("ffn_gate", e, f, m.biases);
  linear("ffn_up", e, m.gate_in_up ? 2 * f : f, m.biases);
  linear("ffn_down", f, e, m.biases);
}

std::vector<Shape> ShapesOf(const TinyModel& m) {
  std::vector<Shape> shapes = {{"token_embd.weight", m.embedding, 300},
                               {"output_norm.weight", m.embedding, 0}};
  if (!m.tied_embeddings) shapes.push_back({"output.weight", m.embedding, 300});
  if (m.rope_factors > 0) shapes.push_back({"rope_freqs.weight", m.rope_factors, 0});
  if (m.long_short_factors > 0) {
    shapes.push_back({"rope_factors_long.weight", m.long_short_factors, 0});
    shapes.push_back({"rope_factors_short.weight", m.long_short_factors, 0});
  }
  for (uint32_t i = 0; i < m.num_layers; ++i) AddLayerShapes(m, i, shapes);
  return shapes;
}

// Weights of the size that keeps activations near 1; norms near 1; rope factors between 1 and 8.
std::vector<char> RandomData(const ggml_tensor* tensor, std::mt19937_64& random) {
  const auto count = static_cast<size_t>(ggml_nelements(tensor));
  const bool matrix = tensor->ne[1] > 1;
  const std::string_view name = tensor->name;
  const bool rope = name.starts_with("rope_");
  const float most = name == "rope_factors_short.weight" ? 1.5f : 8.0f;
  const bool norm = name.find("norm") != std::string_view::npos;
  std::vector<float> values(count);
  std::normal_distribution<float> normal(
      0.0f, matrix ? 1.0f / std::sqrt(static_cast<float>(tensor->ne[0])) : 0.1f);
  for (size_t i = 0; i < count; ++i) {
    values[i] = rope ? 1.0f + (most - 1.0f) * static_cast<float>(i) / static_cast<float>(count)
                     : normal(random) + (norm ? 1.0f : 0.0f);
  }
  std::vector<char> bytes(ggml_nbytes(tensor));
  if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    const std::vector<float> importance(static_cast<size_t>(tensor->ne[0]), 1.0f);
    ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, ggml_nrows(tensor),
                        tensor->ne[0], importance.data());
  }
  return bytes;
}

}  // namespace

std::string DefaultModelPath() {
  const char* environment = std::getenv("KVLINK_TEST_MODEL");
  const std::string path = environment != nullptr ? environment : KVLINK_DEFAULT_MODEL;
  return std::filesystem::exists(path) ? path : "";
}

std::string TestFolder() {
  std::error_code error;
  const auto folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "test-models";
  std::filesystem::create_directories(folder, error);
  return folder.string();
}

bool ExpandToF32(const std::string& source, const std::string& target) {
  auto file = GgufFile::Open(source);
  if (!file.ok()) return false;
  gguf_context* keys = gguf_init_empty();
  gguf_set_kv(keys, (*file)->keys());
  gguf_set_val_u32(keys, "general.file_type", 0);
  std::vector<ggml_tensor*> originals, expanded;
  ggml_context* context = ggml_init({ggml_tensor_overhead() * 4096, nullptr, /*no_alloc=*/true});
  for (ggml_tensor* t = ggml_get_first_tensor((*file)->tensors()); t;
       t = ggml_get_next_tensor((*file)->tensors(), t)) {
    originals.push_back(t);
    expanded.push_back(ggml_new_tensor(context, GGML_TYPE_F32, ggml_n_dims(t), t->ne));
    ggml_set_name(expanded.back(), t->name);
  }
  size_t next = 0;
  const bool written = GgufWriter(keys, target).Write(expanded, [&](ggml_tensor*) {
    return Dequantised(originals[next++]);
  });
  ggml_free(context);
  gguf_free(keys);
  return written;
}

std::string ExpandedModelPath() { return ExpandedPathOf(DefaultModelPath()); }

std::string ExpandedPathOf(const std::string& source) {
  if (source.empty()) return "";
  const std::string target =
      TestFolder() + "/" + std::filesystem::path(source).stem().string() + "-f32.gguf";
  if (std::filesystem::exists(target) || ExpandToF32(source, target)) return target;
  return "";
}

TinyModel TinyModelOf(const std::string& family) {
  TinyModel m;
  m.architecture = family == "mixtral" ? "llama" : family;
  const auto set_keys = [&](std::map<std::string, float> floats,
                            std::map<std::string, uint32_t> ints) {
    m.edit_keys = [=, name = m.architecture + "."](gguf_context* keys) {
      for (const auto& [key, value] : floats) gguf_set_val_f32(keys, (name + key).c_str(), value);
      for (const auto& [key, value] : ints) gguf_set_val_u32(keys, (name + key).c_str(), value);
    };
  };
  if (family == "qwen2") {
    m.qkv_biases = true;
    set_keys({{"rope.freq_base", 1e6f}}, {});
  } else if (family == "qwen3") {
    m.head_norms = true;
    m.embedding = 128;  // not heads * head_dim
    set_keys({{"rope.freq_base", 1e6f}}, {});
  } else if (family == "qwen3moe") {
    m.head_norms = true;
    m.num_experts = 8;
    m.feed_forward = 128;
    m.seed = 2;  // no prompt of the tests has a row at a tie between its 2nd and 3rd expert
    set_keys({{"rope.freq_base", 1e6f}}, {{"expert_feed_forward_length", 128}});
  } else if (family == "mixtral") {
    m.num_experts = 8;
    m.feed_forward = 128;
    set_keys({{"rope.freq_base", 1e6f}}, {});
  } else if (family == "gemma2" || family == "gemma3") {
    m.head_norms = family == "gemma3";
    m.post_norms = true;
    m.num_layers = 7;
    m.embedding = m.feed_forward = 128;
    if (family == "gemma2") {
      set_keys({{"attn_logit_softcapping", 1.0f}, {"final_logit_softcapping", 3.0f}},
               {{"attention.sliding_window", 100}});
    } else {
      set_keys({{"rope.freq_base", 1e6f}, {"rope.freq_base_swa", 3e4f}},
               {{"attention.sliding_window", 100}});
    }
  } else if (family == "phi3") {
    m.fused_qkv = m.gate_in_up = true;
    m.tied_embeddings = false;
    m.long_short_factors = 24;
    set_keys({{"rope.scaling.attn_factor", 1.2f}},
             {{"rope.dimension_count", 48}, {"rope.scaling.original_context_length", 1024}});
  } else if (family == "granite") {
    set_keys({{"embedding_scale", 12.0f},
              {"residual_scale", 0.22f},
              {"attention.scale", 0.2f},
              {"logit_scale", 0.5f}},
             {});
  }
  return m;
}

bool WriteTinyModel(const TinyModel& model, const std::string& path) {
  gguf_context* keys = gguf_init_empty();
  SetHyperParameters(keys, model);
  SetTokens(keys);
  if (model.edit_keys) model.edit_keys(keys);
  ggml_context* context = ggml_init({ggml_tensor_overhead() * 4096, nullptr, /*no_alloc=*/true});
  std::vector<ggml_tensor*> tensors;
  for (const Shape& shape : ShapesOf(model)) {
    tensors.push_back(shape.rows > 0 ? ggml_new_tensor_3d(context, model.weight_type, shape.columns,
                                                          shape.rows, shape.count)
                                     : ggml_new_tensor_1d(context, GGML_TYPE_F32, shape.columns));
    ggml_set_name(tensors.back(), shape.name.c_str());
  }
  std::mt19937_64 random(model.seed);
  const bool written =
      GgufWriter(keys, path).Write(tensors, [&](ggml_tensor* t) { return RandomData(t, random); });
  ggml_free(context);
  gguf_free(keys);
  return written;
}

}  // namespace kvlink::model
