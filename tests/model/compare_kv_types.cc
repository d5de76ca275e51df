// What a smaller KV type costs in quality: the divergence of each type's next-token distributions
// from those of F16, on the same tokens.
//
//   compare_kv_types [--model FILE] [--weights f32|native] [--threads N] [--prompts N] [--tokens N]
//                    [--text FILE]...
//
// Prompts are the first --tokens tokens of each text, or made by seed; the last quarter of each
// prompt's positions is compared (long contexts are what a cache is for). f32 expands the weights,
// so that nothing but KV is rounded. With quantised weights activations are rounded to int8, which
// amplifies any last-bit difference: the second F16 row, computed with ggml's products in place of
// packed ones, shows that noise. Prints one Markdown row a type: mean and largest KL in nats, share
// of positions whose most likely token is the same.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"
#include "model/testing/prompts.h"

namespace kvlink::model {
namespace {

struct Options {
  std::string model, weights = "native";
  std::vector<std::string> texts;
  int threads = 1;
  uint32_t prompts = 4, tokens = 512;
};

using Logits = std::vector<std::vector<float>>;

double LogSum(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

// KL(p || q) in nats of the two softmaxes.
double Divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const double log_p = LogSum(p), log_q = LogSum(q);
  double divergence = 0;
  for (size_t i = 0; i < p.size(); ++i)
    divergence += std::exp(p[i] - log_p) * ((p[i] - log_p) - (q[i] - log_q));
  return divergence;
}

size_t ArgMax(const std::vector<float>& logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct Variant {
  const char* name;
  KvType type;
  bool packed;
};
constexpr Variant kVariants[] = {{"f16", KvType::kF16, true},
                                 {"f16, other products", KvType::kF16, false},
                                 {"bf16", KvType::kBF16, true},
                                 {"q8_0", KvType::kQ8_0, true}};

class Comparison {
 public:
  Comparison(const Options& options, const std::string& path) : options_(options), path_(path) {}

  bool Run() {
    std::printf("| KV type | bytes a token | mean KL | largest KL | same top token |\n");
    std::printf("|---|---|---|---|---|\n");
    for (const Variant& variant : kVariants) {
      auto logits = LogitsOf(variant);
      if (logits.empty()) return false;
      Report(variant, logits);
      if (reference_.empty()) reference_ = std::move(logits);
    }
    return true;
  }

 private:
  Logits LogitsOf(const Variant& variant) {
    LoadOptions load;
    load.path = path_;
    load.kv_type = variant.type;
    load.pack_weights = variant.packed;
    auto model = Model::Load(load);
    auto runner = model.ok() ? (*model)->NewRunner(options_.threads, 256)
                             : Result<std::unique_ptr<Runner>>(model.status());
    if (!runner.ok()) {
      std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
      return {};
    }
    token_bytes_ = (*model)->kv_shape().token_bytes();
    Logits all;
    for (const std::string& text : Texts()) {
      auto tokens = (*model)->tokenizer().Encode(text, true, false);
      if (tokens.size() > options_.tokens) tokens.resize(options_.tokens);
      const uint32_t size = static_cast<uint32_t>(tokens.size());
      PlainContext context((*model)->kv_shape(), size);
      for (auto& row :
           RunPrompt(**runner, context, tokens, 0, 256, size / 4, (*model)->info().vocab_size)) {
        all.push_back(std::move(row));
      }
    }
    return all;
  }

  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    for (const std::string& path : options_.texts) {
      std::ifstream file(path);
      texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    for (uint32_t i = 0; texts.size() < options_.prompts; ++i)
      texts.push_back(MakePrompt(100 + i, options_.tokens));
    return texts;
  }

  void Report(const Variant& variant, const Logits& logits) const {
    if (reference_.empty()) {
      std::printf("| %s | %zu | 0 | 0 | 100 %% of %zu |\n", variant.name, token_bytes_,
                  logits.size());
      return;
    }
    double sum = 0, largest = 0;
    size_t same = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double divergence = Divergence(reference_[i], logits[i]);
      sum += divergence;
      largest = std::max(largest, divergence);
      same += ArgMax(reference_[i]) == ArgMax(logits[i]);
    }
    std::printf("| %s | %zu | %.2g | %.2g | %.1f %% |\n", variant.name, token_bytes_,
                sum / static_cast<double>(logits.size()), largest,
                100.0 * static_cast<double>(same) / static_cast<double>(logits.size()));
    std::fflush(stdout);
  }

  const Options options_;
  const std::string path_;
  size_t token_bytes_ = 0;
  Logits reference_;
};

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model")
      options.model = value;
    else if (name == "--weights")
      options.weights = value;
    else if (name == "--threads")
      options.threads = std::stoi(value);
    else if (name == "--prompts")
      options.prompts = static_cast<uint32_t>(std::stoul(value));
    else if (name == "--tokens")
      options.tokens = static_cast<uint32_t>(std::stoul(value));
    else if (name == "--text")
      options.texts.push_back(value);
    else {
      std::fprintf(stderr, "unknown option %s\n", name.c_str());
      return 2;
    }
  }
  const std::string source = options.model.empty() ? DefaultModelPath() : options.model;
  if (source.empty()) {
    std::fputs("no default model: run the set-up, or set KVLINK_TEST_MODEL\n", stderr);
    return 77;
  }
  return Comparison(options, options.weights == "f32" ? ExpandedPathOf(source) : source).Run() ? 0
                                                                                               : 1;
}

}  // namespace
}  // namespace kvlink::model

int main(int argc, char** argv) { return kvlink::model::Main(argc, argv); }
