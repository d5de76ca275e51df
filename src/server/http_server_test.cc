// The HTTP layer alone, at its end: who works for a connection is told before the server is gone.
#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "server/testing/http_client.h"

namespace kvlink::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<HttpServer> Listen(Handler handler, milliseconds grace) {
  Limits limits;
  limits.shutdown_grace = grace;
  auto server = HttpServer::Create("127.0.0.1", 0, /*threads=*/2, limits, std::move(handler),
                                   [](const HttpFailure& failure) {
                                     HttpResponse response;
                                     response.status = failure.status;
                                     return response;
                                   });
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return *std::move(server);
}

TEST(HttpServer, WhatRunsWhenItStopsMayFinish) {
  std::promise<std::shared_ptr<Responder>> taken;
  const auto server =
      Listen([&](HttpRequest, std::shared_ptr<Responder> responder) { taken.set_value(responder); },
             seconds(60));
  std::thread runner([&] { server->Run(); });
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto responder = taken.get_future().get();
  server->Stop();
  responder->Post([responder] {
    HttpResponse response;
    response.body = "done";
    responder->Send(std::move(response));
  });
  EXPECT_EQ(client.Read().body, "done");
  runner.join();
}

// A thread that hangs in a handler keeps its connection from being closed; the server goes without
// it, and then somebody could still hand events to a connection that there is no more.
TEST(HttpServer, AHardStopTellsWhoeverWorksForAConnectionThatCouldNotBeClosed) {
  std::promise<void> entered, released;
  std::atomic<int> told{0};
  auto server = Listen(
      [&](HttpRequest, const std::shared_ptr<Responder>& responder) {
        responder->OnDisconnect([&told, responder](DisconnectReason reason) {
          EXPECT_EQ(reason, DisconnectReason::kShutdown);
          told += 1;
        });
        entered.set_value();
        released.get_future().wait();
      },
      milliseconds(10));
  std::thread runner([&] { server->Run(); });
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  entered.get_future().wait();
  server->Stop();
  // The other thread gives up three seconds after the grace; if it is later, nothing is shown, but
  // nothing is wrong.
  std::this_thread::sleep_for(milliseconds(3500));
  EXPECT_EQ(told.load(), 0);
  released.set_value();
  runner.join();
  EXPECT_EQ(told.load(), 1);
  server.reset();
  EXPECT_EQ(told.load(), 1);
}

}  // namespace
}  // namespace kvlink::server
