// ServerHarness: a server on a free port over a FakeEngine, and the words in which tests of whole
// requests speak to it.
//
// A test sets options_ and engine_options_, calls Start() and sends requests; server and engine are
// gone before the test's own members are. Tests wait for conditions (Eventually), never for times.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"
#include "server/testing/fakes.h"
#include "server/testing/http_client.h"

namespace kvlink::server {

class ServerHarness : public ::testing::Test {
 protected:
  using Json = nlohmann::json;
  using milliseconds = std::chrono::milliseconds;

  static constexpr char kChat[] = "/v1/chat/completions";
  static constexpr char kCompletions[] = "/v1/completions";

  ServerHarness();
  ~ServerHarness() override { StopServer(); }
  void TearDown() override;

  void Start();
  void StopServer();
  void Restart();  // with other options; the engine stays
  uint16_t port() const { return server_->port(); }
  HttpReply Post(const std::string& path, const Json& body, const std::string& key = "");
  HttpReply Get(const std::string& path, const std::string& key = "");

  static Json ChatBody(const std::string& text, const Json& more = Json::object());
  // As it goes over the wire, for clients that misbehave afterwards.
  static std::string ChatText(const std::string& text, const Json& more = Json::object());
  // The JSON of every "data:" line but [DONE].
  static std::vector<Json> Events(const std::string& body);
  static std::string StreamedText(const std::vector<Json>& events, int index);

  std::string MetricsText() { return Get("/metrics").body; }
  // The value of the metric whose line starts with `name` and contains `labels`; sums several.
  static double MetricOf(const std::string& text, const std::string& name,
                         const std::string& labels = "");
  double Metric(const std::string& name, const std::string& labels = "") {
    return MetricOf(MetricsText(), name, labels);
  }

  // What the engine answers from now on.
  void Say(const std::string& text);
  // Never ends by itself, as long as the context is `kEndless`.
  void SayWithoutEnd() { Say(std::string(size_t{32} << 20, 'x')); }
  static constexpr uint32_t kEndless = 1u << 30;

  // The server's key file, for the next Start or ReloadKeys.
  void WriteKeyFile(const std::string& lines);
  // A line for it; `rights` is JSON.
  static std::string KeyLine(const std::string& key, const std::string& tenant,
                             const std::string& rights);

  // Polls; false after a minute.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 6000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  bool EventuallyWaiting(size_t requests) {
    return Eventually([&] { return engine_->Stats().waiting == requests; });
  }
  bool EventuallyRunning(size_t requests) {
    return Eventually([&] { return engine_->Stats().running == requests; });
  }

  FakeModel model_;
  ServerOptions options_;
  engine::EngineOptions engine_options_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace kvlink::server
