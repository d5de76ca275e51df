#include "cli/chat_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <mutex>
#include <random>
#include <utility>

#include "cli/byte_size.h"
#include "cli/command.h"
#include "cli/kv_budget.h"
#include "cli/machine.h"
#include "cli/model_file.h"
#include "kvlink/cache.h"
#include "server/prompt_builder.h"

namespace kvlink::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How often the progress of a prompt is looked at.
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kDrainPatience{10};
// A conversation, and room for the ones before it.
constexpr uint64_t kContexts = 4;

// Events of one request on their way from the engine's thread.
class Inbox {
 public:
  void Push(const engine::Event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_one();
  }
  std::deque<engine::Event> Take(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::Event> events_;
};

class EngineAnswerer : public Answerer {
 public:
  EngineAnswerer(engine::Engine& engine, std::string name)
      : engine_(engine),
        name_(std::move(name)),
        prompts_(engine.model().tokenizer(), engine.cache()) {}

  Result<AnswerFigures> Answer(std::span<const model::ChatMessage> messages,
                               const AnswerOptions& options, const AnswerEvents& events) override {
    auto prompt = prompts_.FromChat(ns_, messages, "", /*add_generation_prompt=*/true);
    if (!prompt.ok()) {
      const bool no_template = prompt.status().code() == StatusCode::kUnimplemented;
      return Status(
          prompt.status().code(),
          prompt.status().message() + (no_template ? "; kvlink run --raw needs none" : ""));
    }
    return Run(*prompt, /*chat=*/true, options, events);
  }

  Result<AnswerFigures> Complete(const std::string& prompt, const AnswerOptions& options,
                                 const AnswerEvents& events) override {
    return Run(prompts_.FromText(ns_, prompt, /*add_special=*/true), /*chat=*/false, options,
               events);
  }

  std::string Name() const override { return name_; }

  std::vector<std::pair<std::string, std::string>> Facts() const override {
    const CacheStats stats = engine_.Stats().cache;
    const KvShape& shape = engine_.cache().shape();
    const uint64_t held = stats.total_pages - stats.free_pages;
    return {{"KV memory", FormatByteSize(held * shape.page_bytes()) + " of " +
                              FormatByteSize(stats.total_pages * shape.page_bytes())}};
  }

 private:
  Result<AnswerFigures> Run(const server::BuiltPrompt& prompt, bool chat,
                            const AnswerOptions& options, const AnswerEvents& events) {
    const uint32_t context = engine_.options().context != 0 ? engine_.options().context
                                                            : engine_.model().info().context_train;
    if (prompt.tokens.size() + 1 > context) {
      return Status(StatusCode::kInvalidArgument,
                    "the prompt has " + std::to_string(prompt.tokens.size()) +
                        " tokens, and the context is " + std::to_string(context));
    }
    const auto start = SteadyClock::now();
    const uint64_t computed_before = engine_.Stats().computed_tokens;
    const auto inbox = std::make_shared<Inbox>();
    const auto id = engine_.Submit(RequestOf(prompt, options),
                                   [inbox](const engine::Event& event) { inbox->Push(event); });
    if (!id.ok()) return id.status();

    AnswerFigures figures;
    uint64_t to_compute = 0;
    bool cancelled = false, first = true;
    while (true) {
      if (events.stop != nullptr && *events.stop && !std::exchange(cancelled, true)) {
        engine_.Cancel(*id);
      }
      for (const engine::Event& event : inbox->Take(kLook)) {
        if (event.kind == engine::Event::Kind::kStarted) {
          to_compute = event.report->prompt_tokens - event.report->cached_tokens;
        } else if (event.kind == engine::Event::Kind::kToken) {
          if (std::exchange(first, false)) figures.first_token_s = Since(start);
          if (!event.token.text.empty() && !cancelled) events.on_text(event.token.text);
        } else {
          figures.total_s = Since(start);
          return Finish(prompt, chat, *event.report, cancelled, figures);
        }
      }
      if (first && to_compute > 0 && events.on_prefill) {
        const uint64_t done = engine_.Stats().computed_tokens - computed_before;
        events.on_prefill(
            std::min(1.0, static_cast<double>(done) / static_cast<double>(to_compute)));
      }
    }
  }

  engine::GenerationRequest RequestOf(const server::BuiltPrompt& prompt,
                                      const AnswerOptions& options) {
    engine::GenerationRequest request;
    request.prompt = prompt.tokens;
    request.ns = ns_;
    request.max_tokens = options.max_tokens;
    request.sampling.temperature = static_cast<float>(options.temperature);
    request.sampling.top_p = static_cast<float>(options.top_p);
    request.sampling.top_k = static_cast<int32_t>(options.top_k);
    request.sampling.seed = options.seed ? *options.seed : seeds_();
    request.stop = options.stop;
    return request;
  }

  Result<AnswerFigures> Finish(const server::BuiltPrompt& prompt, bool chat,
                               const engine::RequestReport& report, bool cancelled,
                               AnswerFigures figures) {
    if (!report.status.ok()) return report.status;
    figures.prompt_tokens = report.prompt_tokens;
    figures.cached_tokens = report.cached_tokens;
    figures.generated_tokens = report.generated_tokens;
    for (const engine::BranchResult& branch : report.branches) {
      figures.stopped |= branch.reason == engine::FinishReason::kCancelled;
      figures.cut |= branch.reason == engine::FinishReason::kLength;
      prompts_.Remember(ns_, prompt, branch, chat);
    }
    figures.stopped |= cancelled && report.branches.empty();
    return figures;
  }

  static double Since(SteadyClock::time_point start) {
    return std::chrono::duration<double>(SteadyClock::now() - start).count();
  }

  engine::Engine& engine_;
  const std::string name_;
  server::PromptBuilder prompts_;
  const Namespace ns_{"default", ""};  // as a server without keys: they may share a disk tier
  std::random_device seeds_;
};

// The same, with all that it stands on.
class OwningAnswerer : public Answerer {
 public:
  OwningAnswerer(std::unique_ptr<model::Model> model, std::unique_ptr<Cache> cache,
                 std::unique_ptr<engine::Engine> engine)
      : model_(std::move(model)),
        cache_(std::move(cache)),
        engine_(std::move(engine)),
        answerer_(*engine_, std::filesystem::path(model_->info().path).stem().string()) {}
  ~OwningAnswerer() override {
    engine_.reset();  // no sequence is left: what is resident can be written to tiers
    cache_->Drain(kDrainPatience);
  }

  Result<AnswerFigures> Answer(std::span<const model::ChatMessage> messages,
                               const AnswerOptions& options, const AnswerEvents& events) override {
    return answerer_.Answer(messages, options, events);
  }
  Result<AnswerFigures> Complete(const std::string& prompt, const AnswerOptions& options,
                                 const AnswerEvents& events) override {
    return answerer_.Complete(prompt, options, events);
  }
  std::string Name() const override { return answerer_.Name(); }
  std::vector<std::pair<std::string, std::string>> Facts() const override {
    return answerer_.Facts();
  }

 private:
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<engine::Engine> engine_;
  EngineAnswerer answerer_;
};

// As serve, but no more than a few conversations need.
Result<uint64_t> ChatKvBytes(const ChatEngineOptions& options, const model::Model& model) {
  const KvShape& shape = model.kv_shape();
  const auto bytes = ChooseKvBytes(options.kv_memory, AvailableMemory(), TotalMemory(),
                                   model.info().file_bytes, shape);
  if (!bytes.ok() || !options.kv_memory.empty()) return bytes;
  const uint64_t context = options.context != 0 ? options.context : model.info().context_train;
  const uint64_t pages = kContexts * (context / shape.tokens_per_block + 1);
  return std::min<uint64_t>(*bytes, pages * shape.page_bytes());
}

}  // namespace

std::unique_ptr<Answerer> MakeEngineAnswerer(engine::Engine& engine, std::string name) {
  return std::make_unique<EngineAnswerer>(engine, std::move(name));
}

Result<std::unique_ptr<Answerer>> OpenChatEngine(const ChatEngineOptions& options) {
  auto tiers = ReadTierFlags(options.tiers, /*cold_by_default=*/false);
  if (!tiers.ok()) return tiers.status();
  auto model = OpenModel(options.model, options.kv_type, options.quiet, options.context);
  if (!model.ok()) return model.status();
  const auto bytes = ChatKvBytes(options, **model);
  if (!bytes.ok()) return bytes.status();
  CacheOptions cache_options;
  cache_options.shape = (*model)->kv_shape();
  cache_options.sharing = Sharing::kExact;
  cache_options.budget_bytes = *bytes;
  cache_options.model_fingerprint = (*model)->fingerprint();
  cache_options.tiers = *std::move(tiers);
  std::string warning;
  auto cache = CreateTieredCache(options.tiers, &cache_options, &warning);
  if (!cache.ok()) return cache.status();
  engine::EngineOptions engine_options;
  engine_options.num_threads = ChooseThreads(options.threads);
  engine_options.context = options.context;
  engine_options.max_sequences = 1;
  engine_options.chunk_tokens = options.chunk;
  auto engine = engine::Engine::Create(**model, **cache, engine_options);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Answerer>(
      std::make_unique<OwningAnswerer>(*std::move(model), *std::move(cache), *std::move(engine)));
}

}  // namespace kvlink::cli
