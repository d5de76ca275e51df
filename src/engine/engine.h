// Engine: runs requests on one model with continuous batching over a shared KV cache.
//
// One engine thread owns sequences, scheduler and runner; any thread submits and cancels through
// queues of values, and receives events through the request's callback (called on the engine
// thread: must not block, must not throw).
//
// With best_of > n and with beam search the branches that are returned are known at the end only:
// their kToken events come then. `max_sequences` counts branches; a request with more of them runs
// as many at once and begins the others as these end, with the tokens they would have had at once.
// Beams advance together, so a search is never wider than that.
//
// Invariants
//   1. Every submitted request gets exactly one kFinished event (error, cancel and deadline
//      included), then none.
//   2. A request's tokens depend on its prompt, parameters and seed only, never on what runs beside
//      it.
//   3. Prefill rows of a step are bounded by `chunk_tokens`, so decode latency stays bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvlink/cache.h"
#include "kvlink/status.h"
#include "model/model.h"
#include "model/sampler.h"

namespace kvlink::engine {

using RequestId = uint64_t;

using Clock = std::function<std::chrono::steady_clock::time_point()>;
using SamplerFactory = std::function<Result<std::unique_ptr<model::Sampler>>(
    const model::Model&, const model::SamplingParams&)>;

struct EngineOptions {
  int num_threads = 1;
  uint32_t context = 0;         // most tokens of prompt + answer; 0: the model's
  uint32_t max_sequences = 16;  // running at once
  uint32_t max_branches = 128;  // n or best_of of a request; more are refused
  uint32_t chunk_tokens = 512;  // prefill rows a step
  uint32_t max_queue = 1024;    // waiting requests; more are refused
  std::chrono::milliseconds single_flight_patience{30000};  // a leader later than this is overtaken
  // Ageing: waiting longer than this outranks a longer hit.
  std::chrono::milliseconds starvation{2000};
  double shadow_tie_gap = 0;   // SimilarOptions::tie_gap
  Clock clock;                 // null: steady_clock::now
  SamplerFactory new_sampler;  // null: model::Sampler::Create
};

struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0;
};

struct GenerationRequest {
  std::vector<TokenId> prompt;
  Namespace ns;
  std::vector<std::string> own_scopes;  // others of the same tenant (LookupRequest)
  bool reuse = true, store = true;      // cache policy of this request
  // Not kOff: a similar prompt's rows may stand in for this one's, when the checks pass. Never with
  // prompt_logprobs, nor after a preemption.
  SimilarPolicy similar = SimilarPolicy::kOff;
  model::SamplingParams sampling;
  uint32_t max_tokens = 0;  // 0: as many as the context leaves
  // best_of 0: n. Branches fork the prompt; best_of > n keeps the best by mean logprob.
  uint32_t n = 1, best_of = 0;
  std::vector<uint64_t> branch_seeds;  // optional: one a branch; default sampling.seed + branch
  bool beam_search = false;            // best_of (or n) beams; no sampling
  // score = sum of logprobs / length^penalty; the end token counts in length.
  float length_penalty = 1.0f;
  std::vector<std::string> stop;          // the answer ends before the first of them
  int logprobs = -1;                      // top alternatives per generated token; -1: none
  int prompt_logprobs = -1;               // likewise for the prompt; forces computing it
  std::chrono::milliseconds deadline{0};  // from submission; 0: none
  uint32_t weight = 1;                    // of its tenant in fair turns
  uint32_t max_kv_tokens = 0;  // most tokens of prompt + answer by its tenant's quota; 0: none
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };

struct TokenEvent {  // one generated token of one branch
  uint32_t branch = 0;
  TokenId token = -1;  // -1: text only, the rest that was held back when the branch ended
  // What can be shown now: whole UTF-8 characters, held back while a stop string may be forming.
  std::string text;
  float logprob = 0;
  std::vector<TokenLogprob> top;  // descending
};

struct BranchResult {
  std::vector<TokenId> tokens;  // without the end-of-generation token
  std::string text;
  // The first text_tokens tokens spell exactly the first text_bytes of text (all of it, unless a
  // stop string cut a token or bytes were no UTF-8): what may be remembered as own output. The
  // engine remembers it alone; the server, which knows the prompt's text, may remember prompt +
  // answer.
  uint32_t text_tokens = 0;
  size_t text_bytes = 0;
  // With the end-of-generation token; only with logprobs, best_of > n or beam search.
  double cumulative_logprob = 0;
  FinishReason reason = FinishReason::kStop;
  std::string stop_text;  // the stop string that ended it, if one did
};

struct RequestReport {
  Status status;  // not ok with FinishReason::kError
  std::vector<BranchResult> branches;
  uint32_t prompt_tokens = 0;
  // Of all branches, end-of-generation tokens and branches that best_of drops included.
  uint32_t generated_tokens = 0;
  // Of the prompt; cached includes partial.
  uint32_t cached_tokens = 0, partial_tokens = 0, computed_tokens = 0;
  MissReason miss_reason = MissReason::kNone;
  uint32_t diverged_at = 0;
  // Similar reuse: rows taken from a donor in the answer as it left, and how it came to that
  // (kNone: accepted). Rows that ran for an attempt or its enlargement are in computed_tokens.
  uint32_t similar_tokens = 0;
  SimilarReason similar_reason = SimilarReason::kPolicy;
  double mask_similarity = 0;             // of the plan that was tried; 0: none was
  std::optional<EditClass> similar_edit;  // likewise
  bool enlarged = false, fell_back = false;
  uint32_t preemptions = 0;
  bool waited_for_leader = false;
  // Of cached_tokens: what this request loaded, by tier. What another one had loaded is RAM's.
  struct TierTokens {
    std::string tier;
    uint32_t tokens = 0;
  };
  std::vector<TierTokens> loaded;
  bool tiers_asked = false;  // there are colder tiers, and the request may use them
  uint32_t loaded_tokens() const {
    uint32_t sum = 0;
    for (const TierTokens& of_tier : loaded) sum += of_tier.tokens;
    return sum;
  }
  // [prompt_tokens]; first is empty; entry 0 is the token itself.
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
  double queue_ms = 0, prompt_ms = 0, predicted_ms = 0, first_token_ms = 0, total_ms = 0,
         match_ms = 0;
};

struct Event {
  enum class Kind : uint8_t { kStarted, kToken, kFinished } kind = Kind::kStarted;
  RequestId id = 0;
  TokenEvent token;  // kToken
  // kFinished; kStarted carries prompt/cached counts in it.
  std::shared_ptr<const RequestReport> report;
};
using EventCallback = std::function<void(const Event&)>;

struct EngineStats {
  uint64_t running = 0, waiting = 0, peak_running = 0, running_at_peak_kv = 0;
  uint64_t requests = 0, finished = 0, cancelled = 0, deadline_missed = 0, errors = 0, refused = 0,
           preemptions = 0;
  // computed_tokens: all prompt rows that ran, those of refused attempts included.
  uint64_t prompt_tokens = 0, cached_prompt_tokens = 0, similar_prompt_tokens = 0,
           computed_tokens = 0, generated_tokens = 0;
  uint64_t shadow_tokens = 0;  // rows that ran in idle time to try answers from similar rows
  uint64_t shadows_waiting = 0;
  uint64_t steps = 0;
  uint64_t callback_errors = 0;  // exceptions that callbacks threw
  CacheStats cache;
  std::vector<TierFigures> tiers;  // fastest first
  std::vector<TenantUse> tenants;  // that hold something, or have a quota
  uint64_t withheld_bytes = 0;     // of the KV budget, see Withhold
};

class Engine {
 public:
  virtual ~Engine() = default;  // cancels what runs, joins the engine thread
  static Result<std::unique_ptr<Engine>> Create(const model::Model& model, Cache& cache,
                                                const EngineOptions& options);

  // kInvalidArgument: empty prompt, prompt + 1 over the context or over the KV budget (with the
  // figures), bad n, best_of or logprobs. kResourceExhausted: the queue is full. The callback is
  // not called when Submit fails.
  virtual Result<RequestId> Submit(GenerationRequest request, EventCallback callback) = 0;
  virtual void Cancel(RequestId id) = 0;
  virtual EngineStats Stats() const = 0;
  virtual const model::Model& model() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual Cache& cache() = 0;
  // The cache does without so many bytes from the next step on (Cache::Withhold). Any thread.
  virtual void Withhold(uint64_t /*bytes*/) {}
};

}  // namespace kvlink::engine
