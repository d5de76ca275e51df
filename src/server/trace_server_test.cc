// What names a request in the server's answers and in its log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/server.h"
#include "server/testing/fakes.h"
#include "server/testing/http_client.h"

namespace kvlink::server {
namespace {

using testing::FakeEngine;
using testing::FakeModel;
using testing::HttpClient;
using testing::HttpReply;
using ::testing::StartsWith;
using Json = nlohmann::json;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kTraceparent = "traceparent: 00-" + kTrace + "-" + kParent + "-01\r\n";

class TraceServerTest : public ::testing::Test {
 protected:
  TraceServerTest() : dir_(::testing::TempDir() + "kvlink_trace_" + std::to_string(getpid())) {
    options_.port = 0;
    options_.log_to_stderr = false;
    options_.log_dir = dir_;
    options_.log_as_json = true;
    options_.seed_source = [seed = std::make_shared<std::atomic<uint64_t>>(1)] {
      return (*seed)++;
    };
    engine_options_.context = 4096;
    engine_ = std::make_unique<FakeEngine>(model_, engine_options_);
    Result<std::unique_ptr<Server>> server = Server::Create(*engine_, options_);
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~TraceServerTest() override {
    StopServer();
    std::filesystem::remove_all(dir_);
  }

  void StopServer() {
    if (!server_) return;
    server_->Stop();
    server_->Stop();
    thread_.join();
    server_.reset();
  }
  HttpReply Get(const std::string& path, const std::string& headers) {
    HttpClient client(server_->port());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    return client.Read();
  }
  HttpReply Chat(const std::string& headers, bool stream) {
    const std::string body =
        Json({{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", stream}}).dump();
    HttpClient client(server_->port());
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + headers +
                "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return client.Read();
  }
  // Stops the server: a line is written when its answer has left.
  std::vector<Json> LinesOf(const std::string& request_id) {
    StopServer();
    std::ifstream file(dir_ + "/kvlink.log");
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      if (json.value("request_id", "") == request_id) lines.push_back(json);
    }
    return lines;
  }

  const std::string dir_;
  FakeModel model_;
  ServerOptions options_;
  engine::EngineOptions engine_options_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(TraceServerTest, AClientsRequestIdComesBackAndIsLogged) {
  for (const bool stream : {false, true}) {
    const HttpReply reply = Chat("X-Request-Id: mine-1\r\n", stream);
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-request-id"), "mine-1");
    EXPECT_FALSE(reply.headers.contains("traceresponse"));
    // Answers keep names of ours: two clients may give the same id.
    EXPECT_EQ(reply.body.find("mine-1"), std::string::npos);
  }
  std::vector<Json> lines = LinesOf("mine-1");
  ASSERT_EQ(lines.size(), 2u);
  // Two connections: their lines come in any order.
  if (lines[0]["cached_tokens"] > lines[1]["cached_tokens"]) std::swap(lines[0], lines[1]);
  EXPECT_EQ(lines[0]["message"], "answered");
  EXPECT_EQ(lines[0]["route"], "/v1/chat/completions");
  EXPECT_EQ(lines[0]["status"], 200);
  EXPECT_EQ(lines[0]["tenant"], "default");
  EXPECT_GT(lines[0]["prompt_tokens"].get<int>(), 0);
  EXPECT_GT(lines[1]["cached_tokens"].get<int>(), 0);
  EXPECT_TRUE(lines[0]["duration_ms"].is_number());
  EXPECT_FALSE(lines[0].contains("trace_id"));
}

TEST_F(TraceServerTest, AnIdThatCouldForgeALineIsReplaced) {
  for (const std::string& bad :
       {std::string("X-Request-Id: two words\r\n"), std::string("X-Request-Id: a\"b\r\n"),
        "X-Request-Id: " + std::string(129, 'x') + "\r\n",
        std::string("X-Request-Id: a\r\nX-Request-Id: b\r\n"), std::string("X-Request-Id: \r\n"),
        std::string()}) {
    const HttpReply reply = Get("/health", bad);
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.headers.at("x-request-id"), ::testing::MatchesRegex("[0-9a-f]{24}")) << bad;
  }
}

TEST_F(TraceServerTest, RefusalsAndMetricsCarryTheIdToo) {
  EXPECT_EQ(Get("/nowhere", "X-Request-Id: r1\r\n").headers.at("x-request-id"), "r1");
  EXPECT_EQ(Get("/metrics", "X-Request-Id: r2\r\n").headers.at("x-request-id"), "r2");
  EXPECT_EQ(Get("/", "X-Request-Id: r3\r\n").headers.at("x-request-id"), "r3");
  const std::vector<Json> lines = LinesOf("r1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["status"], 404);
  EXPECT_EQ(lines[0]["error"], "unknown_path");
}

TEST_F(TraceServerTest, ATraceIsLoggedAndAnsweredWithASpanOfItsOwn) {
  const HttpReply reply =
      Chat("X-Request-Id: t1\r\n" + kTraceparent + "tracestate: a=1\r\ntracestate: b=2\r\n", false);
  const std::string& response = reply.headers.at("traceresponse");
  EXPECT_THAT(response, StartsWith("00-" + kTrace + "-"));
  EXPECT_EQ(response.find(kParent), std::string::npos);
  EXPECT_FALSE(reply.headers.contains("traceparent"));  // a header of requests
  const std::vector<Json> lines = LinesOf("t1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["trace_id"], kTrace);
  EXPECT_EQ(lines[0]["parent_span_id"], kParent);
  EXPECT_EQ(response.substr(36, 16), lines[0]["span_id"].get<std::string>());
  EXPECT_EQ(lines[0]["trace_flags"], "01");
  EXPECT_EQ(lines[0]["trace_state"], "a=1,b=2");
}

TEST_F(TraceServerTest, ABrokenTraceIsNoReasonToRefuse) {
  for (const std::string& bad :
       {std::string("traceparent: nonsense\r\n"), kTraceparent + kTraceparent}) {
    const HttpReply reply = Get("/health", "X-Request-Id: b1\r\n" + bad);
    EXPECT_EQ(reply.status, 200);
    EXPECT_FALSE(reply.headers.contains("traceresponse"));
  }
  const std::vector<Json> lines = LinesOf("b1");
  ASSERT_EQ(lines.size(), 2u);
  for (const Json& line : lines) EXPECT_FALSE(line.contains("trace_id"));
}

}  // namespace
}  // namespace kvlink::server
