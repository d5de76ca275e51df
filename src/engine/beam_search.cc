#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvlink::engine {

struct BeamSearch::Continuation {
  double sum = 0;
  uint32_t beam = 0;
  TokenLogprob next;
};

BeamSearch::BeamSearch(BeamParams params, const model::Tokenizer& tokenizer)
    : params_(std::move(params)), tokenizer_(tokenizer) {
  beams_.push_back({.text = TextStream(params_.stops)});
}

std::vector<BeamSearch::Continuation> BeamSearch::BestContinuations(
    std::span<const TopList> candidates) const {
  std::vector<Continuation> all;
  for (uint32_t b = 0; b < beams_.size(); ++b) {
    const size_t count = std::min(candidates[b]->size(), candidates_needed());
    for (size_t i = 0; i < count; ++i) {
      const TokenLogprob& next = (*candidates[b])[i];
      all.push_back({beams_[b].sum + double{next.logprob}, b, next});
    }
  }
  const size_t keep = std::min(all.size(), candidates_needed());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(keep), all.end(),
                    [](const Continuation& x, const Continuation& y) {
                      if (x.sum != y.sum) return x.sum > y.sum;
                      if (x.beam != y.beam) return x.beam < y.beam;
                      return x.next.token < y.next.token;
                    });
  all.resize(keep);
  return all;
}

BeamSearch::Beam BeamSearch::Extend(const Continuation& best,
                                    std::span<const TopList> candidates) const {
  Beam beam = beams_[best.beam];
  beam.sum = best.sum;
  beam.tokens.push_back(best.next.token);
  beam.logprobs.push_back(best.next.logprob);
  beam.tops.push_back(candidates[best.beam]);
  if (!params_.stops.empty()) beam.text.Append(tokenizer_.Piece(best.next.token, false));
  return beam;
}

std::vector<uint32_t> BeamSearch::Step(std::span<const TopList> candidates) {
  KVLINK_CHECK(!done_ && candidates.size() == beams_.size());
  const std::vector<Continuation> best = BestContinuations(candidates);
  ++length_;
  std::vector<Beam> next;
  std::vector<uint32_t> parents;
  for (size_t rank = 0; rank < best.size() && next.size() < params_.width; ++rank) {
    const Continuation& c = best[rank];
    if (!params_.ignore_eos && tokenizer_.IsEndOfGeneration(c.next.token)) {
      if (rank >= params_.width) continue;
      Beam ended = beams_[c.beam];
      ended.sum = c.sum;
      Add(std::move(ended), length_, FinishReason::kStop);
      continue;
    }
    Beam beam = Extend(c, candidates);
    if (beam.text.stopped()) {
      if (rank < params_.width) Add(std::move(beam), length_, FinishReason::kStop);
      continue;
    }
    next.push_back(std::move(beam));
    parents.push_back(c.beam);
  }
  beams_ = std::move(next);
  const bool settled =
      hypotheses_.size() >= params_.width &&
      hypotheses_.back().score >= best[0].sum / std::pow(length_, params_.length_penalty);
  if (settled || beams_.empty()) {
    done_ = true;
  } else if (length_ >= params_.max_tokens) {
    Stop(FinishReason::kLength);
  }
  return parents;
}

void BeamSearch::Stop(FinishReason reason) {
  if (done_) return;
  for (Beam& beam : beams_) Add(std::move(beam), std::max(length_, 1u), reason);
  beams_.clear();
  done_ = true;
}

void BeamSearch::Add(Beam beam, uint32_t length, FinishReason reason) {
  Hypothesis hypothesis;
  hypothesis.score = beam.sum / std::pow(length, params_.length_penalty);
  hypothesis.reason = reason;
  hypothesis.stop_text = beam.text.stop_text();
  hypothesis.beam = std::move(beam);
  const auto place =
      std::upper_bound(hypotheses_.begin(), hypotheses_.end(), hypothesis.score,
                       [](double score, const Hypothesis& other) { return score > other.score; });
  hypotheses_.insert(place, std::move(hypothesis));
  if (hypotheses_.size() > params_.width) hypotheses_.pop_back();
}

}  // namespace kvlink::engine
