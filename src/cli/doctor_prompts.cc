#include "cli/doctor_prompts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kvlink/cache.h"
#include "server/answer.h"
#include "server/prompt_builder.h"

namespace kvlink::cli {
namespace {

constexpr const char* kUnknownAnswer = "(answer)";
constexpr uint64_t kOpenTrials = 100'000;  // every class of edits may borrow
constexpr uint32_t kNarrowWindow = 4;
constexpr uint32_t kTokensBefore = 8;  // as the server shows

struct Prompt {
  Namespace ns;
  server::BuiltPrompt built;
};

// Pages of as many rows as the model's, and as small as can be.
KvShape SmallShape(const KvShape& real) {
  KvShape shape;
  shape.num_layers = 1;
  shape.num_kv_heads = 1;
  shape.head_dim = 8;
  shape.tokens_per_block = real.tokens_per_block;
  return shape;
}

class Replay {
 public:
  Replay(const model::Model& model, const ReplayOptions& options)
      : model_(model), options_(options) {}

  // Prompts in the order of the file, each with what came before it in its conversation.
  Status Build(const Workload& workload) {
    auto cache = NewCache(SimilarPolicy::kOff, 0);
    if (!cache.ok()) return cache.status();
    const server::PromptBuilder builder(model_.tokenizer(), **cache);
    for (const Conversation& conversation : workload.conversations) {
      std::vector<model::ChatMessage> history;
      for (const Turn& turn : conversation.turns) {
        history.insert(history.end(), turn.messages.begin(), turn.messages.end());
        const Namespace ns{conversation.tenant, ""};
        auto built = builder.FromChat(ns, history, "", /*add_generation_prompt=*/true);
        if (!built.ok()) {
          return {built.status().code(), conversation.id + ": " + built.status().message()};
        }
        prompts_.push_back({ns, *std::move(built)});
        history.push_back({"assistant", turn.assistant.value_or(kUnknownAnswer), ""});
      }
    }
    return Status::Ok();
  }

  // Adds a line a prompt to `facts`. `window` 0: the options' own.
  Status Run(SimilarPolicy policy, uint32_t window, const std::function<void(double)>& progress,
             DoctorFacts* facts) const {
    auto cache = NewCache(policy, window);
    if (!cache.ok()) return cache.status();
    const server::PromptBuilder builder(model_.tokenizer(), **cache);
    for (size_t i = 0; i < prompts_.size(); ++i) {
      RunOne(builder, prompts_[i], policy, **cache, facts);
      progress(static_cast<double>(i + 1) / static_cast<double>(prompts_.size()));
    }
    const CacheStats stats = (*cache)->Stats();
    facts->evicted_blocks = stats.evicted_blocks;
    facts->stored_blocks = stats.stored_blocks;
    return Status::Ok();
  }

 private:
  Result<std::unique_ptr<Cache>> NewCache(SimilarPolicy policy, uint32_t window) const {
    CacheOptions options;
    options.shape = SmallShape(model_.kv_shape());
    const uint64_t pages = options_.kv_bytes / model_.kv_shape().page_bytes();
    options.budget_bytes = std::max<uint64_t>(pages, 1) * options.shape.page_bytes();
    options.model_fingerprint = "replay";
    options.similar.policy = SimilarPolicy::kOff;
    if (policy == SimilarPolicy::kOff) return CreateCache(std::move(options));
    options.similar = options_.similar;
    options.similar.policy = policy;
    // Which rows are lent does not depend on how they would be mended.
    options.similar.mode = ReuseMode::kSeam;
    options.similar.max_reuse_distance = 1;
    if (window != 0) options.similar.fingerprint_window = options.similar.short_window = window;
    options.similar_model = options_.similar_model;
    return CreateCache(std::move(options));
  }

  void RunOne(const server::PromptBuilder& builder, const Prompt& prompt, SimilarPolicy policy,
              Cache& cache, DoctorFacts* facts) const {
    LookupRequest request;
    request.tokens = prompt.built.tokens;
    request.ns = prompt.ns;
    request.similar = policy;
    const Plan plan = cache.Lookup(request);
    if (!plan.similar) {
      // Exact: what a server would compute and keep.
      request.similar = SimilarPolicy::kOff;
      auto sequence = cache.Begin(request, cache.Lookup(request));
      if (!sequence.ok()) {
        ++facts->too_long;
        return;
      }
      const uint32_t ready = (*sequence)->num_ready();
      if (ready < prompt.built.tokens.size()) {
        (*sequence)->Commit(std::span(prompt.built.tokens).subspan(ready));
      }
    }
    facts->requests.push_back(FactsOf(builder, prompt, plan, policy));
  }

  RequestFacts FactsOf(const server::PromptBuilder& builder, const Prompt& prompt, const Plan& plan,
                       SimilarPolicy policy) const {
    const std::vector<TokenId>& tokens = prompt.built.tokens;
    const model::Tokenizer& tokenizer = model_.tokenizer();
    RequestFacts facts;
    facts.space = prompt.ns.tenant;
    facts.prompt_tokens = static_cast<uint32_t>(tokens.size());
    facts.partial = std::min(plan.partial_tokens, plan.compute_from);
    facts.exact = plan.compute_from - facts.partial;
    if (plan.similar) facts.similar = plan.similar->reused_rows;
    if (plan.similar) facts.edit = EditClassName(plan.similar->edit);
    if (policy != SimilarPolicy::kOff) {
      facts.verdict = plan.similar ? "accepted" : SimilarReasonName(plan.similar_reason);
    }
    facts.miss_reason = MissReasonName(plan.miss_reason);
    facts.match_ms = plan.match_us / 1e3;
    // The time to the first token is what computing would take.
    const uint32_t rows = facts.prompt_tokens - plan.compute_from - facts.similar;
    facts.first_token_ms = facts.match_ms + rows * options_.similar_model.prefill_us_per_row / 1e3;
    facts.sketch = server::SketchPrompt(tokens);
    if (plan.miss_reason == MissReason::kNone || plan.diverged_at >= tokens.size()) return facts;
    facts.diverged_at = plan.diverged_at;
    if (const auto message = builder.MessageAt(prompt.built, plan.diverged_at);
        message && plan.miss_reason != MissReason::kCold) {
      facts.message = static_cast<uint32_t>(*message);
    }
    const uint32_t first = plan.diverged_at - std::min(plan.diverged_at, kTokensBefore);
    facts.token = server::TokenText(tokenizer.Piece(tokens[plan.diverged_at], true));
    facts.after = server::TokenText(
        tokenizer.Decode(std::span(tokens).subspan(first, plan.diverged_at - first), true));
    return facts;
  }

  const model::Model& model_;
  const ReplayOptions& options_;
  std::vector<Prompt> prompts_;
};

uint64_t SimilarRows(const DoctorFacts& facts) {
  uint64_t rows = 0;
  for (const RequestFacts& request : facts.requests) rows += request.similar;
  return rows;
}

}  // namespace

Result<DoctorFacts> ReplayPrompts(const model::Model& model, const Workload& workload,
                                  const ReplayOptions& given,
                                  const std::function<void(double)>& progress) {
  ReplayOptions options = given;
  for (SimilarTrials& trials : options.similar_model.calibrated) {
    if (trials.trials == 0 && !given.similar_is_on) trials.trials = kOpenTrials;
  }
  Replay replay(model, options);
  if (Status status = replay.Build(workload); !status.ok()) return status;
  DoctorFacts facts;
  facts.similar = given.similar_is_on ? "on" : "off";
  facts.budget_bytes = given.kv_bytes;
  const auto part = [&](int number) {
    return [&progress, number](double share) { progress((number + share) / 3); };
  };
  const auto policy = given.similar_is_on ? SimilarPolicy::kOn : SimilarPolicy::kOff;
  if (Status status = replay.Run(policy, 0, part(0), &facts); !status.ok()) return status;
  facts.num_requests = facts.requests.size();

  // What similar reuse would lend, and whether narrower windows find more. A model whose attention
  // permits none of it has neither.
  DoctorFacts similar, narrow;
  if (!replay.Run(SimilarPolicy::kOn, 0, part(1), &similar).ok()) return facts;
  facts.lendable_rows = SimilarRows(similar);
  if (!replay.Run(SimilarPolicy::kOn, kNarrowWindow, part(2), &narrow).ok()) return facts;
  facts.narrow_window = kNarrowWindow;
  const size_t size = std::min(similar.requests.size(), narrow.requests.size());
  for (size_t i = 0; i < size; ++i) {
    const bool only_narrow =
        similar.requests[i].verdict == "no_donor" && narrow.requests[i].verdict == "accepted";
    facts.found_only_narrow += only_narrow ? 1 : 0;
  }
  return facts;
}

}  // namespace kvlink::cli
