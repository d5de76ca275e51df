// Sampler: logits -> next token, for one branch. Greedy is exact argmax (lowest id on a tie); the
// rest is libllama's sampler chain. Same seed and same logits give the same tokens, whatever is
// known of the grammar from earlier requests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kvlink/kv_shape.h"
#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::model {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: all
  float min_p = 0.0f;
  float frequency_penalty = 0.0f, presence_penalty = 0.0f, repetition_penalty = 1.0f;
  uint64_t seed = 0;
  std::map<TokenId, float> logit_bias;
  std::string grammar;  // GBNF, empty: none
  bool ignore_eos = false;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  static Result<std::unique_ptr<Sampler>> Create(const Model& model, const SamplingParams& params);
  // logits [vocab_size]; does not change them. Accepts the token it returns. With a grammar: a
  // token that the grammar allows, an end of generation only where the text may end.
  virtual TokenId Sample(const float* logits) = 0;
  // A prompt token that penalties count (repetition penalty looks at the prompt too).
  virtual void Observe(TokenId token) = 0;
  // Not ok: the last Sample found no token that the grammar allows, or the grammar grew beyond its
  // limits; the sequence must end.
  virtual Status status() const { return {}; }
};

}  // namespace kvlink::model
