// FakeModel: a model whose answers are easy to compute twice.
//
// The KV row of a token at position p is a hash of (token, p, the row at p - 1 as it lies in the
// pages), written to every layer and head of the real page through the span table, difference
// cells included. The logits of a row are a hash of *all* rows 0..p as read through the span table.
// So whatever a wrong share, fork, eviction, preemption or commit does to a row shows in the
// tokens. FakeModel::Logits computes the same without pages: the reference.
//
// Vocabulary: 0 is the end of generation; the others are letters, pairs, parts of UTF-8 characters
// and one token without text.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/sampler.h"

namespace kvlink::engine {

struct FakeModelOptions {
  uint32_t context = 4096;
  uint32_t tokens_per_block = 8;
  float eos_bias = 0;  // added to the end token's logit; the others lie in [0, 8)
  // Logits depend on the row's own token and position alone: whatever the context, the same answer.
  bool is_forgetful = false;
};

class FakeModel final : public model::Model {
 public:
  explicit FakeModel(const FakeModelOptions& options = {});
  const model::ModelInfo& info() const override { return info_; }
  const KvShape& kv_shape() const override { return shape_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const model::Tokenizer& tokenizer() const override { return *tokenizer_; }
  Result<std::unique_ptr<model::Runner>> NewRunner(int num_threads,
                                                   uint32_t max_batch_rows) const override;

  // Logits after the last of these tokens.
  std::vector<float> Logits(std::span<const TokenId> tokens) const;

  // What the runners of this model did, and what they shall do.
  struct Counters {
    std::atomic<uint64_t> rows{0}, steps{0};
    std::atomic<uint64_t> rewrites{0};  // rows written that held that value already
    std::atomic<bool> fail{false};      // the next Run returns an error
    std::function<void()> on_run;       // called by each Run; set before the engine is created
  };
  Counters& counters() const { return *counters_; }
  float eos_bias() const { return options_.eos_bias; }
  bool is_forgetful() const { return options_.is_forgetful; }

  static constexpr uint32_t kVocabulary = 48;
  static constexpr TokenId kEos = 0;
  static constexpr TokenId kSilent = 1;  // a token without text

 private:
  FakeModelOptions options_;
  model::ModelInfo info_;
  KvShape shape_;
  std::string fingerprint_ = "fake";
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<Counters> counters_;
};

// Temperature 0: argmax; otherwise draws from the softmax with the seed. A repetition penalty is
// subtracted from the logits of tokens that were seen.
Result<std::unique_ptr<model::Sampler>> NewFakeSampler(const model::Model& model,
                                                       const model::SamplingParams& params);

}  // namespace kvlink::engine
