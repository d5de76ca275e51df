// HttpServer: HTTP/1.1 on a fixed number of threads, with bounded memory and time per connection.
//
//   socket -> buffer -> parser -> handler            one request at a time, pipelined ones wait
//          <- write  <- pending parts <- Responder   in the buffer
//
// The socket is read while an answer is under way, so that a client that leaves is noticed. Slow
// senders, idle connections and slow readers are closed after a timeout; header, body and unsent
// bytes have limits. When all connections are taken, the one that was idle longest makes room for a
// new one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvlink/status.h"
#include "server/http.h"
#include "server/server.h"

namespace kvlink::server {

class HttpServer {
 public:
  using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

  struct Figures {
    uint64_t open = 0, idle = 0;                       // connections
    uint64_t refused = 0, made_room = 0;               // since the start
    uint64_t failed_handshakes = 0, slow_senders = 0;  // likewise
  };

  // kUnavailable: the address cannot be resolved or bound. `tls` null: plain HTTP.
  static Result<std::unique_ptr<HttpServer>> Create(const std::string& host, uint16_t port,
                                                    int threads, const Limits& limits,
                                                    Handler handler, FailureHandler on_failure,
                                                    TlsContext tls = nullptr);
  virtual ~HttpServer() = default;
  virtual void Run() = 0;
  virtual void Stop() = 0;
  virtual uint16_t port() const = 0;
  virtual Figures figures() const = 0;
  // For connections from now on. Requires: it was made with TLS. Any thread.
  virtual void UseTls(TlsContext tls) = 0;
};

}  // namespace kvlink::server
