#include "model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/library.h"
#include "llama.h"

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
  Status status() const override { return status_; }
  void Observe(TokenId token) override {
    if (token >= 0 && static_cast<uint32_t>(token) < vocab_size_) seen_.insert(token);
  }

 private:
  explicit ChainSampler(const SamplingParams& params) : params_(params) {}
  Status MakeGrammar(const Tokenizer& tokenizer);
  void MakeChain();

  // Logits after bias, masks and penalties; `logits` itself when nothing changes them.
  const float* Adjusted(const float* logits);
  TokenId Choose(const float* logits);
  TokenId ChooseAllowed(const float* logits);
  TokenId ChooseCandidate();  // of candidates_, which are not empty
  void Accept(TokenId token);

  const SamplingParams params_;
  uint32_t vocab_size_ = 0;
  TokenId eos_ = -1;
  std::vector<TokenId> masked_;
  std::unordered_map<TokenId, int> generated_;  // token -> times
  std::unordered_set<TokenId> seen_;            // in the prompt or generated
  std::vector<float> adjusted_;
  std::vector<llama_token_data> candidates_;
  SamplerPtr chain_;
  std::optional<grammar::Matcher> grammar_;
  std::vector<TokenId> ends_;  // of generation; with a grammar or ignore_eos
  grammar::TokenMask mask_;
  Status status_;
};

Result<std::unique_ptr<Sampler>> ChainSampler::Create(const Model& model,
                                                      const SamplingParams& params) {
  const Tokenizer& tokenizer = model.tokenizer();
  if (Status status = Check(params, tokenizer.vocab_size()); !status.ok()) return status;
  std::unique_ptr<ChainSampler> sampler(new ChainSampler(params));
  sampler->vocab_size_ = tokenizer.vocab_size();
  sampler->eos_ = tokenizer.eos();
  if (params.ignore_eos || !params.grammar.empty()) {
    for (uint32_t i = 0; i < sampler->vocab_size_; ++i) {
      if (tokenizer.IsEndOfGeneration(static_cast<TokenId>(i)))
        sampler->ends_.push_back(static_cast<TokenId>(i));
    }
  }
  if (params.ignore_eos) sampler->masked_ = sampler->ends_;
  if (!params.grammar.empty()) {
    if (Status status = sampler->MakeGrammar(tokenizer); !status.ok()) return status;
  }
  if (params.temperature > 0) sampler->MakeChain();
  return std::unique_ptr<Sampler>(std::move(sampler));
}

Status ChainSampler::MakeGrammar(const Tokenizer& tokenizer) {
  grammar::Library* library = tokenizer.grammars();
  if (library == nullptr || eos_ < 0) {
    return Status(StatusCode::kUnimplemented,
                  "grammar: this model's vocabulary cannot be held to a grammar");
  }
  Result<std::shared_ptr<grammar::Grammar>> compiled = library->Get(params_.grammar);
  if (!compiled.ok()) return compiled.status();
  grammar_.emplace(*std::move(compiled));
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

TokenId ChainSampler::Choose(const float* logits) {
  if (chain_ == nullptr) return ArgMax(logits, vocab_size_);
  candidates_.resize(vocab_size_);
  for (uint32_t i = 0; i < vocab_size_; ++i)
    candidates_[i] = {static_cast<TokenId>(i), logits[i], 0.0f};
  return ChooseCandidate();
}

TokenId ChainSampler::ChooseCandidate() {
  if (chain_ == nullptr) {  // the lowest id on a tie
    return std::min_element(candidates_.begin(), candidates_.end(),
                            [](const auto& a, const auto& b) {
                              return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                            })
        ->id;
  }
  llama_token_data_array array = {candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  return array.data[std::max<int64_t>(array.selected, 0)].id;
}

// Before any cut of the tail: top_k and top_p look at what the grammar allows.
TokenId ChainSampler::ChooseAllowed(const float* logits) {
  if (chain_ == nullptr) {  // the likeliest token is allowed more often than not
    const TokenId likeliest = ArgMax(logits, vocab_size_);
    if (logits[likeliest] > kMasked && grammar_->Allows(likeliest)) return likeliest;
  }
  grammar_->FillMask(&mask_);
  const bool may_end = grammar_->accepting();
  candidates_.clear();
  const auto add = [&](TokenId token) {
    const float logit = logits[static_cast<size_t>(token)];
    if (logit > kMasked) candidates_.push_back({token, logit, 0.0f});
  };
  for (size_t word = 0; word < mask_.size(); ++word) {
    for (uint64_t bits = mask_[word]; bits != 0; bits &= bits - 1) {
      add(static_cast<TokenId>(word * 64 + static_cast<size_t>(std::countr_zero(bits))));
    }
  }
  if (may_end) {
    for (const TokenId token : ends_) add(token);
  }
  if (Status status = grammar_->status(); !status.ok()) {
    status_ = std::move(status);
    return eos_;
  }
  if (!candidates_.empty()) return ChooseCandidate();
  if (!may_end) {
    status_ = Status(StatusCode::kInvalidArgument,
                     "grammar: no token of this model's vocabulary can follow the text so far");
  }
  return eos_;  // the grammar is complete, whatever ignore_eos or a bias says
}

void ChainSampler::Accept(TokenId token) {
  if (token < 0) return;
  if (grammar_) (void)grammar_->Accept(token);  // an end of generation changes nothing
  seen_.insert(token);
  ++generated_[token];
}

TokenId ChainSampler::Sample(const float* logits) {
  const float* adjusted = Adjusted(logits);
  const TokenId token = grammar_ ? ChooseAllowed(adjusted) : Choose(adjusted);
  Accept(token);
  return token;
}

}  // namespace

Result<std::unique_ptr<Sampler>> Sampler::Create(const Model& model, const SamplingParams& params) {
  return ChainSampler::Create(model, params);
}

}  // namespace kvlink::model
