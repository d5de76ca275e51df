// Generation: one HTTP request's way through the engine.
//
//   Start -> Submit (one engine request a prompt)
//     -> events via the inbox -> a whole answer, or chunks as they come
//     -> client gone, or too slow: Cancel
//
// Lives on its connection's strand; the engine thread touches only the inbox and the recorder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/answer_style.h"
#include "server/api_request.h"
#include "server/event_inbox.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/prompt_builder.h"
#include "server/recent_requests.h"

namespace kvlink::server {

// What every request needs of the server; outlives all of them.
struct GenerationContext {
  engine::Engine& engine;
  const PromptBuilder& builder;
  std::shared_ptr<Metrics> metrics;
  engine::Clock clock;
  size_t max_pending_events = 0;
  std::shared_ptr<RecentRequests> recent;
  std::function<int(uint32_t prompts)> retry_after;  // seconds, of who finds the queue full
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Told once how it ended: HTTP status (499: the client went away) and the tokens.
  struct Summary {
    int status = 200;
    uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    std::string error;  // its code; empty: none, or one without
  };
  using OnEnd = std::function<void(const Summary&)>;

  Generation(const GenerationContext& context, ApiRequest request, std::vector<BuiltPrompt> prompts,
             std::unique_ptr<AnswerStyle> style,
             std::vector<std::pair<std::string, std::string>> headers,
             std::shared_ptr<Responder> responder, OnEnd on_end);
  ~Generation();
  // `tenant` is who asks, which is not always the namespace's: a group shares that. `place` is kept
  // until the engine has done its part, and given up before the answer's last byte leaves: who
  // has read it finds the place free.
  void Keep(std::shared_ptr<void> place, std::string tenant) {
    place_ = std::move(place);
    tenant_ = std::move(tenant);
  }
  void Start();

 private:
  struct Choice {  // of a stream
    size_t text_bytes = 0, text_offset = 0;
    std::optional<MessageParser> parser;  // none: the text is the content
  };

  Result<engine::RequestId> Submit(uint32_t prompt);
  void OnEvents();
  void OnToken(uint32_t prompt, const engine::TokenEvent& token, std::string* out);
  void OnReport(uint32_t prompt, std::shared_ptr<const engine::RequestReport> report,
                std::string* out);
  void NoteRecent(uint32_t prompt) const;
  void FinishPrompt(uint32_t prompt, std::string* out);
  void BeginStream(uint32_t prompt, const engine::RequestReport* started, std::string* out);
  std::vector<MessagePart> PartsOf(Choice& choice, const std::string& text) const;
  void FinishStream(std::string* out);
  void SendWhole();
  void Fail(const ApiError& error);
  void Abort(DisconnectReason reason);
  void CancelAll();
  void End(int status, const std::string& error = "");
  uint32_t IndexOf(uint32_t prompt, uint32_t branch) const {
    return prompt * request_.generation.n + branch;
  }

  const GenerationContext& context_;
  ApiRequest request_;
  std::vector<BuiltPrompt> prompts_;
  std::unique_ptr<AnswerStyle> style_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::shared_ptr<Responder> responder_;
  OnEnd on_end_;
  std::shared_ptr<void> place_;
  std::string tenant_;

  std::shared_ptr<EventInbox> inbox_;
  std::vector<engine::RequestId> ids_;
  std::vector<PromptOutcome> outcomes_;
  std::vector<Choice> choices_;
  std::vector<bool> begun_;  // per prompt: its stream has started
  size_t unfinished_ = 0;
  bool streaming_ = false, ended_ = false;
};

}  // namespace kvlink::server
