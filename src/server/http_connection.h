// HttpConnection: one client's connection, with the parser before it and the unsent answer behind
// it.
//
// Internal to the HTTP server: the only header that shows Boost. Everything of a connection runs on
// its strand; Start and Shutdown may be called from any thread.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "server/drain_rate.h"
#include "server/heavy_turns.h"
#include "server/http.h"
#include "server/http_server.h"

namespace kvlink::server {

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void Start() = 0;
  // Closes when idle, or at once.
  virtual void Shutdown(bool at_once) = 0;
  // Closes if it still is idle.
  virtual void MakeRoom() = 0;
  // No thread serves any more: lets go of whoever waits for it.
  virtual void Abandon() = 0;
};

// What connections share; outlives them.
struct HttpShared {
  boost::asio::io_context io;
  Limits limits;
  Handler handler;
  FailureHandler on_failure;
  std::atomic<bool> stopping{false};
  std::function<void()> on_empty;           // the last connection is gone
  std::atomic<uint64_t> incoming_bytes{0};  // of bodies that are not complete, or wait for a turn
  HeavyTurns heavy;                         // of requests with bodies that are large
  std::atomic<uint64_t> refused{0}, made_room{0}, failed_handshakes{0}, slow_senders{0};
  DrainRate drain{base::SteadyClock()};  // of connections

  std::mutex mutex;
  std::set<std::shared_ptr<HttpConnection>> connections;   // guarded by mutex
  std::map<uint64_t, std::weak_ptr<HttpConnection>> idle;  // since when; guarded by mutex
  uint64_t last_idle = 0;                                  // guarded by mutex
  std::shared_ptr<boost::asio::ssl::context> tls;          // guarded by mutex; null: plain HTTP
};

// Speaks TLS if `tls` is not null.
std::shared_ptr<HttpConnection> MakeHttpConnection(HttpShared& shared,
                                                   boost::asio::ip::tcp::socket socket,
                                                   boost::asio::ssl::context* tls);

}  // namespace kvlink::server
