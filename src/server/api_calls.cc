#include "server/api_calls.h"

#include <cstdio>
#include <string_view>

#include "server/anthropic.h"

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

ApiCalls::ApiCalls(std::shared_ptr<Metrics> metrics, std::shared_ptr<Log> log, engine::Clock clock,
                   std::function<uint64_t()> seed_source)
    : metrics_(std::move(metrics)),
      log_(std::move(log)),
      clock_(std::move(clock)),
      seed_source_(std::move(seed_source)),
      id_prefix_(seed_source_()) {}

ApiCall ApiCalls::Begin(HttpRequest request, std::shared_ptr<Responder> responder,
                        std::chrono::steady_clock::duration ago) {
  ApiCall call;
  call.request = std::move(request);
  call.responder = std::move(responder);
  call.id = NewId();
  call.start = clock_() - ago;
  const HttpRequest& http = call.request;
  call.request_id = IsRequestId(http.request_id) ? http.request_id : call.id;
  if (!http.traceparent.empty()) {
    call.trace = ParseTraceContext(http.traceparent, http.tracestate, seed_source_());
  }
  return call;
}

void ApiCalls::Answer(const ApiCall& call, std::string json) {
  HttpResponse response;
  response.body = std::move(json);
  Send(call, std::move(response));
}

void ApiCalls::Send(const ApiCall& call, HttpResponse response) {
  for (auto& header : HeadersOf(call)) response.headers.push_back(std::move(header));
  call.responder->Send(std::move(response));
  Finish(call, 200);
}

void ApiCalls::Refuse(const ApiCall& call, const ApiError& error) {
  call.responder->Send(ErrorAnswer(call, error));
  Finish(call, error.status, {}, error.code);
}

HttpResponse ApiCalls::ErrorAnswer(const ApiCall& call, const ApiError& error) const {
  HttpResponse response =
      SpeaksMessages(call.route) ? MessagesErrorResponse(error) : ErrorResponse(error);
  for (auto& header : HeadersOf(call)) response.headers.push_back(std::move(header));
  return response;
}

std::vector<std::pair<std::string, std::string>> ApiCalls::HeadersOf(const ApiCall& call) const {
  std::vector<std::pair<std::string, std::string>> headers = {{"X-Request-Id", call.request_id}};
  // The same, where Anthropic's clients look for it.
  if (SpeaksMessages(call.route)) headers.emplace_back("request-id", call.request_id);
  if (call.trace) headers.emplace_back("traceresponse", call.trace->Response());
  return headers;
}

void ApiCalls::Finish(const ApiCall& call, int status, LogFields details,
                      const std::string& error) {
  metrics_->CountHttp(call.route, status);
  LogFields fields = {{"request_id", call.request_id},
                      {"method", call.request.method.substr(0, kLoggedMethod)},
                      {"route", call.route},
                      {"status", int64_t{status}},
                      {"duration_ms", MillisecondsBetween(call.start, clock_())}};
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

std::string ApiCalls::NewId() {
  char text[40];
  std::snprintf(text, sizeof(text), "%016llx%08llx", static_cast<unsigned long long>(id_prefix_),
                static_cast<unsigned long long>(next_id_.fetch_add(1)));
  return text;
}

}  // namespace kvlink::server
