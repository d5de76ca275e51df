// BeamSearch: keeps the `width` most likely continuations. Pure: it is given each beam's most
// likely next tokens and says which beam each new beam continues; forking is the caller's.
//
// One step, as in Hugging Face transformers (BeamSearchScorer, early_stopping=False):
//   1. of all beams' continuations the 2 * width with the highest sums of log-probabilities are
//      looked at, best first (ties: lower beam, then lower token);
//   2. one that ends (end-of-generation token, or a completed stop string) becomes a hypothesis if
//      it ranks among the first `width`, and is dropped otherwise;
//   3. the first `width` that do not end are the new beams.
//   The `width` best hypotheses are kept, by score = sum / length^length_penalty, where length
//   counts the generated tokens and the end token. The search is over when there are `width` of
//   them and the worst is no worse than the best sum of this step at this length could score, or at
//   max_tokens, where the beams that still live become hypotheses too.
// Deterministic. Cost of a step: O(width^2 log width + width * length) (token lists are copied).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/text_stream.h"

namespace kvlink::engine {

// The most likely next tokens of one beam, descending; shared, since children keep them.
using TopList = std::shared_ptr<const std::vector<TokenLogprob>>;

struct BeamParams {
  uint32_t width = 1;
  uint32_t max_tokens = 1;
  float length_penalty = 1.0f;
  bool ignore_eos = false;
  std::vector<std::string> stops;
};

class BeamSearch {
 public:
  struct Beam {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;  // [tokens]
    std::vector<TopList> tops;    // [tokens]: the list that each token was taken from
    double sum = 0;               // of logprobs
    TextStream text;              // fed only when there are stop strings
  };
  struct Hypothesis {
    Beam beam;  // tokens without the end token; sum with it
    double score = 0;
    FinishReason reason = FinishReason::kStop;
    std::string stop_text;
  };

  // The tokenizer must outlive the search.
  BeamSearch(BeamParams params, const model::Tokenizer& tokenizer);

  const std::vector<Beam>& beams() const { return beams_; }  // that live; at first one, empty
  size_t candidates_needed() const { return 2 * size_t{params_.width}; }

  // Requires: !done(), one list of candidates_needed() tokens (or the whole vocabulary) a beam.
  // Returns, for each of the new beams(), the old beam that it continues.
  std::vector<uint32_t> Step(std::span<const TopList> candidates);
  bool done() const { return done_; }

  // Ends the search now: live beams become hypotheses with this reason.
  void Stop(FinishReason reason);
  const std::vector<Hypothesis>& hypotheses() const { return hypotheses_; }  // best first

 private:
  struct Continuation;
  std::vector<Continuation> BestContinuations(std::span<const TopList> candidates) const;
  Beam Extend(const Continuation& best, std::span<const TopList> candidates) const;
  void Add(Beam beam, uint32_t length, FinishReason reason);

  BeamParams params_;
  const model::Tokenizer& tokenizer_;
  std::vector<Beam> beams_;
  std::vector<Hypothesis> hypotheses_;
  uint32_t length_ = 0;  // generated tokens of a live beam
  bool done_ = false;
};

}  // namespace kvlink::engine
