#include "engine/testing/harness.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/random.h"
#include "engine/testing/reference.h"
#include "engine/utf8_stream.h"

namespace kvlink::engine {

void Outcome::Take(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (finished_ > 0) ++late_;
  switch (event.kind) {
    case Event::Kind::kStarted:
      ++started_;
      started_report_ = *event.report;
      break;
    case Event::Kind::kToken:
      events_.push_back(event.token);
      break;
    case Event::Kind::kFinished:
      ++finished_;
      report_ = event.report;
      break;
  }
  changed_.notify_all();
}

void Outcome::WaitUntilFinished() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ > 0; });
}

void Outcome::WaitUntilStarted() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started_ > 0; });
}

bool Outcome::finished() const { return times_finished() > 0; }
int Outcome::times_finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}
int Outcome::times_started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}
int Outcome::events_after_finish() const {
  const std::lock_guard lock(mutex_);
  return late_;
}
size_t Outcome::streamed_tokens() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}
RequestReport Outcome::started_report() const {
  const std::lock_guard lock(mutex_);
  return started_report_;
}

std::vector<TokenId> Outcome::StreamedTokens(uint32_t branch) const {
  std::vector<TokenId> tokens;
  for (const TokenEvent& event : events_) {
    if (event.branch == branch && event.token >= 0) tokens.push_back(event.token);
  }
  return tokens;
}

std::string Outcome::StreamedText(uint32_t branch) const {
  std::string text;
  for (const TokenEvent& event : events_) {
    if (event.branch != branch) continue;
    EXPECT_TRUE(IsValidUtf8(event.text)) << "an event cuts a character";
    text += event.text;
  }
  return text;
}

HarnessOptions NoEos(uint32_t max_sequences) {
  HarnessOptions options;
  options.model.eos_bias = -100;
  options.engine.max_sequences = max_sequences;
  return options;
}

Harness::Harness(HarnessOptions options) : model_(options.model) {
  CacheOptions cache;
  cache.shape = model_.kv_shape();
  cache.sharing = options.sharing;
  cache.budget_bytes = options.pages * cache.shape.page_bytes();
  cache.model_fingerprint = model_.fingerprint();
  cache.poison = true;
  cache.similar = options.similar;
  cache.tiers = options.tiers;
  for (SimilarTrials& trials : cache.similar_model.calibrated) trials = options.calibrated;
  auto created = CreateCache(cache);
  KVLINK_CHECK(created.ok()) << created.status().message();
  cache_ = std::move(*created);
  model_.counters().on_run = [this] { Gate(); };
  if (!options.engine.new_sampler) options.engine.new_sampler = NewFakeSampler;
  auto engine = Engine::Create(model_, *cache_, options.engine);
  KVLINK_CHECK(engine.ok()) << engine.status().message();
  engine_ = std::move(*engine);
}

void Harness::Gate() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    call = on_run_;
  }
  if (call) call();  // may Hold
  std::unique_lock lock(mutex_);
  if (!hold_) return;
  held_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !hold_; });
}

void Harness::Hold() {
  const std::lock_guard lock(mutex_);
  hold_ = true;
}

void Harness::WaitUntilHeld() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return held_; });
}

void Harness::Release() {
  const std::lock_guard lock(mutex_);
  hold_ = held_ = false;
  changed_.notify_all();
}

void Harness::OnRun(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  on_run_ = std::move(call);
}

std::shared_ptr<Outcome> Harness::Submit(const GenerationRequest& request, RequestId* id) {
  auto outcome = std::make_shared<Outcome>();
  const auto submitted =
      engine_->Submit(request, [outcome](const Event& event) { outcome->Take(event); });
  KVLINK_CHECK(submitted.ok()) << submitted.status().message();
  if (id != nullptr) *id = *submitted;
  return outcome;
}

std::shared_ptr<Outcome> Harness::Run(const GenerationRequest& request) {
  auto outcome = Submit(request);
  outcome->WaitUntilFinished();
  return outcome;
}

void Harness::ExpectIdle() {
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.cache.in_use_pages, 0u);
  EXPECT_EQ(stats.cache.free_pages + stats.cache.cached_pages, stats.cache.total_pages);
  EXPECT_EQ(stats.finished, stats.requests);
  EXPECT_EQ(stats.callback_errors, 0u);
}

void Harness::ExpectReference(const GenerationRequest& request, const Outcome& outcome) {
  const std::vector<BranchResult> expected = Reference(model_, engine_->options(), request);
  const RequestReport& report = outcome.report();
  ASSERT_TRUE(report.status.ok()) << report.status.message();
  ASSERT_EQ(report.branches.size(), expected.size());
  const bool scored = request.logprobs >= 0 || request.beam_search || request.best_of > request.n;
  for (uint32_t b = 0; b < expected.size(); ++b) {
    const BranchResult& branch = report.branches[b];
    ASSERT_EQ(branch.tokens, expected[b].tokens) << "branch " << b;
    ASSERT_EQ(branch.text, expected[b].text) << "branch " << b;
    ASSERT_EQ(branch.stop_text, expected[b].stop_text);
    if (!request.beam_search) {
      ASSERT_EQ(branch.reason, expected[b].reason);
    }
    if (scored) {
      ASSERT_NEAR(branch.cumulative_logprob, expected[b].cumulative_logprob, 1e-3);
    }
    ASSERT_EQ(outcome.StreamedTokens(b), branch.tokens);
    ASSERT_EQ(outcome.StreamedText(b), branch.text);
    ASSERT_EQ(model_.tokenizer().Decode({branch.tokens.data(), branch.text_tokens}, false),
              branch.text.substr(0, branch.text_bytes));
  }
}

std::vector<TokenId> Prompt(uint32_t length, uint64_t seed) {
  base::Random random(seed);
  std::vector<TokenId> tokens(length);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(1 + random.Below(FakeModel::kVocabulary - 1));
  }
  return tokens;
}

std::vector<TokenId> Joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

GenerationRequest Greedy(std::vector<TokenId> prompt, uint32_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

}  // namespace kvlink::engine
