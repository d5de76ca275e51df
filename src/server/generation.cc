#include "server/generation.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "server/api_error.h"

namespace kvlink::server {
namespace {

constexpr int kClientClosedRequest = 499;  // nginx's, for the log

// Why a report is no answer, if it is none.
std::optional<ApiError> ErrorOf(const engine::RequestReport& report,
                                std::chrono::milliseconds deadline) {
  // Not the queue's fault, which may be shorter next time: what the request needs is too much.
  if (report.status.code() == StatusCode::kResourceExhausted) {
    return ApiError{400, report.status.message(), "", "kv_memory_exceeded"};
  }
  if (!report.status.ok()) return FromStatus(report.status);
  if (report.branches.empty()) return ApiError{500, "the engine answered nothing", "", ""};
  for (const engine::BranchResult& branch : report.branches) {
    switch (branch.reason) {
      case engine::FinishReason::kStop:
      case engine::FinishReason::kLength:
        break;
      case engine::FinishReason::kDeadline:
        return ApiError{504,
                        "the deadline of " + std::to_string(deadline.count()) +
                            " ms passed after " + std::to_string(report.generated_tokens) +
                            " generated tokens",
                        "deadline_ms", "deadline_exceeded"};
      case engine::FinishReason::kCancelled:
        return ApiError{503, "the request was cancelled by the server", "", "cancelled"};
      case engine::FinishReason::kError:
        return ApiError{500, "the engine failed without saying why", "", ""};
    }
  }
  return std::nullopt;
}

// Whether a prompt is more than its tenant's quota (0: none) or the whole KV memory can hold, with
// the one token that an answer needs.
bool IsBeyondMemory(engine::Engine& engine, uint64_t prompt_tokens, uint64_t quota_tokens) {
  if (quota_tokens > 0 && prompt_tokens >= quota_tokens) return true;
  return prompt_tokens >=
         engine.Stats().cache.total_pages * engine.cache().shape().tokens_per_block;
}

// The field that a refusal of the engine's is about.
std::string FieldAtFault(const ApiRequest& request, const ApiError& error) {
  if (error.message.starts_with("grammar:")) return request.grammar_field;
  return request.chat ? "messages" : "prompt";
}

}  // namespace

Generation::Generation(const GenerationContext& context, ApiRequest request,
                       std::vector<BuiltPrompt> prompts, std::unique_ptr<AnswerStyle> style,
                       std::vector<std::pair<std::string, std::string>> headers,
                       std::shared_ptr<Responder> responder, OnEnd on_end)
    : context_(context),
      request_(std::move(request)),
      prompts_(std::move(prompts)),
      style_(std::move(style)),
      headers_(std::move(headers)),
      responder_(std::move(responder)),
      on_end_(std::move(on_end)),
      outcomes_(prompts_.size()),
      choices_(prompts_.size() * request_.generation.n),
      begun_(prompts_.size()),
      unfinished_(prompts_.size()) {}

Generation::~Generation() {
  if (inbox_) inbox_->Close();
}

void Generation::Start() {
  // A whole answer is no slower than its reader, and its tokens may all come at the end.
  const size_t most = request_.stream ? context_.max_pending_events : SIZE_MAX;
  // Under the inbox's lock, which Close takes as well: the engine thread never holds the last
  // reference.
  inbox_ = std::make_shared<EventInbox>(most, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      Responder& responder = *self->responder_;
      responder.Post([self] { self->OnEvents(); });
    }
  });
  for (uint32_t i = 0; i < prompts_.size(); ++i) {
    Result<engine::RequestId> id = Submit(i);
    if (!id.ok()) {
      ApiError error = FromStatus(id.status());
      if (error.status == 400) {
        error.param = FieldAtFault(request_, error);
        if (IsBeyondMemory(context_.engine, prompts_[i].tokens.size(),
                           request_.generation.max_kv_tokens)) {
          error.code = "kv_memory_exceeded";
        }
      }
      if (error.status == 429) {
        error.retry_after_s = context_.retry_after(static_cast<uint32_t>(prompts_.size()));
      }
      return Fail(error);
    }
    ids_.push_back(*id);
  }
  responder_->OnDisconnect(
      [self = shared_from_this()](DisconnectReason reason) { self->Abort(reason); });
}

Result<engine::RequestId> Generation::Submit(uint32_t prompt) {
  engine::GenerationRequest request = request_.generation;
  request.prompt = prompts_[prompt].tokens;
  PromptOutcome& outcome = outcomes_[prompt];
  outcome.prompt = prompts_[prompt].tokens;
  outcome.prompt_text = prompts_[prompt].text;
  outcome.hide_generated = request_.hide_generated;
  outcome.events.resize(request.n);

  // Where branches are ranked, all tokens arrive at the end: their distance in time says nothing.
  const bool ranked = request.beam_search || request.best_of > request.n;
  const bool wants_tokens = request_.stream || request.logprobs >= 0;
  auto recorder = std::make_shared<RequestRecorder>(
      context_.metrics, context_.clock, ranked ? 0 : request.n, request_.hide_generated ? 1 : 0);
  return context_.engine.Submit(std::move(request), [prompt, recorder, wants_tokens,
                                                     inbox = inbox_](const engine::Event& event) {
    recorder->OnEvent(event);
    if (wants_tokens || event.kind == engine::Event::Kind::kFinished) {
      inbox->Push(prompt, event);
    }
  });
}

void Generation::OnEvents() {
  if (ended_) return;
  std::string out;
  for (EventInbox::Item& item : inbox_->Take()) {
    switch (item.event.kind) {
      case engine::Event::Kind::kStarted:
        BeginStream(item.prompt, item.event.report.get(), &out);
        break;
      case engine::Event::Kind::kToken:
        OnToken(item.prompt, item.event.token, &out);
        break;
      case engine::Event::Kind::kFinished:
        OnReport(item.prompt, std::move(item.event.report), &out);
        break;
    }
    if (ended_) return;
  }
  if (inbox_->overflowed()) {
    context_.metrics->CountDisconnect(DisconnectReason::kSlowReader);
    return Fail(
        {503, "the answer could not be taken as fast as it was generated", "", "slow_reader"});
  }
  if (!out.empty()) responder_->Write(std::move(out));
}

void Generation::BeginStream(uint32_t prompt, const engine::RequestReport* started,
                             std::string* out) {
  if (!request_.stream || begun_[prompt]) return;
  begun_[prompt] = true;
  if (!std::exchange(streaming_, true)) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers = headers_;
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    responder_->BeginStream(std::move(head));
  }
  for (uint32_t branch = 0; branch < request_.generation.n; ++branch) {
    const uint32_t index = IndexOf(prompt, branch);
    if (!request_.syntax.plain()) choices_[index].parser.emplace(request_.syntax);
    *out += style_->Begin(index, request_.echo ? prompts_[prompt].text : "", started);
  }
}

std::vector<MessagePart> Generation::PartsOf(Choice& choice, const std::string& text) const {
  if (choice.parser) return choice.parser->Append(text);
  if (text.empty()) return {};
  return {{MessagePart::Kind::kContent, text, 0}};
}

void Generation::OnToken(uint32_t prompt, const engine::TokenEvent& token, std::string* out) {
  if (token.branch >= request_.generation.n) return;
  if (!request_.stream) {
    outcomes_[prompt].events[token.branch].push_back(token);
    return;
  }
  BeginStream(prompt, nullptr, out);
  Choice& choice = choices_[IndexOf(prompt, token.branch)];
  choice.text_bytes += token.text.size();
  const bool ends = token.token >= 0 && !request_.generation.sampling.ignore_eos &&
                    context_.engine.model().tokenizer().IsEndOfGeneration(token.token);
  const bool logprobs = request_.generation.logprobs >= 0 && token.token >= 0 && !ends;
  if (token.text.empty() && !logprobs) return;
  engine::TokenEvent shown = token;
  if (ends) shown.token = -1;
  *out += style_->Token(IndexOf(prompt, token.branch), shown, PartsOf(choice, token.text),
                        &choice.text_offset);
}

void Generation::OnReport(uint32_t prompt, std::shared_ptr<const engine::RequestReport> report,
                          std::string* out) {
  if (auto error = ErrorOf(*report, request_.generation.deadline)) {
    if (!out->empty()) responder_->Write(std::exchange(*out, ""));
    return Fail(*error);
  }
  PromptOutcome& outcome = outcomes_[prompt];
  outcome.report = std::move(report);
  outcome.tool_keys_reordered = request_.tool_keys_reordered;
  if (!request_.syntax.plain()) {
    for (const engine::BranchResult& branch : outcome.report->branches) {
      outcome.messages.push_back(ParseMessage(request_.syntax, branch.text));
    }
  }
  const MissReason reason = outcome.report->miss_reason;
  if (request_.chat && reason != MissReason::kNone && reason != MissReason::kCold) {
    outcome.diverged_message =
        context_.builder.MessageAt(prompts_[prompt], outcome.report->diverged_at);
  }
  NoteRecent(prompt);
  if (request_.generation.store && !request_.hide_generated) {
    for (const engine::BranchResult& branch : outcome.report->branches) {
      context_.builder.Remember(request_.generation.ns, prompts_[prompt], branch, request_.chat);
    }
  }
  --unfinished_;
  if (request_.stream) {
    BeginStream(prompt, nullptr, out);
    FinishPrompt(prompt, out);
    if (unfinished_ == 0) FinishStream(out);
  } else if (unfinished_ == 0) {
    SendWhole();
  }
}

void Generation::NoteRecent(uint32_t prompt) const {
  if (context_.recent->capacity() == 0) return;
  const PromptOutcome& outcome = outcomes_[prompt];
  std::string id;
  for (const auto& [name, value] : headers_) {
    if (name == "X-Request-Id") id = value;
  }
  RecentRequest recent = DescribeRequest(std::move(id), request_.generation.ns, *outcome.report,
                                         prompts_[prompt].tokens, outcome.diverged_message,
                                         context_.engine.model().tokenizer());
  recent.tenant = tenant_;
  if (!request_.generation.store) recent.LeaveOutPrompt();
  context_.recent->Add(std::move(recent));
}

void Generation::FinishPrompt(uint32_t prompt, std::string* out) {
  const auto& branches = outcomes_[prompt].report->branches;
  for (uint32_t i = 0; i < branches.size() && i < request_.generation.n; ++i) {
    const uint32_t index = IndexOf(prompt, i);
    Choice& choice = choices_[index];
    engine::TokenEvent rest;
    if (choice.text_bytes < branches[i].text.size())
      rest.text = branches[i].text.substr(choice.text_bytes);
    std::vector<MessagePart> parts = PartsOf(choice, rest.text);
    if (choice.parser) {
      for (MessagePart& part : choice.parser->Flush()) parts.push_back(std::move(part));
    }
    if (!parts.empty()) *out += style_->Token(index, rest, parts, &choice.text_offset);
    const uint32_t calls = choice.parser ? choice.parser->num_calls() : 0;
    const bool last = unfinished_ == 0 && i + 1 == branches.size();
    *out += style_->Finish(index, branches[i], calls, last ? &outcomes_ : nullptr);
  }
}

void Generation::FinishStream(std::string* out) {
  place_.reset();
  *out += style_->End(outcomes_);
  responder_->Write(std::exchange(*out, ""));
  responder_->EndStream();
  End(200);
}

void Generation::SendWhole() {
  HttpResponse response;
  response.body = style_->Whole(outcomes_);
  response.headers = headers_;
  place_.reset();
  responder_->Send(std::move(response));
  End(200);
}

void Generation::Fail(const ApiError& error) {
  place_.reset();
  CancelAll();
  if (streaming_) {
    responder_->Write(style_->StreamError(error));
    responder_->EndStream();
  } else {
    HttpResponse response = style_->ErrorAnswer(error);
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    responder_->Send(std::move(response));
  }
  End(error.status, error.code);
}

void Generation::Abort(DisconnectReason reason) {
  if (ended_) return;
  context_.metrics->CountDisconnect(reason);
  if (reason == DisconnectReason::kShutdown) {
    return Fail({503, "the server is shutting down", "", "shutting_down"});
  }
  CancelAll();
  End(kClientClosedRequest);
}

void Generation::CancelAll() {
  for (const engine::RequestId id : ids_) context_.engine.Cancel(id);
}

void Generation::End(int status, const std::string& error) {
  if (std::exchange(ended_, true)) return;
  place_.reset();
  inbox_->Close();
  Summary summary{status, 0, 0, 0, error};
  for (const PromptOutcome& outcome : outcomes_) {
    if (!outcome.report) continue;
    summary.prompt_tokens += outcome.report->prompt_tokens;
    summary.cached_tokens += outcome.report->cached_tokens;
    summary.generated_tokens += outcome.report->generated_tokens;
  }
  if (on_end_) on_end_(summary);
}

}  // namespace kvlink::server
