// HttpExchange: the Responder of one request: one answer, whatever its handler does or leaves out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http.h"

namespace kvlink::server {

class HttpConnection;

class HttpExchange : public Responder, public std::enable_shared_from_this<HttpExchange> {
 public:
  // `head`: of the request.
  HttpExchange(std::shared_ptr<HttpConnection> connection, HttpRequest head);
  // A handler that drops its responder has still to be answered for.
  ~HttpExchange() override;

  // Nothing, when the handler has answered before it failed.
  void Fail(HttpFailure failure);

  void Send(HttpResponse response) override;
  void BeginStream(HttpResponse head) override;
  bool Write(std::string part) override;
  void EndStream() override;
  void OnDisconnect(std::function<void(DisconnectReason)> callback) override;
  void Post(std::function<void()> task) override;

 private:
  enum class State : uint8_t { kOpen, kStreaming, kDone };
  std::shared_ptr<HttpConnection> connection_;
  HttpRequest head_;
  State state_ = State::kOpen;
};

}  // namespace kvlink::server
