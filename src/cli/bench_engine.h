// A benchmark target in this process: a fresh cache and engine on a loaded model, as one mode
// (sharing off, exact) needs.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/divergence.h"
#include "engine/engine.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "server/prompt_builder.h"

namespace kvlink::cli {

struct BenchEngineOptions {
  Sharing sharing = Sharing::kExact;
  uint64_t kv_bytes = 0;
  uint32_t max_branches = 1;  // sequences running at once
  bool ignore_eos = false;
  // Parameters and model of similar reuse, as SetUpSimilar fills them in; off by default.
  SimilarOptions similar;
  SimilarModel similar_model;
  TierOptions tiers;  // none by default
  engine::EngineOptions engine;
};

// A greedy answer with the most likely tokens of each step.
struct ListedAnswer {
  std::string error;  // empty: answered
  std::vector<TokenId> prompt, tokens;
  std::vector<std::vector<ListedToken>> listed;  // [tokens]
  uint32_t similar_tokens = 0;                   // rows of a donor that it stands on
};

class BenchEngine : public BenchTarget {
 public:
  static Result<std::unique_ptr<BenchEngine>> Create(const model::Model& model,
                                                     const BenchEngineOptions& options);
  TurnOutcome Answer(const TurnRequest& request) override;
  // Greedily and past the end of generation, to max_tokens; nothing is remembered.
  ListedAnswer AnswerListed(const TurnRequest& request);

  // Figures of what ran since Create; `wall_s` is the time it took.
  EngineFigures Figures(double wall_s) const;
  engine::EngineStats stats() const { return engine_->Stats(); }

 private:
  BenchEngine(const model::Model& model, std::unique_ptr<Cache> cache,
              std::unique_ptr<engine::Engine> engine, bool ignore_eos, SimilarPolicy similar);

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<engine::Engine> engine_;
  server::PromptBuilder prompts_;
  const bool ignore_eos_;
  const SimilarPolicy similar_;
};

// Bytes of KV with which any `concurrency` requests of the workload run at once without sharing
// anything: what every mode gets unless told otherwise. Prompts are bounded by tokenising the
// messages and the longest answers.
uint64_t KvBytesWithoutSharing(const Workload& workload, const model::Tokenizer& tokenizer,
                               const KvShape& shape, uint32_t concurrency, uint32_t context);

}  // namespace kvlink::cli
