// HttpConnection: one client's connection, with the parser before it and the unsent answer behind
// it.
//
// Internal to the HTTP server: the only header that shows Boost. Everything of a connection runs on
// its strand; Start and Shutdown may be called from any thread.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "server/http.h"
#include "server/http_server.h"

namespace kvlink::server {

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void Start() = 0;
  // Closes when idle, or at once.
  virtual void Shutdown(bool at_once) = 0;
  // No thread serves any more: lets go of whoever waits for it.
  virtual void Abandon() = 0;
};

// What connections share; outlives them.
struct HttpShared {
  boost::asio::io_context io;
  Limits limits;
  Handler handler;
  HttpServer::ErrorBody error_body;
  std::atomic<bool> stopping{false};
  std::function<void()> on_empty;  // the last connection is gone

  std::mutex mutex;
  std::set<std::shared_ptr<HttpConnection>> connections;  // guarded by mutex
};

std::shared_ptr<HttpConnection> MakeHttpConnection(HttpShared& shared,
                                                   boost::asio::ip::tcp::socket socket);

}  // namespace kvlink::server
