#include "server/testing/fakes.h"

#include <algorithm>
#include <utility>

namespace kvlink::server {
namespace {

const std::pair<std::string_view, TokenId> kSpecials[] = {
    {"<|im_start|>", kImStart}, {"<|im_end|>", kImEnd}, {"<s>", kBos}};

bool IsSmall(char c) { return c >= 'a' && c <= 'z'; }

// Bytes of `text` that are whole UTF-8 characters.
size_t WholeCharacters(const std::string& text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (i + length > text.size()) break;
    i += length;
  }
  return i;
}

}  // namespace

std::vector<TokenId> FakeTokenizer::Encode(std::string_view text, bool add_special,
                                           bool parse_special) const {
  if (on_encode_) on_encode_(text);
  std::vector<TokenId> tokens;
  if (add_special) tokens.push_back(kBos);
  for (size_t i = 0; i < text.size();) {
    bool special = false;
    for (const auto& [name, id] : kSpecials) {
      if (!parse_special || text.substr(i, name.size()) != name) continue;
      tokens.push_back(id);
      i += name.size();
      special = true;
      break;
    }
    if (special) continue;
    if (i + 1 < text.size() && IsSmall(text[i]) && IsSmall(text[i + 1])) {
      tokens.push_back(kFirstPair + (text[i] - 'a') * 26 + (text[i + 1] - 'a'));
      i += 2;
    } else {
      tokens.push_back(static_cast<unsigned char>(text[i++]));
    }
  }
  return tokens;
}

std::string FakeTokenizer::Piece(TokenId token, bool special) const {
  if (token < 256) return std::string(1, static_cast<char>(token));
  for (const auto& [name, id] : kSpecials) {
    if (id == token) return special ? std::string(name) : "";
  }
  const TokenId pair = token - kFirstPair;
  return {static_cast<char>('a' + pair / 26), static_cast<char>('a' + pair % 26)};
}

std::string FakeTokenizer::Decode(std::span<const TokenId> tokens, bool special) const {
  std::string text;
  for (const TokenId token : tokens) text += Piece(token, special);
  return text;
}

Result<std::string> FakeTokenizer::ApplyChatTemplate(std::span<const model::ChatMessage> messages,
                                                     const std::string& tools_json,
                                                     bool add_generation_prompt) const {
  if (template_ == Template::kNone)
    return Status(StatusCode::kUnimplemented, "the model has no chat template");
  std::string text;
  if (!tools_json.empty()) text += "<|im_start|>tools\n" + tools_json + "<|im_end|>\n";
  for (const model::ChatMessage& message : messages) {
    if (message.role == "alien") return Status(StatusCode::kInvalidArgument, "no such role: alien");
    std::string content = message.content;
    if (template_ == Template::kTrimming) {
      content.erase(0, std::min(content.find_first_not_of(" \n\t"), content.size()));
      content.erase(content.find_last_not_of(" \n\t") + 1);
    }
    text += "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n";
  }
  return add_generation_prompt ? text + "<|im_start|>assistant\n" : text;
}

FakeModel::FakeModel(FakeTokenizer::Template chat_template) : tokenizer_(chat_template) {
  info_.path = "/models/fake-1b.gguf";
  info_.name = "Fake";
  info_.architecture = "llama";
  info_.context_train = 4096;
  info_.vocab_size = tokenizer_.vocab_size();
}

Result<std::unique_ptr<model::Runner>> FakeModel::NewRunner(int, uint32_t) const {
  return Status(StatusCode::kUnimplemented, "a fake model runs nothing");
}

// --- cache ---

Result<std::unique_ptr<Sequence>> FakeCache::Begin(const LookupRequest&, const Plan&) {
  return Status(StatusCode::kUnimplemented, "a fake cache holds no rows");
}

void FakeCache::Remember(const Namespace& ns, std::string_view text,
                         std::span<const TokenId> tokens) {
  const std::lock_guard lock(mutex_);
  texts_[{ns.tenant, ns.salt}][std::string(text)].assign(tokens.begin(), tokens.end());
}

std::optional<std::vector<TokenId>> FakeCache::Recall(const Namespace& ns,
                                                      std::string_view text) const {
  const std::lock_guard lock(mutex_);
  const auto space = texts_.find({ns.tenant, ns.salt});
  if (space == texts_.end()) return std::nullopt;
  const auto found = space->second.find(text);
  return found == space->second.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Cache::Recalled> FakeCache::RecallPrefix(const Namespace& ns,
                                                       std::string_view text) const {
  const std::lock_guard lock(mutex_);
  const auto space = texts_.find({ns.tenant, ns.salt});
  if (space == texts_.end()) return std::nullopt;
  std::optional<Recalled> best;
  for (const auto& [known, tokens] : space->second) {
    if (text.starts_with(known) && (!best || known.size() > best->text_bytes))
      best = Recalled{known.size(), tokens};
  }
  return best;
}

// --- engine ---

FakeEngine::FakeEngine(const model::Model& model, engine::EngineOptions options)
    : model_(model),
      options_(std::move(options)),
      script_([](const engine::GenerationRequest&, uint32_t branch) {
        return "Hello world" + (branch == 0 ? "" : " " + std::to_string(branch));
      }),
      thread_([this] { Loop(); }) {}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<engine::RequestId> FakeEngine::Submit(engine::GenerationRequest request,
                                             engine::EventCallback callback) {
  const std::lock_guard lock(mutex_);
  if (!refusal_.ok()) return refusal_;
  auto running = std::make_shared<Running>();
  running->id = next_id_++;
  running->request = std::move(request);
  running->callback = std::move(callback);
  running_[running->id] = running;
  ++stats_.requests;
  changed_.notify_all();
  return running->id;
}

void FakeEngine::Cancel(engine::RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  found->second->cancelled = true;
  changed_.notify_all();
}

engine::EngineStats FakeEngine::Stats() const {
  const std::lock_guard lock(mutex_);
  engine::EngineStats stats = stats_;
  for (const auto& [id, running] : running_) ++(running->started ? stats.running : stats.waiting);
  return stats;
}

void FakeEngine::set_script(Script script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void FakeEngine::Hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeEngine::Release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeEngine::set_refusal(Status status) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(status);
}

void FakeEngine::set_total_pages(uint64_t pages) {
  const std::lock_guard lock(mutex_);
  stats_.cache.total_pages = pages;
}

void FakeEngine::set_failure(Status status) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(status);
}

void FakeEngine::set_prompts_seen(std::vector<std::vector<TokenId>>* seen) {
  const std::lock_guard lock(mutex_);
  seen_ = seen;
}

uint64_t FakeEngine::cancels() const {
  const std::lock_guard lock(mutex_);
  return stats_.cancelled;
}

// One token of every request in turn; callbacks are called without the lock, as they may call back.
void FakeEngine::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      if (stop_) return true;
      return std::any_of(running_.begin(), running_.end(),
                         [&](const auto& entry) { return !held_ || entry.second->cancelled; });
    });
    std::vector<std::shared_ptr<Running>> now;
    for (const auto& [id, running] : running_) now.push_back(running);
    for (const auto& running : now) {
      const bool cancelled = running->cancelled || stop_;
      if (held_ && !cancelled) continue;
      if (!running->started && !cancelled) Start(*running);
      if (cancelled) ++stats_.cancelled;
      const Status failure = failure_;
      lock.unlock();
      if (cancelled) {
        Finish(*running, engine::FinishReason::kCancelled);
      } else if (!failure.ok()) {
        running->report.status = failure;
        Finish(*running, engine::FinishReason::kError);
      } else {
        Step(*running);
      }
      lock.lock();
      if (running->ended) running_.erase(running->id);
    }
    if (stop_ && running_.empty()) return;
  }
}

void FakeEngine::Start(Running& running) {
  const engine::GenerationRequest& request = running.request;
  engine::RequestReport& report = running.report;
  running.started = true;
  report.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  report.cached_tokens = CachedTokens(request);
  report.partial_tokens = report.cached_tokens % 32;
  report.computed_tokens = report.prompt_tokens - report.cached_tokens;
  report.miss_reason = !request.reuse               ? MissReason::kPolicy
                       : report.cached_tokens == 0  ? MissReason::kCold
                       : report.computed_tokens > 1 ? MissReason::kDiverged
                                                    : MissReason::kNone;
  report.diverged_at = report.cached_tokens;
  report.prompt_ms = 2;
  report.predicted_ms = 4;
  running.limit =
      request.max_tokens == 0 ? options_.context - request.prompt.size() : request.max_tokens;
  for (uint32_t i = 0; i < request.n; ++i) running.texts.push_back(script_(request, i));
  report.branches.resize(request.n);
  running.held.resize(request.n);
  if (request.prompt_logprobs >= 0) {
    report.prompt_logprobs.resize(request.prompt.size());
    for (size_t i = 1; i < request.prompt.size(); ++i)
      report.prompt_logprobs[i] = {{request.prompt[i], -0.5f}};
  }
  if (request.store) stored_[{request.ns.tenant, request.ns.salt}].push_back(request.prompt);
  if (seen_ != nullptr) seen_->push_back(request.prompt);
}

uint32_t FakeEngine::CachedTokens(const engine::GenerationRequest& request) {
  size_t best = 0;
  if (!request.reuse) return 0;
  for (const auto& tokens : stored_[{request.ns.tenant, request.ns.salt}]) {
    const size_t length = std::min(tokens.size(), request.prompt.size() - 1);
    size_t common = 0;
    while (common < length && tokens[common] == request.prompt[common]) ++common;
    best = std::max(best, common);
  }
  return static_cast<uint32_t>(best);
}

void FakeEngine::Step(Running& running) {
  engine::Event event;
  event.id = running.id;
  if (running.done == 0) {
    event.kind = engine::Event::Kind::kStarted;
    event.report = std::make_shared<engine::RequestReport>(running.report);
    running.callback(event);
  }
  bool more = false;
  event.kind = engine::Event::Kind::kToken;
  event.report = nullptr;
  for (uint32_t i = 0; i < running.texts.size(); ++i) {
    if (running.done >= running.texts[i].size() || running.done >= running.limit) continue;
    more = true;
    const char byte = running.texts[i][running.done];
    engine::BranchResult& branch = running.report.branches[i];
    branch.tokens.push_back(static_cast<unsigned char>(byte));
    ++running.report.generated_tokens;
    running.held[i] += byte;
    const size_t whole = WholeCharacters(running.held[i]);
    event.token.branch = i;
    event.token.token = branch.tokens.back();
    event.token.text = running.held[i].substr(0, whole);
    event.token.logprob = -0.25f;
    event.token.top = {{branch.tokens.back(), -0.25f}, {'z', -2.0f}};
    running.held[i].erase(0, whole);
    branch.text += event.token.text;
    running.callback(event);
  }
  ++running.done;
  if (!more) Finish(running, engine::FinishReason::kStop);
}

void FakeEngine::Finish(Running& running, engine::FinishReason reason) {
  running.ended = true;
  engine::RequestReport& report = running.report;
  report.branches.resize(running.request.n);
  for (uint32_t i = 0; i < report.branches.size(); ++i) {
    engine::BranchResult& branch = report.branches[i];
    const bool cut = i < running.texts.size() && branch.tokens.size() < running.texts[i].size();
    branch.reason =
        reason == engine::FinishReason::kStop && cut ? engine::FinishReason::kLength : reason;
    for (const std::string& stop : running.request.stop) {
      const size_t found = branch.text.find(stop);
      if (found == std::string::npos) continue;
      branch.text.resize(found);
      branch.stop_text = stop;
      branch.reason = engine::FinishReason::kStop;
    }
    // A token is a byte.
    branch.text_bytes = branch.text.size();
    branch.text_tokens = static_cast<uint32_t>(branch.text.size());
    if (reason == engine::FinishReason::kStop && running.request.store) {
      cache_.Remember(running.request.ns, branch.text,
                      std::span(branch.tokens).first(branch.text_tokens));
    }
  }
  engine::Event event;
  event.id = running.id;
  event.kind = engine::Event::Kind::kFinished;
  event.report = std::make_shared<engine::RequestReport>(std::move(report));
  running.callback(event);
}

}  // namespace kvlink::server
