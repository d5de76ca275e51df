#include "server/http_exchange.h"

#include <utility>

#include "server/http_connection.h"

namespace kvlink::server {

HttpExchange::HttpExchange(std::shared_ptr<HttpConnection> connection, HttpRequest head)
    : connection_(std::move(connection)), head_(std::move(head)) {}

HttpExchange::~HttpExchange() {
  if (state_ == State::kDone) return;
  connection_->Post([connection = connection_, begun = state_ == State::kStreaming,
                     head = std::move(head_)]() mutable {
    if (begun) return connection->EndStream();
    HttpFailure failure{500, "internal_error", "the request was dropped"};
    failure.request = std::move(head);
    connection->SendFailure(std::move(failure));
  });
}

void HttpExchange::Fail(HttpFailure failure) {
  if (state_ != State::kOpen) return;
  state_ = State::kDone;
  failure.request = std::move(head_);
  connection_->SendFailure(std::move(failure));
}

void HttpExchange::Send(HttpResponse response) {
  if (state_ != State::kOpen) return;
  state_ = State::kDone;
  connection_->SendWhole(std::move(response));
}

void HttpExchange::BeginStream(HttpResponse head) {
  if (state_ != State::kOpen) return;
  state_ = State::kStreaming;
  connection_->BeginStream(std::move(head));
}

bool HttpExchange::Write(std::string part) {
  return state_ == State::kStreaming && connection_->WritePart(part);
}

void HttpExchange::EndStream() {
  if (state_ != State::kStreaming) return;
  state_ = State::kDone;
  connection_->EndStream();
}

void HttpExchange::OnDisconnect(std::function<void(DisconnectReason)> callback) {
  connection_->OnDisconnect(
      [weak = weak_from_this(), callback = std::move(callback)](DisconnectReason reason) {
        const auto self = weak.lock();
        if (self && reason != DisconnectReason::kShutdown) self->state_ = State::kDone;
        callback(reason);
      });
}

void HttpExchange::Post(std::function<void()> task) { connection_->Post(std::move(task)); }

}  // namespace kvlink::server
