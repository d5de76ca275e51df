#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "llama.h"
#include "model/ggml_log.h"
#include "model/llama_tokenizer.h"

namespace kvlink::model {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, FreeSampler>;

// libllama's generator takes 32 bits and treats all ones as "seed from the clock".
uint32_t SeedOf(uint64_t seed) {
  seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9ull;  // splitmix64's finaliser
  seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebull;
  const auto folded = static_cast<uint32_t>((seed ^ (seed >> 31)) >> 32);
  return folded == LLAMA_DEFAULT_SEED ? 0 : folded;
}

TokenId ArgMax(const float* logits, uint32_t size) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < size; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<TokenId>(best);
}

Status OutOfRange(const char* name, double value, const char* range) {
  return Status(StatusCode::kInvalidArgument,
                std::string(name) + ": " + std::to_string(value) + " is not " + range);
}

Status Check(const SamplingParams& p, uint32_t vocab_size) {
  if (!(p.temperature >= 0 && p.temperature <= 100))
    return OutOfRange("temperature", p.temperature, "between 0 and 100");
  if (!(p.top_p >= 0 && p.top_p <= 1)) return OutOfRange("top_p", p.top_p, "between 0 and 1");
  if (p.top_k < -1) return OutOfRange("top_k", p.top_k, "0 or -1 (all) or positive");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return OutOfRange("min_p", p.min_p, "between 0 and 1");
  if (!(std::abs(p.frequency_penalty) <= 2))
    return OutOfRange("frequency_penalty", p.frequency_penalty, "between -2 and 2");
  if (!(std::abs(p.presence_penalty) <= 2))
    return OutOfRange("presence_penalty", p.presence_penalty, "between -2 and 2");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100)) {
    return OutOfRange("repetition_penalty", p.repetition_penalty, "above 0 and at most 100");
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || static_cast<uint32_t>(token) >= vocab_size) {
      return OutOfRange("logit_bias token", token, ("below " + std::to_string(vocab_size)).c_str());
    }
    if (std::isnan(bias)) return OutOfRange("logit_bias", bias, "a number");
  }
  return Status::Ok();
}

class ChainSampler : public Sampler {
 public:
  static Result<std::unique_ptr<Sampler>> Create(const Model& model, const SamplingParams& params);

  TokenId Sample(const float* logits) override;
  void Observe(TokenId token) override {
    if (token >= 0 && static_cast<uint32_t>(token) < vocab_size_) seen_.insert(token);
  }

 private:
  explicit ChainSampler(const SamplingParams& params) : params_(params) {}
  Status MakeGrammar(const Tokenizer& tokenizer);
  void MakeChain();

  // Logits after bias, masks and penalties; `logits` itself when nothing changes them.
  const float* Adjusted(const float* logits);
  TokenId Choose(const float* logits, bool with_grammar);
  bool GrammarAllows(TokenId token);
  void Accept(TokenId token);

  const SamplingParams params_;
  uint32_t vocab_size_ = 0;
  TokenId eos_ = -1;
  std::vector<TokenId> masked_;
  std::unordered_map<TokenId, int> generated_;  // token -> times
  std::unordered_set<TokenId> seen_;            // in the prompt or generated
  std::vector<float> adjusted_;
  std::vector<llama_token_data> candidates_;
  SamplerPtr grammar_, chain_;
};

Result<std::unique_ptr<Sampler>> ChainSampler::Create(const Model& model,
                                                      const SamplingParams& params) {
  const Tokenizer& tokenizer = model.tokenizer();
  if (Status status = Check(params, tokenizer.vocab_size()); !status.ok()) return status;
  std::unique_ptr<ChainSampler> sampler(new ChainSampler(params));
  sampler->vocab_size_ = tokenizer.vocab_size();
  sampler->eos_ = tokenizer.eos();
  if (params.ignore_eos) {
    for (uint32_t i = 0; i < sampler->vocab_size_; ++i) {
      if (tokenizer.IsEndOfGeneration(static_cast<TokenId>(i)))
        sampler->masked_.push_back(static_cast<TokenId>(i));
    }
  }
  if (!params.grammar.empty()) {
    if (Status status = sampler->MakeGrammar(tokenizer); !status.ok()) return status;
  }
  if (params.temperature > 0) sampler->MakeChain();
  return std::unique_ptr<Sampler>(std::move(sampler));
}

Status ChainSampler::MakeGrammar(const Tokenizer& tokenizer) {
  const auto* llama = dynamic_cast<const LlamaTokenizer*>(&tokenizer);
  if (llama == nullptr)
    return Status(StatusCode::kUnimplemented, "grammar: needs a tokenizer of libllama");
  LogCapture errors;
  try {
    grammar_.reset(
        llama_sampler_init_grammar(llama->vocabulary(), params_.grammar.c_str(), "root"));
  } catch (const std::exception& e) {
    return Status(StatusCode::kInvalidArgument, std::string("grammar: ") + e.what());
  }
  if (grammar_ == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "grammar: not valid GBNF with a rule 'root': " + errors.text());
  }
  return Status::Ok();
}

// top_k comes first because it makes the rest cheap; it commutes with the temperature. Temperature
// before min_p and top_p, as in vLLM: both look at the distribution that is sampled from.
void ChainSampler::MakeChain() {
  chain_.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (params_.top_k > 0)
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_top_k(params_.top_k));
  if (params_.temperature != 1)
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_temp(params_.temperature));
  if (params_.min_p > 0)
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_min_p(params_.min_p, 1));
  if (params_.top_p < 1)
    llama_sampler_chain_add(chain_.get(), llama_sampler_init_top_p(params_.top_p, 1));
  llama_sampler_chain_add(chain_.get(), llama_sampler_init_dist(SeedOf(params_.seed)));
}

const float* ChainSampler::Adjusted(const float* logits) {
  const bool repetition = params_.repetition_penalty != 1 && !seen_.empty();
  const bool counts =
      (params_.frequency_penalty != 0 || params_.presence_penalty != 0) && !generated_.empty();
  if (!repetition && !counts && params_.logit_bias.empty() && masked_.empty()) return logits;
  adjusted_.assign(logits, logits + vocab_size_);
  if (repetition) {
    for (const TokenId token : seen_) {
      float& logit = adjusted_[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    }
  }
  if (counts) {
    for (const auto& [token, times] : generated_) {
      adjusted_[static_cast<size_t>(token)] -=
          params_.frequency_penalty * static_cast<float>(times) + params_.presence_penalty;
    }
  }
  for (const auto& [token, bias] : params_.logit_bias)
    adjusted_[static_cast<size_t>(token)] += bias;
  for (const TokenId token : masked_) adjusted_[static_cast<size_t>(token)] = kMasked;
  return adjusted_.data();
}

TokenId ChainSampler::Choose(const float* logits, bool with_grammar) {
  if (!with_grammar && chain_ == nullptr) return ArgMax(logits, vocab_size_);
  candidates_.resize(vocab_size_);
  for (uint32_t i = 0; i < vocab_size_; ++i)
    candidates_[i] = {static_cast<TokenId>(i), logits[i], 0.0f};
  if (with_grammar) {
    llama_token_data_array all = {candidates_.data(), candidates_.size(), -1, false};
    llama_sampler_apply(grammar_.get(), &all);
    std::erase_if(candidates_, [](const llama_token_data& c) { return c.logit == kMasked; });
    if (candidates_.empty()) return eos_;  // the grammar is complete, or allows masked tokens only
  }
  if (chain_ == nullptr) {
    return std::max_element(candidates_.begin(), candidates_.end(),
                            [](const auto& a, const auto& b) { return a.logit < b.logit; })
        ->id;
  }
  llama_token_data_array array = {candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  return array.data[std::max<int64_t>(array.selected, 0)].id;
}

bool ChainSampler::GrammarAllows(TokenId token) {
  llama_token_data one = {token, 1.0f, 0.0f};
  llama_token_data_array array = {&one, 1, -1, false};
  llama_sampler_apply(grammar_.get(), &array);
  return one.logit != kMasked;
}

void ChainSampler::Accept(TokenId token) {
  if (grammar_ != nullptr) {
    try {
      llama_sampler_accept(grammar_.get(), token);
    } catch (const std::exception&) {
      // Only for the end of generation outside the grammar's end, which ends the sequence anyway.
    }
  }
  if (token >= 0) {
    seen_.insert(token);
    ++generated_[token];
  }
}

// A grammar over the whole vocabulary is slow. So the choice is made without it first, and made
// again among the allowed tokens only when it is not allowed; the distribution is the same.
TokenId ChainSampler::Sample(const float* logits) {
  const float* adjusted = Adjusted(logits);
  TokenId token = Choose(adjusted, /*with_grammar=*/false);
  if (grammar_ != nullptr && !GrammarAllows(token)) token = Choose(adjusted, /*with_grammar=*/true);
  Accept(token);
  return token;
}

}  // namespace

Result<std::unique_ptr<Sampler>> Sampler::Create(const Model& model, const SamplingParams& params) {
  return ChainSampler::Create(model, params);
}

}  // namespace kvlink::model
