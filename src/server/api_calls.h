// ApiCalls: how a call of the API begins and ends, whoever answers it: its names, the headers and
// the form of its answer, the count and the log's line.
//
//   Begin -> (a route) -> Answer | Send | Refuse, or a stream of its own and then Finish
//
// Any thread, but the answer of a call, which goes through its responder.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/access.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/request_trace.h"

namespace kvlink::server {

struct ApiCall {
  HttpRequest request;
  std::shared_ptr<Responder> responder;
  std::string id;  // ours, unique: of what the request makes
  Caller caller;
  const char* route = "";
  std::chrono::steady_clock::time_point start;
  std::string request_id;  // in headers and the log: the client's if it gave one, else `id`
  std::optional<TraceContext> trace;  // where the client sent one
};

class ApiCalls {
 public:
  // `seed_source`: randomness, for ids and spans; from several threads.
  ApiCalls(std::shared_ptr<Metrics> metrics, std::shared_ptr<Log> log, engine::Clock clock,
           std::function<uint64_t()> seed_source);

  const engine::Clock& clock() const { return clock_; }
  // `ago`: that it began.
  ApiCall Begin(HttpRequest request, std::shared_ptr<Responder> responder,
                std::chrono::steady_clock::duration ago = {});
  void Answer(const ApiCall& call, std::string json);
  // Any answer with status 200.
  void Send(const ApiCall& call, HttpResponse response);
  void Refuse(const ApiCall& call, const ApiError& error);

  HttpResponse ErrorAnswer(const ApiCall& call, const ApiError& error) const;
  // Headers that every answer to this call has.
  std::vector<std::pair<std::string, std::string>> HeadersOf(const ApiCall& call) const;
  // Counts and logs it. `error`: the code of one.
  void Finish(const ApiCall& call, int status, LogFields details = {},
              const std::string& error = "");

 private:
  std::string NewId();

  const std::shared_ptr<Metrics> metrics_;
  const std::shared_ptr<Log> log_;
  const engine::Clock clock_;
  const std::function<uint64_t()> seed_source_;
  const uint64_t id_prefix_;
  std::atomic<uint64_t> next_id_{0};
};

}  // namespace kvlink::server
