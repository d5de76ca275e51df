// LibllamaReference: logits by libllama's own graph, to compare ours with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvlink/kv_shape.h"
#include "llama.h"

namespace kvlink::model {

class LibllamaReference {
 public:
  struct Options {
    uint32_t context = 4608;
    bool flash_attention = false;
    int threads = 1;
  };
  // Null on an error. ggml's CPU backend must be loaded (Model::Load does so).
  static std::unique_ptr<LibllamaReference> Open(const std::string& path, const Options& options);
  // The same weights, another context.
  std::unique_ptr<LibllamaReference> WithOptions(const Options& options) const;

  // Starts a new sequence with `prompt`; returns the logits of its last token.
  std::vector<float> Prompt(std::span<const TokenId> prompt);
  // Appends one token; returns its logits.
  std::vector<float> Next(TokenId token);

 private:
  LibllamaReference() = default;
  bool MakeContext(const Options& options);
  std::vector<float> LastLogits() const;

  std::shared_ptr<llama_model> model_;
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
};

}  // namespace kvlink::model
