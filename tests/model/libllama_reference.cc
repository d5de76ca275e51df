#include "libllama_reference.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kvlink::model {

std::unique_ptr<LibllamaReference> LibllamaReference::Open(const std::string& path,
                                                           const Options& options) {
  std::unique_ptr<LibllamaReference> reference(new LibllamaReference);
  reference->model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()),
                          llama_model_free);
  if (reference->model_ == nullptr || !reference->MakeContext(options)) return nullptr;
  return reference;
}

std::unique_ptr<LibllamaReference> LibllamaReference::WithOptions(const Options& options) const {
  std::unique_ptr<LibllamaReference> reference(new LibllamaReference);
  reference->model_ = model_;
  return reference->MakeContext(options) ? std::move(reference) : nullptr;
}

bool LibllamaReference::MakeContext(const Options& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context;
  params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = options.threads;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  context_.reset(llama_init_from_model(model_.get(), params));
  return context_ != nullptr;
}

std::vector<float> LibllamaReference::Prompt(std::span<const TokenId> prompt) {
  llama_memory_clear(llama_get_memory(context_.get()), true);
  for (size_t done = 0; done < prompt.size(); done += 512) {
    const size_t count = std::min<size_t>(512, prompt.size() - done);
    const llama_batch batch = llama_batch_get_one(const_cast<TokenId*>(prompt.data()) + done,
                                                  static_cast<int32_t>(count));
    if (llama_decode(context_.get(), batch) != 0) {
      std::fputs("llama_decode failed\n", stderr);
      std::abort();
    }
  }
  return LastLogits();
}

std::vector<float> LibllamaReference::Next(TokenId token) {
  if (llama_decode(context_.get(), llama_batch_get_one(&token, 1)) != 0) {
    std::fputs("llama_decode failed\n", stderr);
    std::abort();
  }
  return LastLogits();
}

std::vector<float> LibllamaReference::LastLogits() const {
  const float* logits = llama_get_logits_ith(context_.get(), -1);
  return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))};
}

}  // namespace kvlink::model
