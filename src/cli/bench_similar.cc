#include "cli/bench_similar.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cli/calibrate_trial.h"
#include "cli/divergence.h"
#include "engine/logprobs.h"

namespace kvlink::cli {
namespace {

constexpr std::chrono::seconds kPatience{300};  // for shadows

// Before anything ran: the request was computed exactly from the start.
bool IsForward(SimilarReason reason) {
  switch (reason) {
    case SimilarReason::kGarbled:
    case SimilarReason::kBlastRadius:
    case SimilarReason::kDiverged:
    case SimilarReason::kStale:
    case SimilarReason::kScore:
    case SimilarReason::kTimeout:
      return false;
    default:
      return true;
  }
}

void WaitForShadows(const BenchEngine& engine) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < until) {
    const engine::EngineStats stats = engine.stats();
    if (stats.shadows_waiting + stats.running + stats.waiting == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The listed tokens' log-probabilities in a row of logits.
std::vector<ListedToken> ListedOf(std::span<const ListedToken> tokens,
                                  std::span<const float> logits) {
  const double log_sum = engine::LogSumExp(logits);
  std::vector<ListedToken> listed;
  for (const ListedToken& token : tokens) {
    const double logit = logits[static_cast<size_t>(token.token)];
    listed.push_back({token.token, static_cast<float>(logit - log_sum)});
  }
  return listed;
}

// Sums over what was compared.
struct Comparison {
  std::vector<double> kl;  // mean over an answer's tokens, one a request
  uint64_t same = 0, tokens = 0, same_first = 0;
};

Status CompareOne(PromptRunner& runner, Cache& exact, const ListedAnswer& answer,
                  Comparison* comparison) {
  LookupRequest request;
  request.tokens = answer.prompt;
  request.max_new_tokens = kForced;
  auto sequence = exact.Begin(request, exact.Lookup(request));
  if (!sequence.ok()) return sequence.status();
  auto logits = runner.RunPrompt(**sequence, answer.prompt);
  if (!logits.ok()) return logits.status();
  if (answer.tokens.size() > 1) {
    const std::span<const TokenId> tokens = answer.tokens;
    auto rest = runner.Force(**sequence, tokens.first(tokens.size() - 1));
    if (!rest.ok()) return rest.status();
    logits->insert(logits->end(), rest->begin(), rest->end());
  }
  const uint32_t vocab = runner.vocab_size();
  double sum = 0;
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    const std::span<const float> row = std::span(*logits).subspan(i * vocab, vocab);
    sum += ListedDivergence(ListedOf(answer.listed[i], row), answer.listed[i]);
    const bool same = Likeliest(row) == answer.tokens[i];
    comparison->same += same ? 1 : 0;
    comparison->same_first += same && i == 0 ? 1 : 0;
    ++comparison->tokens;
  }
  comparison->kl.push_back(sum / static_cast<double>(answer.tokens.size()));
  return Status::Ok();
}

}  // namespace

SimilarFigures SimilarFiguresOf(const engine::EngineStats& stats) {
  SimilarFigures figures;
  const CacheStats& cache = stats.cache;
  figures.similar_tokens = cache.similar_tokens;
  figures.enlarged = cache.similar_enlarged;
  figures.match_ns = cache.similar_match_ns;
  for (size_t i = 0; i < cache.similar_outcomes.size(); ++i) {
    const auto reason = static_cast<SimilarReason>(i);
    const uint64_t count = cache.similar_outcomes[i];
    if (reason == SimilarReason::kNone) {
      figures.accepted = count;
    } else if (count > 0) {
      (IsForward(reason) ? figures.rejected : figures.fallbacks)[SimilarReasonName(reason)] = count;
    }
  }
  return figures;
}

void AddShadows(const BenchEngine& engine, SimilarFigures* figures) {
  WaitForShadows(engine);
  const engine::EngineStats stats = engine.stats();
  figures->shadow_tokens = stats.shadow_tokens;
  figures->shadows = stats.cache.shadows;
  figures->shadow_failures = stats.cache.shadow_failures;
}

Status AddDistances(const model::Model& model, const Workload& workload,
                    const BenchEngineOptions& options, size_t most_answers,
                    SimilarFigures* figures) {
  BenchEngineOptions without_shadows = options;
  without_shadows.similar.always_shadowed = 0;
  without_shadows.similar.shadow_share = 0;
  auto engine = BenchEngine::Create(model, without_shadows);
  if (!engine.ok()) return engine.status();
  auto runner =
      PromptRunner::Create(model, options.engine.num_threads, options.engine.chunk_tokens);
  if (!runner.ok()) return runner.status();
  CacheOptions cache_options;
  cache_options.shape = model.kv_shape();
  cache_options.model_fingerprint = model.fingerprint();
  cache_options.budget_bytes = options.kv_bytes;
  auto exact = CreateCache(cache_options);
  if (!exact.ok()) return exact.status();

  Comparison comparison;
  for (const Conversation& conversation : workload.conversations) {
    if (comparison.kl.size() >= most_answers) break;
    if (conversation.turns.empty()) continue;
    TurnRequest turn{conversation.tenant, conversation.turns.front().messages, kForced, 1, {}};
    const ListedAnswer answer = (*engine)->AnswerListed(turn);
    if (!answer.error.empty()) return Status(StatusCode::kInternal, answer.error);
    if (answer.similar_tokens == 0 || answer.tokens.empty()) continue;
    if (Status status = CompareOne(*runner, **exact, answer, &comparison); !status.ok()) {
      return status;
    }
  }
  figures->compared = comparison.kl.size();
  if (comparison.kl.empty()) return Status::Ok();
  for (const double kl : comparison.kl) {
    figures->mean_kl += kl / static_cast<double>(comparison.kl.size());
  }
  figures->p95_kl = Percentile(comparison.kl, 0.95);
  figures->top1_agreement =
      static_cast<double>(comparison.same) / static_cast<double>(comparison.tokens);
  figures->first_agreement =
      static_cast<double>(comparison.same_first) / static_cast<double>(comparison.kl.size());
  return Status::Ok();
}

}  // namespace kvlink::cli
