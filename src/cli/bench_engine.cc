#include "cli/bench_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace kvlink::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start, SteadyClock::time_point now) {
  return std::chrono::duration<double>(now - start).count();
}

// One request under way: the engine's thread notes events, the user's thread waits.
constexpr int kListed = 64;  // tokens of a step

class Pending {
 public:
  explicit Pending(SteadyClock::time_point start) : start_(start) {}

  void Note(const engine::Event& event) {
    const auto now = SteadyClock::now();
    const std::lock_guard lock(mutex_);
    if (event.kind == engine::Event::Kind::kToken && event.token.token >= 0) {
      if (last_.empty()) outcome_.ttft_s = SecondsSince(start_, now);
      if (!event.token.top.empty()) {
        std::vector<ListedToken>& listed = listed_.emplace_back();
        for (const auto& top : event.token.top) listed.push_back({top.token, top.logprob});
      }
      const auto [last, first_of_branch] = last_.try_emplace(event.token.branch, now);
      if (!first_of_branch) {
        outcome_.itl_s.push_back(SecondsSince(last->second, now));
        last->second = now;
      }
    } else if (event.kind == engine::Event::Kind::kFinished) {
      outcome_.latency_s = SecondsSince(start_, now);
      if (last_.empty()) outcome_.ttft_s = outcome_.latency_s;
      report_ = event.report;
      finished_.notify_one();
    }
  }

  // With log-probabilities: of each token; after Wait.
  std::vector<std::vector<ListedToken>>& listed() { return listed_; }

  std::pair<TurnOutcome, std::shared_ptr<const engine::RequestReport>> Wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return report_ != nullptr; });
    return {std::move(outcome_), report_};
  }

 private:
  const SteadyClock::time_point start_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::map<uint32_t, SteadyClock::time_point> last_;  // token of each branch
  TurnOutcome outcome_;
  std::vector<std::vector<ListedToken>> listed_;
  std::shared_ptr<const engine::RequestReport> report_;
};

TurnOutcome Failed(const std::string& error) {
  TurnOutcome outcome;
  outcome.error = error.empty() ? "unknown error" : error;
  return outcome;
}

const char* FailureOf(const engine::RequestReport& report) {
  for (const engine::BranchResult& branch : report.branches) {
    switch (branch.reason) {
      case engine::FinishReason::kStop:
      case engine::FinishReason::kLength:
        break;
      case engine::FinishReason::kCancelled:
        return "cancelled";
      case engine::FinishReason::kDeadline:
        return "deadline exceeded";
      case engine::FinishReason::kError:
        return "failed";
    }
  }
  return nullptr;
}

}  // namespace

BenchEngine::BenchEngine(const model::Model& model, std::unique_ptr<Cache> cache,
                         std::unique_ptr<engine::Engine> engine, bool ignore_eos,
                         SimilarPolicy similar)
    : cache_(std::move(cache)),
      engine_(std::move(engine)),
      prompts_(model.tokenizer(), *cache_),
      ignore_eos_(ignore_eos),
      similar_(similar) {}

Result<std::unique_ptr<BenchEngine>> BenchEngine::Create(const model::Model& model,
                                                         const BenchEngineOptions& options) {
  CacheOptions cache_options;
  cache_options.shape = model.kv_shape();
  cache_options.sharing = options.sharing;
  cache_options.budget_bytes = options.kv_bytes;
  cache_options.model_fingerprint = model.fingerprint();
  cache_options.similar = options.similar;
  cache_options.similar_model = options.similar_model;
  cache_options.tiers = options.tiers;
  auto cache = CreateCache(cache_options);
  if (!cache.ok()) return cache.status();
  engine::EngineOptions engine_options = options.engine;
  engine_options.max_sequences = options.max_branches;
  engine_options.shadow_tie_gap = options.similar.tie_gap;
  auto engine = engine::Engine::Create(model, **cache, engine_options);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<BenchEngine>(new BenchEngine(model, *std::move(cache), *std::move(engine),
                                                      options.ignore_eos, options.similar.policy));
}

TurnOutcome BenchEngine::Answer(const TurnRequest& turn) {
  const auto pending = std::make_shared<Pending>(SteadyClock::now());
  const Namespace ns{turn.tenant, ""};
  auto prompt = prompts_.FromChat(ns, turn.messages, "", /*add_generation_prompt=*/true);
  if (!prompt.ok()) return Failed(prompt.status().message());

  engine::GenerationRequest request;
  request.prompt = prompt->tokens;
  request.ns = ns;
  request.max_tokens = turn.max_tokens;
  request.n = turn.n;
  request.branch_seeds = turn.seeds;
  request.sampling.temperature = turn.seeds.empty() ? 0.0f : 0.8f;
  request.sampling.ignore_eos = ignore_eos_;
  request.similar = similar_;
  const auto id = engine_->Submit(std::move(request),
                                  [pending](const engine::Event& event) { pending->Note(event); });
  if (!id.ok()) return Failed(id.status().message());

  auto [outcome, report] = pending->Wait();
  if (!report->status.ok()) return Failed(report->status.message());
  if (const char* failure = FailureOf(*report)) return Failed(failure);
  outcome.prompt_tokens = report->prompt_tokens;
  outcome.cached_tokens = report->cached_tokens;
  outcome.computed_tokens = report->computed_tokens;
  outcome.generated_tokens = report->generated_tokens;
  for (const engine::BranchResult& branch : report->branches) {
    outcome.tokens.push_back(branch.tokens);
  }
  if (!report->branches.empty()) {
    const engine::BranchResult& first = report->branches.front();
    outcome.answer = first.text;
    prompts_.Remember(ns, *prompt, first, /*chat=*/true);
  }
  return outcome;
}

ListedAnswer BenchEngine::AnswerListed(const TurnRequest& turn) {
  ListedAnswer answer;
  const auto pending = std::make_shared<Pending>(SteadyClock::now());
  const Namespace ns{turn.tenant, ""};
  auto prompt = prompts_.FromChat(ns, turn.messages, "", /*add_generation_prompt=*/true);
  if (!prompt.ok()) {
    answer.error = prompt.status().message();
    return answer;
  }
  answer.prompt = prompt->tokens;
  engine::GenerationRequest request;
  request.prompt = prompt->tokens;
  request.ns = ns;
  request.max_tokens = turn.max_tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.similar = similar_;
  request.logprobs = kListed;
  const auto id = engine_->Submit(std::move(request),
                                  [pending](const engine::Event& event) { pending->Note(event); });
  if (!id.ok()) {
    answer.error = id.status().message();
    return answer;
  }
  const auto [outcome, report] = pending->Wait();
  const char* failure = FailureOf(*report);
  if (!report->status.ok() || failure != nullptr) {
    answer.error = report->status.ok() ? failure : report->status.message();
    return answer;
  }
  answer.similar_tokens = report->similar_tokens;
  answer.tokens = report->branches.front().tokens;
  answer.listed = std::move(pending->listed());
  answer.tokens.resize(std::min(answer.tokens.size(), answer.listed.size()));
  return answer;
}

EngineFigures BenchEngine::Figures(double wall_s) const {
  const engine::EngineStats stats = engine_->Stats();
  const CacheStats& cache = stats.cache;
  EngineFigures figures;
  figures.peak_kv_bytes = cache.peak_in_use_bytes;
  figures.running_at_peak = stats.running_at_peak_kv;
  figures.cached_bytes = cache.cached_bytes;
  if (wall_s > 0) figures.match_share = static_cast<double>(cache.match_ns) * 1e-9 / wall_s;
  // What is tracked: the KV that is there now; where nothing stays, the most that was.
  const uint64_t kv = std::max(cache.cached_bytes + cache.in_use_bytes, cache.peak_in_use_bytes);
  if (kv > 0) {
    figures.tracking_share = static_cast<double>(cache.tracking_bytes) / static_cast<double>(kv);
  }
  return figures;
}

uint64_t KvBytesWithoutSharing(const Workload& workload, const model::Tokenizer& tokenizer,
                               const KvShape& shape, uint32_t concurrency, uint32_t context) {
  constexpr uint64_t kTemplateTokens = 16;        // around a message, and a role
  constexpr uint64_t kDefaultSystemTokens = 128;  // templates that add a system prompt of their own
  std::vector<uint64_t> pages;                    // the most that each conversation holds at once
  for (const Conversation& conversation : workload.conversations) {
    uint64_t history = kDefaultSystemTokens, most = 0;
    const auto count = [&](const std::string& text) {
      return tokenizer.Encode(text, false, false).size() + kTemplateTokens;
    };
    for (const Turn& turn : conversation.turns) {
      for (const model::ChatMessage& message : turn.messages) history += count(message.content);
      const uint64_t rows = std::min<uint64_t>(history + turn.max_tokens, context);
      most = std::max(most, (rows / shape.tokens_per_block + 1) * turn.n);
      history += turn.assistant ? count(*turn.assistant) : turn.max_tokens + kTemplateTokens;
    }
    pages.push_back(most);
  }
  std::sort(pages.begin(), pages.end(), std::greater<>());
  pages.resize(std::min<size_t>(pages.size(), concurrency));
  uint64_t total = 0;
  for (const uint64_t count : pages) total += count;
  return total * shape.page_bytes();
}

}  // namespace kvlink::cli
