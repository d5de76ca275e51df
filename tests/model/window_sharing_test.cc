// Sliding windows and shared prefixes: pages keep every row, so a prefix is served from the cache
// whatever a window has left behind, with the answer of a cold run to the last bit. Whole engine
// and cache on made-up models whose prompts are longer than their windows of 100 tokens.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <future>
#include <string>

#include "engine/engine.h"
#include "kvlink/cache.h"
#include "model/testing/model_files.h"

namespace kvlink::engine {
namespace {

using Report = std::shared_ptr<const RequestReport>;

class Served {
 public:
  Served(const std::string& path, Sharing sharing, uint32_t pages) {
    model::LoadOptions load;
    load.path = path;
    auto model = model::Model::Load(load);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
    CacheOptions options;
    options.shape = model_->kv_shape();
    options.model_fingerprint = model_->fingerprint();
    options.sharing = sharing;
    options.budget_bytes = uint64_t{pages} * model_->kv_shape().page_bytes();
    auto cache = CreateCache(options);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    cache_ = *std::move(cache);
    EngineOptions engine_options;
    engine_options.chunk_tokens = 64;
    auto engine = Engine::Create(*model_, *cache_, engine_options);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }

  Report Run(const std::vector<TokenId>& prompt, uint32_t branches = 1) {
    GenerationRequest request;
    request.prompt = prompt;
    request.max_tokens = 12;
    request.n = branches;
    request.logprobs = 3;
    request.sampling.temperature = branches == 1 ? 0.0f : 1.0f;
    request.sampling.seed = 7;
    logprobs_.clear();
    std::promise<Report> done;
    auto id = engine_->Submit(std::move(request), [&](const Event& event) {
      if (event.kind == Event::Kind::kToken) logprobs_.push_back(event.token.logprob);
      if (event.kind == Event::Kind::kFinished) done.set_value(event.report);
    });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return done.get_future().get();
  }
  // Of the tokens of the last run.
  const std::vector<float>& logprobs() const { return logprobs_; }
  EngineStats Stats() const { return engine_->Stats(); }

 private:
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Engine> engine_;
  std::vector<float> logprobs_;
};

class WindowSharing : public testing::TestWithParam<std::string> {
 protected:
  WindowSharing() { EXPECT_TRUE(model::WriteTinyModel(model::TinyModelOf(GetParam()), path_)); }
  ~WindowSharing() override { std::filesystem::remove(path_); }

  // `shared` tokens that all prompts of a topic begin with, then `own` of its own.
  static std::vector<TokenId> Prompt(uint32_t topic, uint32_t shared, uint32_t own, uint32_t seed) {
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < shared; ++i)
      tokens.push_back(static_cast<TokenId>(3 + (i * (i + 11) + 37 * topic) % 290));
    for (uint32_t i = 0; i < own; ++i)
      tokens.push_back(static_cast<TokenId>(3 + (i * 13 + 101 * seed) % 290));
    return tokens;
  }
  void ExpectSame(Served& warm, Served& cold, const std::vector<TokenId>& prompt,
                  uint32_t branches = 1) {
    const Report a = warm.Run(prompt, branches), b = cold.Run(prompt, branches);
    ASSERT_EQ(a->branches.size(), b->branches.size());
    for (size_t i = 0; i < a->branches.size(); ++i)
      EXPECT_EQ(a->branches[i].tokens, b->branches[i].tokens);
    ASSERT_EQ(warm.logprobs().size(), cold.logprobs().size());
    for (size_t i = 0; i < warm.logprobs().size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(warm.logprobs()[i]),
                std::bit_cast<uint32_t>(cold.logprobs()[i]));
    }
    EXPECT_EQ(b->cached_tokens, 0u);
    last_ = a;
  }

  const std::string path_ = model::TestFolder() + "/window-" + GetParam() + ".gguf";
  Report last_;
};
INSTANTIATE_TEST_SUITE_P(Families, WindowSharing, testing::Values("gemma2", "gemma3"));

TEST_P(WindowSharing, PrefixesBeforeInAndPastTheWindowHitWithTheColdAnswer) {
  Served warm(path_, Sharing::kExact, 200), cold(path_, Sharing::kOff, 200);
  warm.Run(Prompt(1, 350, 0, 0));
  for (const uint32_t shared : {40u, 99u, 100u, 101u, 250u, 349u}) {
    ExpectSame(warm, cold, Prompt(1, shared, 60, shared));
    EXPECT_EQ(last_->cached_tokens, shared);
  }
}

TEST_P(WindowSharing, BranchesShareThePromptWithTheColdAnswer) {
  Served warm(path_, Sharing::kExact, 200), cold(path_, Sharing::kOff, 200);
  warm.Run(Prompt(2, 300, 0, 0));
  ExpectSame(warm, cold, Prompt(2, 280, 30, 1), /*branches=*/3);
  EXPECT_EQ(last_->cached_tokens, 280u);
}

TEST_P(WindowSharing, EvictionNeverLeavesAWrongPrefix) {
  // Room for about three prompts; five topics come back in turn.
  Served warm(path_, Sharing::kExact, 36), cold(path_, Sharing::kOff, 36);
  for (uint32_t i = 0; i < 20; ++i)
    ExpectSame(warm, cold, Prompt(i * i % 5, 200 + 10 * (i % 7), 40, i));
  EXPECT_GT(warm.Stats().cached_prompt_tokens, 500u);
  EXPECT_GT(warm.Stats().cache.evicted_blocks, 10u);
}

}  // namespace
}  // namespace kvlink::engine
