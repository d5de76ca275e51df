// The engine's thread and its door: Submit and Cancel hand values to the inbox, the thread runs the
// actions of core.h in order.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "engine/core.h"

namespace kvlink::engine {
namespace {

using Action = void (*)(Core&);
constexpr Action kStep[] = {Expire,     RunShadows, Finish, Admit,    Publish, Place,
                            BuildBatch, Execute,    Sample, RunBands, Finish,  Publish};

class SingleThreadEngine final : public Engine {
 public:
  SingleThreadEngine(const model::Model& model, Cache& cache) : core_(model, cache) {}
  ~SingleThreadEngine() override;

  Status Init(const EngineOptions& options);

  Result<RequestId> Submit(GenerationRequest request, EventCallback callback) override;
  void Cancel(RequestId id) override;
  EngineStats Stats() const override;
  const model::Model& model() const override { return core_.model; }
  const EngineOptions& options() const override { return core_.options; }
  Cache& cache() override { return core_.cache; }
  void Withhold(uint64_t bytes) override;

 private:
  void Loop();
  void CancelAll();
  Result<std::unique_ptr<Request>> MakeRequest(GenerationRequest request,
                                               EventCallback callback) const;
  Status AddSamplers(Request& request) const;
  Status Enqueue(std::unique_ptr<Request> request, RequestId& id);

  mutable Core core_;  // its inbox and board are for any thread
  std::atomic<uint64_t> refused_{0};
  std::thread thread_;
};

Status CheckOptions(const EngineOptions& options) {
  const auto invalid = [](const char* name, int64_t value) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(name) + " is " + std::to_string(value) + "; it must be at least 1");
  };
  if (options.num_threads < 1) return invalid("num_threads", options.num_threads);
  if (options.max_sequences < 1) return invalid("max_sequences", options.max_sequences);
  if (options.chunk_tokens < 1) return invalid("chunk_tokens", options.chunk_tokens);
  if (options.max_queue < 1) return invalid("max_queue", options.max_queue);
  return {};
}

Status SingleThreadEngine::Init(const EngineOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (!core_.cache.shape().SameKv(core_.model.kv_shape())) {
    return {StatusCode::kInvalidArgument,
            "the cache was made for another KV shape than the model's"};
  }
  core_.options = options;
  if (core_.options.context == 0) core_.options.context = core_.model.info().context_train;
  if (!core_.options.clock) core_.options.clock = base::SteadyClock();
  if (!core_.options.new_sampler) core_.options.new_sampler = model::Sampler::Create;
  auto runner =
      core_.model.NewRunner(options.num_threads, options.chunk_tokens + options.max_sequences);
  if (!runner.ok()) return runner.status();
  core_.runner = std::move(*runner);
  core_.vocab_size = core_.model.tokenizer().vocab_size();
  core_.budget_tokens = static_cast<uint32_t>(std::min<uint64_t>(
      core_.cache.Stats().total_pages * core_.cache.shape().tokens_per_block, 0xffffffffu));
  core_.token_limit = std::min(core_.options.context, core_.budget_tokens);
  core_.cache.OnLoadProgress([this] {
    {
      const std::lock_guard lock(core_.inbox.mutex);
      core_.inbox.load_progress = true;
    }
    core_.inbox.wake.notify_all();
  });
  thread_ = std::thread([this] { Loop(); });
  return {};
}

SingleThreadEngine::~SingleThreadEngine() {
  {
    const std::lock_guard lock(core_.inbox.mutex);
    core_.inbox.stop = true;
  }
  core_.inbox.wake.notify_all();
  if (thread_.joinable()) {
    thread_.join();
    core_.cache.OnLoadProgress(nullptr);
  }
}

void SingleThreadEngine::Loop() {
  while (Intake(core_)) {
    for (const Action action : kStep) action(core_);
  }
  CancelAll();
}

void SingleThreadEngine::CancelAll() {
  {
    const std::lock_guard lock(core_.inbox.mutex);
    for (std::unique_ptr<Request>& request : core_.inbox.submissions) {
      core_.stats.requests += 1;
      core_.stats.prompt_tokens += request->prompt_size();
      core_.waiting.push_back(std::move(request));
    }
    core_.inbox.submissions.clear();
  }
  for (auto* requests : {&core_.running, &core_.waiting}) {
    for (const std::unique_ptr<Request>& request : *requests) {
      End(core_, *request, FinishReason::kCancelled);
    }
  }
  Finish(core_);
}

Status SingleThreadEngine::AddSamplers(Request& request) const {
  const GenerationRequest& params = request.params;
  const model::SamplingParams& sampling = params.sampling;
  const bool looks_at_prompt = sampling.repetition_penalty != 1.0f ||
                               sampling.frequency_penalty != 0.0f ||
                               sampling.presence_penalty != 0.0f;
  request.lanes.resize(request.width);
  for (uint32_t branch = 0; branch < request.width; ++branch) {
    model::SamplingParams own = sampling;
    own.seed = params.branch_seeds.empty() ? sampling.seed + branch : params.branch_seeds[branch];
    auto sampler = core_.options.new_sampler(core_.model, own);
    if (!sampler.ok()) return sampler.status();
    Lane& lane = request.lanes[branch];
    lane.sampler = std::move(*sampler);
    lane.text.emplace(params.stop);
    if (looks_at_prompt) {
      for (const TokenId token : params.prompt) lane.sampler->Observe(token);
    }
  }
  return {};
}

Result<std::unique_ptr<Request>> SingleThreadEngine::MakeRequest(GenerationRequest params,
                                                                 EventCallback callback) const {
  if (Status status = Validate(core_, params); !status.ok()) return status;
  auto request = std::make_unique<Request>();
  request->params = std::move(params);
  request->callback = std::move(callback);
  request->submitted = core_.Now();
  request->trunk.tokens = request->params.prompt;
  request->width = std::max(request->params.n, request->params.best_of);
  uint32_t limit = core_.token_limit;
  if (request->params.max_kv_tokens > 0) limit = std::min(limit, request->params.max_kv_tokens);
  const uint32_t room = limit - request->prompt_size();
  const uint32_t wanted = request->params.max_tokens;
  request->max_tokens = wanted == 0 ? room : std::min(wanted, room);
  request->report.prompt_tokens = request->prompt_size();
  if (request->params.deadline.count() > 0) {
    request->deadline = request->submitted + request->params.deadline;
  }
  if (request->params.beam_search) {
    BeamParams beam{request->width, request->max_tokens, request->params.length_penalty,
                    request->params.sampling.ignore_eos, request->params.stop};
    request->beam = std::make_unique<BeamSearch>(std::move(beam), core_.model.tokenizer());
  } else if (Status status = AddSamplers(*request); !status.ok()) {
    return status;
  }
  return request;
}

Status SingleThreadEngine::Enqueue(std::unique_ptr<Request> request, RequestId& id) {
  Inbox& inbox = core_.inbox;
  {
    const std::lock_guard lock(inbox.mutex);
    if (inbox.stop) return {StatusCode::kUnavailable, "the engine is stopping"};
    const size_t waiting = inbox.waiting + inbox.submissions.size();
    if (waiting >= core_.options.max_queue) {
      return {StatusCode::kResourceExhausted, "the queue is full: " + std::to_string(waiting) +
                                                  " requests wait, and max_queue is " +
                                                  std::to_string(core_.options.max_queue)};
    }
    id = inbox.next_id++;
    request->id = id;
    inbox.submissions.push_back(std::move(request));
  }
  inbox.wake.notify_one();
  return {};
}

Result<RequestId> SingleThreadEngine::Submit(GenerationRequest params, EventCallback callback) {
  auto request = MakeRequest(std::move(params), std::move(callback));
  RequestId id = 0;
  Status status = request.ok() ? Enqueue(std::move(*request), id) : request.status();
  if (status.ok()) return id;
  refused_ += 1;
  return status;
}

void SingleThreadEngine::Cancel(RequestId id) {
  {
    const std::lock_guard lock(core_.inbox.mutex);
    core_.inbox.cancels.push_back(id);
  }
  core_.inbox.wake.notify_one();
}

void SingleThreadEngine::Withhold(uint64_t bytes) {
  {
    const std::lock_guard lock(core_.inbox.mutex);
    core_.inbox.withhold = bytes;
  }
  core_.inbox.wake.notify_one();
}

EngineStats SingleThreadEngine::Stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(core_.board.mutex);
    stats = core_.board.stats;
  }
  {
    const std::lock_guard lock(core_.inbox.mutex);
    stats.waiting += core_.inbox.submissions.size();
  }
  stats.refused = refused_;
  stats.cache = core_.cache.Stats();
  stats.tiers = core_.cache.Tiers();
  stats.tenants = core_.cache.Tenants();
  return stats;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const model::Model& model, Cache& cache,
                                               const EngineOptions& options) {
  auto engine = std::make_unique<SingleThreadEngine>(model, cache);
  if (Status status = engine->Init(options); !status.ok()) return status;
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace kvlink::engine
