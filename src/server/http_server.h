// HttpServer: HTTP/1.1 on a fixed number of threads, with bounded memory and time per connection.
//
//   socket -> buffer -> parser -> handler          one request at a time, pipelined ones wait in
//   the buffer
//          <- write  <- pending parts <- Responder
//
// The socket is read while an answer is under way, so that a client that leaves is noticed. Slow
// senders, idle connections and slow readers are closed after a timeout; header, body and unsent
// bytes have limits.
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
  // Body of an answer that the HTTP layer gives itself (413, 400, ...).
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  // kUnavailable: the address cannot be resolved or bound.
  static Result<std::unique_ptr<HttpServer>> Create(const std::string& host, uint16_t port,
                                                    int threads, const Limits& limits,
                                                    Handler handler, ErrorBody error_body);
  virtual ~HttpServer() = default;
  virtual void Run() = 0;
  virtual void Stop() = 0;
  virtual uint16_t port() const = 0;
  virtual uint64_t connections() const = 0;
};

}  // namespace kvlink::server
