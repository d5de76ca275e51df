// Harness: an engine on the fake model and a real cache, with requests whose events are collected.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/fake_model.h"

namespace kvlink::engine {

// What a request's callback saw. Any thread.
class Outcome {
 public:
  void Take(const Event& event);
  void WaitUntilFinished();
  void WaitUntilStarted();

  bool finished() const;
  int times_finished() const;
  int times_started() const;
  int events_after_finish() const;
  // After WaitUntilFinished:
  const RequestReport& report() const { return *report_; }
  const std::vector<TokenEvent>& events() const { return events_; }
  RequestReport started_report() const;
  size_t streamed_tokens() const;  // streamed so far
  std::vector<TokenId> StreamedTokens(uint32_t branch) const;
  std::string StreamedText(uint32_t branch) const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const RequestReport> report_;
  RequestReport started_report_;
  std::vector<TokenEvent> events_;
  int finished_ = 0, started_ = 0, late_ = 0;
};

struct HarnessOptions {
  EngineOptions engine;
  FakeModelOptions model;
  uint32_t pages = 256;
  Sharing sharing = Sharing::kExact;
  SimilarOptions similar;
  TierOptions tiers;
  SimilarTrials calibrated = {.trials = 60, .failures = 0};  // of each class of edits
};

// Answers are as long as they may be.
HarnessOptions NoEos(uint32_t max_sequences = EngineOptions{}.max_sequences);

class Harness {
 public:
  explicit Harness(HarnessOptions options = {});

  std::shared_ptr<Outcome> Submit(const GenerationRequest& request, RequestId* id = nullptr);
  std::shared_ptr<Outcome> Run(const GenerationRequest& request);  // to the end

  // The engine stops inside the model's next Run until Release.
  void Hold();
  void WaitUntilHeld();
  void Release();
  // Called by each Run, on the engine thread.
  void OnRun(std::function<void()> call);

  // What must hold when nothing runs.
  void ExpectIdle();
  // The report and the stream of a request that ran to its end are the reference's.
  void ExpectReference(const GenerationRequest& request, const Outcome& outcome);

  FakeModel& model() { return model_; }
  Cache& cache() { return *cache_; }
  Engine& engine() { return *engine_; }
  void Destroy() { engine_.reset(); }

 private:
  void Gate();

  FakeModel model_;
  std::unique_ptr<Cache> cache_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hold_ = false, held_ = false;
  std::function<void()> on_run_;
  std::unique_ptr<Engine> engine_;
};

// `length` tokens that depend on the seed; none is the end token.
std::vector<TokenId> Prompt(uint32_t length, uint64_t seed);
std::vector<TokenId> Joined(std::vector<TokenId> a, const std::vector<TokenId>& b);
GenerationRequest Greedy(std::vector<TokenId> prompt, uint32_t max_tokens);

}  // namespace kvlink::engine
