// Fakes: an engine without a model, for the server's tests.
//
// The tokenizer has a token a byte, tokens for "<|im_start|>", "<|im_end|>" (end of generation) and
// "<s>" (BOS), and one for each pair of small letters, which Encode prefers. The engine generates
// single bytes: so text that it generated tokenises otherwise than it was generated, as with real
// vocabularies. Its cache remembers prompts per tenant and salt and counts common prefixes; nothing
// is computed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace kvlink::server {

constexpr TokenId kImStart = 256, kImEnd = 257, kBos = 258, kFirstPair = 259;

class FakeTokenizer : public model::Tokenizer {
 public:
  enum class Template { kChatMl, kTrimming, kNone };
  // What it fills in the middle with, where that was switched on.
  static constexpr model::FillTokens kFillTokens{.prefix = 1, .suffix = 2, .middle = 3};
  explicit FakeTokenizer(Template chat_template = Template::kChatMl) : template_(chat_template) {}

  std::vector<TokenId> Encode(std::string_view text, bool add_special,
                              bool parse_special) const override;
  std::string Decode(std::span<const TokenId> tokens, bool special) const override;
  std::string Piece(TokenId token, bool special) const override;
  bool IsEndOfGeneration(TokenId token) const override { return token == kImEnd; }
  bool AddsBos() const override { return true; }
  TokenId bos() const override { return kBos; }
  TokenId eos() const override { return kImEnd; }
  model::FillTokens fill_tokens() const override { return fill_tokens_; }
  void set_fill_tokens(const model::FillTokens& tokens) { fill_tokens_ = tokens; }
  // Called when a text is encoded, by whoever does it. Before any is.
  void set_on_encode(std::function<void(std::string_view)> call) { on_encode_ = std::move(call); }
  uint32_t vocab_size() const override { return kFirstPair + 26 * 26; }
  Result<std::string> ApplyChatTemplate(std::span<const model::ChatMessage> messages,
                                        const std::string& tools_json,
                                        bool add_generation_prompt) const override;

 private:
  Template template_;
  model::FillTokens fill_tokens_;
  std::function<void(std::string_view)> on_encode_;
};

class FakeModel : public model::Model {
 public:
  explicit FakeModel(FakeTokenizer::Template chat_template = FakeTokenizer::Template::kChatMl);
  const model::ModelInfo& info() const override { return info_; }
  const KvShape& kv_shape() const override { return shape_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const model::Tokenizer& tokenizer() const override { return tokenizer_; }
  FakeTokenizer& fake_tokenizer() { return tokenizer_; }
  Result<std::unique_ptr<model::Runner>> NewRunner(int, uint32_t) const override;

 private:
  FakeTokenizer tokenizer_;
  model::ModelInfo info_;
  KvShape shape_;
  std::string fingerprint_ = "fake";
};

// Own outputs only; the rest of the interface is not for the server.
class FakeCache : public Cache {
 public:
  const KvShape& shape() const override { return shape_; }
  Plan Lookup(const LookupRequest&) const override { return {}; }
  Result<std::unique_ptr<Sequence>> Begin(const LookupRequest&, const Plan&) override;
  bool StillComputing(const InFlight&) const override { return false; }
  void CountWait() override {}
  void CountTakeover() override {}
  void RecordShadow(uint64_t, bool) override {}
  Result<uint32_t> Pin(const LookupRequest&, std::chrono::milliseconds) override {
    return uint32_t{0};
  }
  void Clear() override {}
  void Remember(const Namespace& ns, std::string_view text,
                std::span<const TokenId> tokens) override;
  std::optional<std::vector<TokenId>> Recall(const Namespace& ns,
                                             std::string_view text) const override;
  std::optional<Recalled> RecallPrefix(const Namespace& ns, std::string_view text) const override;
  CacheStats Stats() const override { return {}; }
  void SetQuota(const std::string& tenant, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    quotas_[tenant] = bytes;
  }
  std::map<std::string, uint64_t> quotas() const {  // as they were set last, 0 included
    const std::lock_guard lock(mutex_);
    return quotas_;
  }

 private:
  using Key = std::pair<std::string, std::string>;  // tenant, salt
  KvShape shape_{.num_layers = 1, .num_kv_heads = 1, .head_dim = 64};
  mutable std::mutex mutex_;
  std::map<Key, std::map<std::string, std::vector<TokenId>, std::less<>>> texts_;
  std::map<std::string, uint64_t> quotas_;
};

class FakeEngine : public engine::Engine {
 public:
  // What branch `branch` of a request says; default: "Hello world" and the branch.
  using Script = std::function<std::string(const engine::GenerationRequest&, uint32_t branch)>;

  explicit FakeEngine(const model::Model& model, engine::EngineOptions options = {});
  ~FakeEngine() override;

  Result<engine::RequestId> Submit(engine::GenerationRequest request,
                                   engine::EventCallback callback) override;
  void Cancel(engine::RequestId id) override;
  engine::EngineStats Stats() const override;
  const model::Model& model() const override { return model_; }
  const engine::EngineOptions& options() const override { return options_; }
  Cache& cache() override { return cache_; }
  FakeCache& fake_cache() { return cache_; }
  void Withhold(uint64_t bytes) override { withheld_ = bytes; }
  uint64_t withheld() const { return withheld_; }

  void set_script(Script script);
  // While held, nothing starts and no token is generated.
  void Hold();
  void Release();
  // Requests are refused, or finish with this status.
  void set_refusal(Status status);
  void set_total_pages(uint64_t pages);  // of the KV memory, for the figures alone
  void set_failure(Status status);
  void set_prompts_seen(std::vector<std::vector<TokenId>>* seen);  // under Hold or before use only
  uint64_t cancels() const;

 private:
  struct Running {
    engine::RequestId id = 0;
    engine::GenerationRequest request;
    engine::EventCallback callback;
    engine::RequestReport report;
    std::vector<std::string> texts;  // per branch, not yet generated past `done`
    size_t done = 0;                 // tokens a branch
    size_t limit = 0;
    std::vector<std::string> held;  // bytes of an unfinished character
    bool started = false, cancelled = false, ended = false;
  };

  void Loop();
  void Start(Running& running);
  void Step(Running& running);
  void Finish(Running& running, engine::FinishReason reason);
  uint32_t CachedTokens(const engine::GenerationRequest& request);

  const model::Model& model_;
  engine::EngineOptions options_;
  FakeCache cache_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<engine::RequestId, std::shared_ptr<Running>> running_;
  std::map<std::pair<std::string, std::string>, std::vector<std::vector<TokenId>>> stored_;
  std::vector<std::vector<TokenId>>* seen_ = nullptr;
  Script script_;
  Status refusal_, failure_;
  engine::EngineStats stats_{.cache = {.total_pages = 1 << 20}};
  std::atomic<uint64_t> withheld_{0};
  engine::RequestId next_id_ = 1;
  bool held_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace kvlink::server
