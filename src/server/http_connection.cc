#include "server/http_connection.h"

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <exception>
#include <utility>

#include "server/http_exchange.h"
#include "server/http_text.h"

namespace kvlink::server {
namespace {

namespace asio = boost::asio;

constexpr size_t kSmallBody = 64 << 10;    // has room, and is read, whatever else is on its way
constexpr size_t kLingerBytes = 16 << 20;  // discarded after an answer that ends the connection
constexpr std::chrono::seconds kLingerTime{2};  // so that the client reads it instead of a reset

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, asio::ip::tcp::socket socket,
                               asio::ssl::context* tls)
    : shared_(shared),
      strand_(asio::make_strand(shared.io)),
      socket_(strand_, std::move(socket), tls),
      read_timer_(shared.io),
      write_timer_(shared.io),
      reader_(shared.limits),
      unsent_(shared.limits.min_write_bytes) {}

void HttpConnection::Start() {
  Post([self = shared_from_this()] {
    self->socket_.SetUp(self->shared_.limits);
    if (self->socket_.speaks_tls()) return self->Handshake();
    self->AwaitRequest();
    self->ReadMore();
  });
}

void HttpConnection::MakeRoom() {
  Post([self = shared_from_this()] {
    if (self->closed_ || self->idle_since_ == 0) return;
    self->shared_.made_room += 1;
    self->Close(DisconnectReason::kShutdown);
  });
}

void HttpConnection::Shutdown(bool at_once) {
  Post([self = shared_from_this(), at_once] {
    if (at_once || (!self->busy_ && !self->lingering_)) self->Close(DisconnectReason::kShutdown);
  });
}

void HttpConnection::CutOff() {
  Post([self = shared_from_this()] {
    const auto is_ending = [&] {
      return self->closed_ || self->lingering_ || (self->busy_ && self->answered_);
    };
    if (is_ending()) return;
    self->keep_alive_ = false;
    if (self->held_) {
      self->CountIncoming(0);
      return self->Serve(*std::exchange(self->held_, std::nullopt));
    }
    if (self->on_disconnect_) {
      std::exchange(self->on_disconnect_, nullptr)(DisconnectReason::kShutdown);
    }
    if (!is_ending()) self->Close(DisconnectReason::kShutdown);
  });
}

void HttpConnection::Abandon() {
  if (std::exchange(closed_, true)) return;
  socket_.Close(/*reset=*/false);
  if (on_disconnect_) std::exchange(on_disconnect_, nullptr)(DisconnectReason::kShutdown);
}

void HttpConnection::Post(std::function<void()> task) { asio::post(strand_, std::move(task)); }

// --- the answer under way ---

void HttpConnection::SendWhole(HttpResponse response) {
  if (closed_) return;
  std::string text = Head(response, response.body.size(), keep_alive_, /*chunked=*/false);
  if (!head_only_) text += response.body;
  Enqueue(text);
  answered_ = true;
  FinishIfWritten();
}

void HttpConnection::BeginStream(HttpResponse response) {
  if (closed_) return;
  chunked_ = http_11_;
  if (!chunked_) keep_alive_ = false;
  const std::string body = std::exchange(response.body, "");
  Enqueue(Head(response, std::nullopt, keep_alive_, chunked_));
  if (!body.empty()) WritePart(body);
}

bool HttpConnection::WritePart(const std::string& part) {
  if (closed_) return false;
  if (part.empty() || head_only_) return true;
  Enqueue(chunked_ ? Chunk(part) : part);
  if (unsent_.bytes() > shared_.limits.max_pending_bytes) {
    Close(DisconnectReason::kSlowReader);
    return false;
  }
  return true;
}

void HttpConnection::EndStream() {
  if (closed_) return;
  if (chunked_ && !head_only_) Enqueue("0\r\n\r\n");
  answered_ = true;
  FinishIfWritten();
}

void HttpConnection::SendFailure(HttpFailure failure) {
  if (closed_) return;
  failure.taken = std::chrono::steady_clock::now() - begun_;
  SendWhole(shared_.on_failure(std::move(failure)));
}

void HttpConnection::OnDisconnect(std::function<void(DisconnectReason)> callback) {
  if (closed_) {
    Post([callback = std::move(callback), reason = close_reason_] { callback(reason); });
  } else {
    on_disconnect_ = std::move(callback);
  }
}

// --- TLS ---

void HttpConnection::Handshake() {
  NoteIdle();
  ArmReadTimer(shared_.limits.handshake_timeout);
  handshaking_ = true;
  socket_.Handshake([self = shared_from_this()](error_code error) {
    self->handshaking_ = false;
    if (self->closed_) return;
    if (error) return self->FailHandshake(error);
    self->AwaitRequest();
    self->ReadMore();
  });
}

void HttpConnection::FailHandshake(error_code error) {
  shared_.failed_handshakes += 1;
  if (HttpSocket::IsPlainHttp(error)) {
    socket_.SendLast(
        shared_.on_failure({400, "plain_http", "HTTPS is spoken here, not plain HTTP"}));
  }
  Close(DisconnectReason::kPeerClosed);
}

// --- reading ---

void HttpConnection::ReadMore() {
  if (reading_ || closed_) return;
  if (busy_ && reader_.full()) return;
  reading_ = true;
  // Not into the reader itself: requests are taken out of it while this read is pending.
  socket_.ReadSome(asio::buffer(incoming_),
                   [self = shared_from_this()](error_code error, size_t n) {
                     self->reading_ = false;
                     self->OnRead(error, n);
                   });
}

void HttpConnection::OnRead(error_code error, size_t n) {
  if (closed_) return;
  if (error) return Close(DisconnectReason::kPeerClosed);
  if (lingering_) {
    lingered_bytes_ += n;
    if (lingered_bytes_ > kLingerBytes) return Close(DisconnectReason::kPeerClosed);
    return ReadMore();
  }
  reader_.Append({incoming_.data(), n});
  ReadRequests();
  ReadMore();
}

void HttpConnection::ReadRequests() {
  using Step = HttpRequestReader::Step;
  while (!busy_ && !closed_ && !lingering_ && reader_.CanRead()) {
    if (!reader_.reading()) BeginRequest();
    const Step step = reader_.Read();
    if (step == Step::kRefused) return Refuse(reader_.failure());
    if (!CountIncoming(reader_.body_bytes())) {
      HttpFailure failure{503, "too_many_bodies",
                          "the bodies of requests that are on their way hold more than " +
                              std::to_string(shared_.limits.max_incoming_bytes) + " bytes"};
      failure.retry_after_s = 1;
      return Refuse(std::move(failure));
    }
    if (step == Step::kComplete) return Dispatch();
    if (reader_.TakeExpectation()) Enqueue("HTTP/1.1 100 Continue\r\n\r\n");
    if (step == Step::kNeedsMore) return;
  }
}

void HttpConnection::BeginRequest() {
  NoteNotIdle();
  begun_ = std::chrono::steady_clock::now();
  reader_.Begin();
  // The time for a whole request starts with its first byte.
  ArmReadTimer(shared_.limits.request_timeout);
}

// This connection's part of all that is on its way. False: it is too much, and this connection has
// no part in it any more. All in one step, or of two that do not fit together both were refused.
bool HttpConnection::CountIncoming(size_t body_bytes) {
  uint64_t now = shared_.incoming_bytes.load();
  for (;;) {
    const uint64_t others = now - counted_bytes_;
    const bool fits =
        body_bytes <= kSmallBody || others + body_bytes <= shared_.limits.max_incoming_bytes;
    const size_t counted = fits ? body_bytes : 0;
    if (!shared_.incoming_bytes.compare_exchange_weak(now, others + counted)) continue;
    counted_bytes_ = counted;
    return fits;
  }
}

void HttpConnection::Dispatch() {
  HttpRequestReader::Received received = reader_.Take();
  read_timer_.cancel();
  busy_ = true;
  answered_ = false;
  chunked_ = false;
  http_11_ = received.http_11;
  keep_alive_ = received.keep_alive && !shared_.stopping;
  head_only_ = received.head_only;
  if (received.request.body.size() <= kSmallBody) {
    CountIncoming(0);
    return Serve(std::move(received.request));
  }
  held_ = std::move(received.request);
  shared_.heavy.Enter([self = shared_from_this()] { self->Post([self] { self->ServeHeld(); }); });
}

// It is this one's turn.
void HttpConnection::ServeHeld() {
  if (held_) {  // else it was closed meanwhile
    Serve(*std::exchange(held_, std::nullopt));
    CountIncoming(0);
  }
  shared_.heavy.Leave();
}

void HttpConnection::Serve(HttpRequest request) {
  std::string body = std::exchange(request.body, "");
  auto exchange = std::make_shared<HttpExchange>(shared_from_this(), request);
  if (shared_.stopping) {
    const auto grace = std::chrono::ceil<std::chrono::seconds>(shared_.limits.shutdown_grace);
    HttpFailure failure{503, "shutting_down", "the server is shutting down"};
    failure.retry_after_s = static_cast<int>(std::max<int64_t>(grace.count(), 1));
    return exchange->Fail(std::move(failure));
  }
  request.body = std::move(body);
  try {
    shared_.handler(std::move(request), exchange);
  } catch (const std::exception& e) {
    // Out of memory, or a library's exception: this request's error, not the server's end.
    exchange->Fail({500, "internal_error", std::string("internal error: ") + e.what()});
  }
}

// The connection ends with the answer. Requires: a request is being read.
void HttpConnection::Refuse(HttpFailure failure) {
  failure.request = reader_.Drop();
  CountIncoming(0);
  busy_ = true;
  keep_alive_ = false;
  head_only_ = false;
  SendFailure(std::move(failure));
}

// --- writing ---

void HttpConnection::Enqueue(std::string_view text) {
  unsent_.Add(text);
  if (!unsent_.writing()) WriteMore();
}

void HttpConnection::WriteMore() {
  const std::string_view next = unsent_.Next();
  if (unsent_.OpenWindow()) ArmWriteTimer();
  socket_.WriteSome(
      asio::buffer(next.data(), next.size()),
      [self = shared_from_this()](error_code error, size_t n) { self->OnWritten(error, n); });
}

void HttpConnection::OnWritten(error_code error, size_t n) {
  const bool keeps_up = unsent_.Wrote(n);
  if (closed_) return;
  if (error) return Close(DisconnectReason::kPeerClosed);
  if (keeps_up) write_timer_.cancel();
  if (unsent_.bytes() > 0) return WriteMore();
  FinishIfWritten();
}

// The next request is looked at when the answer has left: that keeps the order and bounds the
// memory.
void HttpConnection::FinishIfWritten() {
  if (!busy_ || !answered_ || unsent_.writing() || unsent_.bytes() > 0 || closed_) return;
  busy_ = false;
  on_disconnect_ = nullptr;
  if (!keep_alive_ || shared_.stopping) return Linger();
  AwaitRequest();
  // Not from here: a client that sends many requests at once must not grow the stack.
  Post([self = shared_from_this()] {
    if (self->closed_) return;
    self->ReadRequests();
    self->ReadMore();
  });
}

void HttpConnection::Linger() {
  lingering_ = true;
  socket_.EndSending(shared_from_this());
  ArmReadTimer(kLingerTime);
  ReadMore();
}

// --- time ---

void HttpConnection::AwaitRequest() {
  NoteIdle();
  ArmReadTimer(shared_.limits.idle_timeout);
}

void HttpConnection::NoteIdle() {
  NoteNotIdle();
  idle_since_ = shared_.connections.AddIdle(weak_from_this());
}

void HttpConnection::NoteNotIdle() {
  if (idle_since_ != 0) shared_.connections.RemoveIdle(std::exchange(idle_since_, 0));
}

void HttpConnection::ArmReadTimer(std::chrono::milliseconds time) {
  read_timer_.expires_after(time);
  read_timer_.async_wait(
      asio::bind_executor(strand_, [self = shared_from_this()](error_code error) {
        // A timer that was set anew after it fired is not due.
        if (error || self->closed_ ||
            self->read_timer_.expiry() > asio::steady_timer::clock_type::now())
          return;
        self->OnReadTimeout();
      }));
}

void HttpConnection::OnReadTimeout() {
  if (busy_) return;
  if (handshaking_) shared_.failed_handshakes += 1;
  if (!reader_.reading() || lingering_) return Close(DisconnectReason::kTimeout);
  shared_.slow_senders += 1;
  Refuse({408, "request_timeout",
          "the request was not complete after " +
              std::to_string(shared_.limits.request_timeout.count()) + " ms"});
}

// From here on the client has the time to take something worth mentioning.
void HttpConnection::ArmWriteTimer() {
  write_timer_.expires_after(shared_.limits.write_timeout);
  write_timer_.async_wait(
      asio::bind_executor(strand_, [self = shared_from_this()](error_code error) {
        if (error || !self->unsent_.window_is_open() ||
            self->write_timer_.expiry() > asio::steady_timer::clock_type::now())
          return;
        self->Close(DisconnectReason::kTimeout);
      }));
}

// --- the end ---

void HttpConnection::Close(DisconnectReason reason) {
  if (std::exchange(closed_, true)) return;
  close_reason_ = reason;
  NoteNotIdle();
  held_.reset();
  CountIncoming(0);
  shared_.drain.Left(1);
  // What is queued would only be sent to somebody who does not read.
  socket_.Close(reason == DisconnectReason::kSlowReader || reason == DisconnectReason::kTimeout);
  read_timer_.cancel();
  write_timer_.cancel();
  unsent_.DropWaiting();
  // Not from here: whoever closes may be in the middle of the answer.
  if (on_disconnect_) {
    Post([callback = std::exchange(on_disconnect_, nullptr), reason] { callback(reason); });
  }
  if (shared_.connections.Remove(shared_from_this()) && shared_.stopping) shared_.on_empty();
}

}  // namespace kvlink::server
