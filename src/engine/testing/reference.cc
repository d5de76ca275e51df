#include "engine/testing/reference.h"

#include <algorithm>
#include <cmath>

#include "engine/utf8_stream.h"

namespace kvlink::engine {
namespace {

std::vector<TokenId> Join(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  std::vector<TokenId> joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

std::vector<float> LogSoftmax(const std::vector<float>& logits) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  std::vector<float> result;
  for (const float x : logits) result.push_back(static_cast<float>(double{x} - std::log(sum)));
  return result;
}

// Bytes -> text as it is shown at the end.
std::string Shown(const std::string& bytes) {
  Utf8Stream stream;
  std::string text = stream.Append(bytes);
  return text + stream.Flush();
}

// Where the first stop string begins in the whole text; npos: nowhere.
size_t StopAt(const std::string& text, const std::vector<std::string>& stops, std::string& which) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (const std::string& stop : stops) {
      if (stop.empty() || stop.size() > end || stop.size() < which.size()) continue;
      if (text.compare(end - stop.size(), stop.size(), stop) == 0) which = stop;
    }
    if (!which.empty()) return end - which.size();
  }
  return std::string::npos;
}

// Text of the whole characters only, as far as the tokens go.
std::string WholeText(const FakeModel& model, const std::vector<TokenId>& tokens) {
  Utf8Stream stream;
  return stream.Append(model.tokenizer().Decode(tokens, false));
}

BranchResult SampleBranch(const FakeModel& model, const GenerationRequest& request,
                          uint32_t max_tokens, uint32_t branch, double& mean) {
  model::SamplingParams params = request.sampling;
  params.seed = request.branch_seeds.empty() ? params.seed + branch : request.branch_seeds[branch];
  auto sampler = NewFakeSampler(model, params);
  if (params.repetition_penalty != 1.0f) {
    for (const TokenId token : request.prompt) (*sampler)->Observe(token);
  }
  BranchResult result;
  double sum = 0;
  uint32_t sampled = 0;
  while (true) {
    const std::vector<float> logits = model.Logits(Join(request.prompt, result.tokens));
    const TokenId token = (*sampler)->Sample(logits.data());
    sum += double{LogSoftmax(logits)[static_cast<size_t>(token)]};
    ++sampled;
    if (token == FakeModel::kEos && !params.ignore_eos) {
      result.text = Shown(model.tokenizer().Decode(result.tokens, false));
      break;
    }
    result.tokens.push_back(token);
    const std::string text = WholeText(model, result.tokens);
    const size_t at = StopAt(text, request.stop, result.stop_text);
    if (at != std::string::npos) {
      result.text = text.substr(0, at);
      break;
    }
    if (result.tokens.size() == max_tokens) {
      result.reason = FinishReason::kLength;
      result.text = Shown(model.tokenizer().Decode(result.tokens, false));
      break;
    }
  }
  result.cumulative_logprob = sum;
  mean = sum / sampled;
  return result;
}

}  // namespace

std::vector<ReferenceHypothesis> ReferenceBeam(const FakeModel& model, const BeamParams& params,
                                               const std::vector<TokenId>& prompt) {
  std::vector<ReferenceHypothesis> live = {{}}, done;
  const auto by_score = [](const auto& a, const auto& b) { return a.score > b.score; };
  for (uint32_t length = 1; length <= params.max_tokens; ++length) {
    struct Next {
      double sum;
      size_t beam;
      TokenId token;
    };
    std::vector<Next> all;  // every token of every beam
    for (size_t b = 0; b < live.size(); ++b) {
      const auto logprobs = LogSoftmax(model.Logits(Join(prompt, live[b].tokens)));
      for (TokenId token = 0; token < static_cast<TokenId>(logprobs.size()); ++token) {
        all.push_back({live[b].sum + double{logprobs[static_cast<size_t>(token)]}, b, token});
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Next& a, const Next& b) { return a.sum > b.sum; });
    const double scale = std::pow(length, params.length_penalty);
    std::vector<ReferenceHypothesis> next;
    for (size_t rank = 0; rank < 2 * size_t{params.width} && next.size() < params.width; ++rank) {
      const Next& n = all[rank];
      ReferenceHypothesis h{live[n.beam].tokens, n.sum, n.sum / scale};
      if (n.token == FakeModel::kEos && !params.ignore_eos) {
        if (rank < params.width) done.push_back(h);
        continue;
      }
      h.tokens.push_back(n.token);
      next.push_back(h);
    }
    live = next;
    std::stable_sort(done.begin(), done.end(), by_score);
    if (done.size() > params.width) done.resize(params.width);
    if (done.size() == params.width && done.back().score >= all[0].sum / scale) return done;
  }
  for (const ReferenceHypothesis& h : live) done.push_back(h);
  std::stable_sort(done.begin(), done.end(), by_score);
  if (done.size() > params.width) done.resize(params.width);
  return done;
}

std::vector<BranchResult> Reference(const FakeModel& model, const EngineOptions& options,
                                    const GenerationRequest& request) {
  const uint32_t context = options.context > 0 ? options.context : model.info().context_train;
  const auto room = static_cast<uint32_t>(context - request.prompt.size());
  const uint32_t max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);
  const uint32_t width = std::max(request.n, request.best_of);
  std::vector<BranchResult> results;
  if (request.beam_search) {
    const BeamParams params{
        width, max_tokens, request.length_penalty, request.sampling.ignore_eos, {}};
    for (const ReferenceHypothesis& h : ReferenceBeam(model, params, request.prompt)) {
      BranchResult result;
      result.tokens = h.tokens;
      result.text = Shown(model.tokenizer().Decode(h.tokens, false));
      result.cumulative_logprob = h.sum;
      results.push_back(result);
    }
    if (results.size() > request.n) results.resize(request.n);
    return results;
  }
  std::vector<std::pair<double, BranchResult>> branches(width);
  for (uint32_t b = 0; b < width; ++b) {
    branches[b].second = SampleBranch(model, request, max_tokens, b, branches[b].first);
  }
  if (width > request.n) {
    std::stable_sort(branches.begin(), branches.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
  }
  for (uint32_t b = 0; b < request.n; ++b) results.push_back(branches[b].second);
  return results;
}

}  // namespace kvlink::engine
