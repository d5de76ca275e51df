// Metrics: what /metrics shows, under the names that vLLM's dashboards know, and kvlink_* beside
// them.
//
// Token counters are added up from the engine's reports, one per request, and so are the numbers in
// the answers: sums over answers equal the counters, and a retried or preempted request counts
// once. Gauges, and counters of the cache itself, are read when somebody asks. Thread-safe;
// recording costs some atomic additions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http.h"
#include "server/http_server.h"
#include "server/memory_watch.h"

namespace kvlink::server {

// Of the server rather than the engine, at this moment.
struct ServerFigures {
  HttpServer::Figures http;
  MemoryWatch::Figures memory;
  uint64_t memory_refusals = 0;
};

class Metrics {
 public:
  static std::shared_ptr<Metrics> Create(const std::string& model);
  virtual ~Metrics() = default;

  // A request that the engine took is over. `started`: it ran (one that was cancelled in the queue
  // has computed nothing). `hidden_tokens`: generated, but not part of the answer.
  virtual void RecordReport(const engine::RequestReport& report, bool started,
                            uint32_t hidden_tokens) = 0;
  virtual void ObserveTimeToFirstToken(double seconds) = 0;
  virtual void ObserveInterTokenLatency(double seconds) = 0;
  virtual void ObserveEndToEnd(double seconds) = 0;
  virtual void CountHttp(const std::string& route, int status) = 0;
  virtual void CountDisconnect(DisconnectReason reason) = 0;

  // Prometheus text format.
  virtual std::string Text(const engine::EngineStats& stats, const ServerFigures& server) const = 0;
};

// Follows one request's events on the engine thread.
class RequestRecorder {
 public:
  RequestRecorder(std::shared_ptr<Metrics> metrics, engine::Clock clock, uint32_t num_branches,
                  uint32_t hidden_tokens);
  void OnEvent(const engine::Event& event);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  std::shared_ptr<Metrics> metrics_;
  engine::Clock clock_;
  TimePoint arrival_;
  std::vector<TimePoint> last_token_;
  uint32_t hidden_tokens_;
  bool started_ = false, first_ = true;
};

}  // namespace kvlink::server
