// HTTP as it comes over the wire: odd, slow, too large.
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

class ConnectionsServerTest : public ServerHarness {};

TEST_F(ConnectionsServerTest, RequestsOnOneConnectionAreAnsweredInOrder) {
  Start();
  HttpClient client(port());
  std::string all;
  for (int i = 1; i <= 20; ++i) {
    all += ChatText("hi", {{"max_tokens", i % 11 + 1}});
  }
  client.Send(all);  // pipelined
  for (int i = 1; i <= 20; ++i) {
    EXPECT_EQ(client.Read().json()["usage"]["completion_tokens"], i % 11 + 1);
  }
  EXPECT_EQ(client.Get("/health").status, 200);  // and kept alive
}

TEST_F(ConnectionsServerTest, OldAndOddHttpIsSpoken) {
  Start();
  HttpClient old(port());
  old.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().headers.at("connection"), "close");
  EXPECT_TRUE(old.AtEnd());

  // HEAD gets GET's head, and nothing behind it.
  HttpClient head(port());
  head.Send("HEAD /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(head.ReadRaw().substr(0, 15), "HTTP/1.1 200 OK");
  HttpClient again(port());
  again.Send("HEAD /health HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(again.ReadRaw().ends_with("\r\n\r\n"));

  HttpClient chunked(port());
  const std::string body = ChatBody("hi").dump();
  char size[16];
  std::snprintf(size, sizeof(size), "%zx\r\n", body.size());
  chunked.Send("POST " + std::string(kChat) +
               " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Send(size + body + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Read().status, 200);

  HttpClient expecting(port());
  expecting.Send("POST " + std::string(kChat) +
                 " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(expecting.Read().status, 100);
  expecting.Send(body);
  EXPECT_EQ(expecting.Read().status, 200);
}

TEST_F(ConnectionsServerTest, AStreamWithoutChunkedEncodingEndsWithTheConnection) {
  Start();
  HttpClient client(port());
  const std::string body = ChatBody("hi", {{"stream", true}}).dump();
  client.Send("POST " + std::string(kChat) +
              " HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpReply reply = client.Read();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ConnectionsServerTest, ARequestInPiecesIsOneRequest) {
  Start();
  HttpClient client(port());
  for (const char c : ChatText("hi")) ASSERT_TRUE(client.Send(std::string(1, c)));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ConnectionsServerTest, BodiesAndHeadersHaveLimits) {
  options_.limits.max_body_bytes = 1000;
  options_.limits.max_header_bytes = 2000;
  Start();
  EXPECT_EQ(Post(kChat, ChatBody(std::string(2000, 'x'))).status, 413);
  HttpClient chunked(port());
  chunked.Send("POST " + std::string(kChat) +
               " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Send("fff\r\n" + std::string(0xfff, 'x'));
  EXPECT_EQ(chunked.Read().status, 413);
  HttpClient header(port());
  header.Send("GET /health HTTP/1.1\r\nX: " + std::string(4000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.Read().status, 431);
  HttpClient endless(port());
  endless.Send("GET /health HTTP/1.1\r\nX: " + std::string(100000, 'x'));
  EXPECT_EQ(endless.Read().status, 431);
  HttpClient garbage(port());
  garbage.Send("\x16\x03\x01 this is no HTTP\r\n\r\n");
  const HttpReply reply = garbage.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ConnectionsServerTest, ASlowSenderIsTimedOut) {
  options_.limits.request_timeout = milliseconds(50);
  Start();
  HttpClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(client.Read().status, 408);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ConnectionsServerTest, AnIdleConnectionIsClosed) {
  options_.limits.idle_timeout = milliseconds(50);
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ConnectionsServerTest, AConnectionThatWaitsForItsAnswerIsNotIdle) {
  options_.limits.idle_timeout = milliseconds(20);
  options_.limits.request_timeout = milliseconds(20);
  Start();
  engine_->Hold();
  HttpClient client(port());
  client.Send(ChatText("hi"));
  ASSERT_TRUE(EventuallyWaiting(1));
  std::this_thread::sleep_for(milliseconds(100));
  engine_->Release();
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ConnectionsServerTest, ConnectionsBeyondTheLimitAreRefused) {
  options_.limits.max_connections = 2;
  Start();
  engine_->Hold();
  HttpClient one(port()), two(port());
  for (HttpClient* client : {&one, &two}) {
    client->Send(ChatText("hi"));
  }
  ASSERT_TRUE(EventuallyWaiting(2));
  HttpClient three(port());
  const HttpReply refused = three.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
  one.Close();
  EXPECT_TRUE(Eventually([&] { return HttpClient(port()).Get("/health").status == 200; }));
  engine_->Release();
  EXPECT_EQ(two.Read().status, 200);
}

}  // namespace
}  // namespace kvlink::server
