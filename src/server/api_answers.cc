// How Api ends a call, whoever answers it: headers, the refusal's form, the count and the log's
// line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "server/anthropic.h"
#include "server/api.h"

namespace kvlink::server {
namespace {

// Of what a client wrote, so that a line of the log stays one that can be read.
constexpr size_t kLoggedMethod = 32;

bool SpeaksMessages(std::string_view route) { return route.starts_with("/v1/messages"); }

double MillisecondsBetween(std::chrono::steady_clock::time_point from,
                           std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

bool Api::CheckModel(const Call& call, const std::string& model) {
  if (model.empty() || std::find(model_ids_.begin(), model_ids_.end(), model) != model_ids_.end())
    return true;
  Refuse(call, {404,
                "the model \"" + model.substr(0, 200) + "\" is not served here; \"" +
                    model_ids_.front() + "\" is",
                "model", "model_not_found"});
  return false;
}

void Api::Name(Call* call) {
  const HttpRequest& http = call->request;
  call->request_id = IsRequestId(http.request_id) ? http.request_id : call->id;
  if (http.traceparent.empty()) return;
  call->trace = ParseTraceContext(http.traceparent, http.tracestate, options_.seed_source());
}

void Api::Answer(const Call& call, std::string json) {
  HttpResponse response;
  response.body = std::move(json);
  response.headers = HeadersOf(call);
  call.responder->Send(std::move(response));
  Finish(call, 200);
}

void Api::Refuse(const Call& call, const ApiError& error) {
  call.responder->Send(ErrorAnswer(call, error));
  Finish(call, error.status, {}, error.code);
}

HttpResponse Api::AnswerFailure(HttpFailure failure) {
  Call call{std::move(failure.request),
            nullptr,
            NewId(),
            Caller{},
            "",
            generation_context_.clock() - failure.taken};
  call.caller.tenant.clear();  // nobody has looked at its key
  Name(&call);
  ApiError unknown;
  const Route* route = FindRoute(call.request, &unknown);
  call.route = route != nullptr ? route->path : "other";
  const ApiError error{failure.status, std::move(failure.message), "", std::move(failure.code),
                       failure.retry_after_s};
  HttpResponse response = ErrorAnswer(call, error);
  Finish(call, error.status, {}, error.code);
  return response;
}

HttpResponse Api::ErrorAnswer(const Call& call, const ApiError& error) const {
  HttpResponse response =
      SpeaksMessages(call.route) ? MessagesErrorResponse(error) : ErrorResponse(error);
  for (auto& header : HeadersOf(call)) response.headers.push_back(std::move(header));
  return response;
}

std::vector<std::pair<std::string, std::string>> Api::HeadersOf(const Call& call) const {
  std::vector<std::pair<std::string, std::string>> headers = {{"X-Request-Id", call.request_id}};
  // The same, where Anthropic's clients look for it.
  if (SpeaksMessages(call.route)) headers.emplace_back("request-id", call.request_id);
  if (call.trace) headers.emplace_back("traceresponse", call.trace->Response());
  return headers;
}

void Api::Finish(const Call& call, int status, LogFields details, const std::string& error) {
  metrics_->CountHttp(call.route, status);
  LogFields fields = {
      {"request_id", call.request_id},
      {"method", call.request.method.substr(0, kLoggedMethod)},
      {"route", call.route},
      {"status", int64_t{status}},
      {"duration_ms", MillisecondsBetween(call.start, generation_context_.clock())}};
  if (!call.caller.tenant.empty()) fields.push_back({"tenant", call.caller.tenant});
  fields.insert(fields.end(), details.begin(), details.end());
  if (!error.empty()) fields.push_back({"error", error});
  if (call.trace) {
    fields.push_back({"trace_id", call.trace->trace_id});
    fields.push_back({"span_id", call.trace->span_id});
    fields.push_back({"parent_span_id", call.trace->parent_id});
    fields.push_back({"trace_flags", call.trace->FlagsText()});
    if (!call.trace->state.empty()) fields.push_back({"trace_state", call.trace->state});
  }
  log_->Note("answered", fields);
}

std::string Api::NewId() {
  char text[40];
  std::snprintf(text, sizeof(text), "%016llx%08llx", static_cast<unsigned long long>(id_prefix_),
                static_cast<unsigned long long>(next_id_.fetch_add(1)));
  return text;
}

}  // namespace kvlink::server
