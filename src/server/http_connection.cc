#include "server/http_connection.h"

#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <iterator>
#include <optional>
#include <utility>

#include "server/http_text.h"

namespace kvlink::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Strand = asio::strand<asio::io_context::executor_type>;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kPipelineBytes = 64 << 10;  // read ahead while an answer is under way
constexpr size_t kSmallBody = 64 << 10;      // has room, and is read, whatever else is on its way
constexpr size_t kLastChunkBytes = 5;        // at least; every chunked body ends with one
constexpr size_t kLingerBytes = 16 << 20;    // discarded after an answer that ends the connection
constexpr std::chrono::seconds kLingerTime{2};  // so that the client reads it instead of a reset

// "" when the header is absent or there more than once.
std::string OnlyHeader(const http::fields& fields, beast::string_view name) {
  const auto [begin, end] = fields.equal_range(name);
  if (begin == end || std::next(begin) != end) return "";
  return std::string(begin->value());
}

// A header that is a list may come in parts.
std::string JoinedHeaders(const http::fields& fields, beast::string_view name) {
  std::string joined;
  const auto [begin, end] = fields.equal_range(name);
  for (auto field = begin; field != end; ++field) {
    if (field != begin) joined += ',';
    joined += std::string(field->value());
  }
  return joined;
}

using Message = http::request<http::string_body>;

// All of a request but its body; nothing as long as its head is not complete.
HttpRequest HeadOf(const Message& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = PercentDecode(target.substr(0, question));
  if (question != std::string::npos) request.query = target.substr(question + 1);
  request.authorization = std::string(message[http::field::authorization]);
  // As Anthropic's clients send it.
  if (const auto key = message.find("x-api-key");
      request.authorization.empty() && key != message.end()) {
    request.authorization = "Bearer " + std::string(key->value());
  }
  request.request_id = OnlyHeader(message, "x-request-id");
  request.traceparent = OnlyHeader(message, "traceparent");
  request.tracestate = JoinedHeaders(message, "tracestate");
  return request;
}

// --- one connection ---

class Connection : public HttpConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpShared& shared, tcp::socket socket, asio::ssl::context* tls)
      : shared_(shared),
        strand_(asio::make_strand(shared.io)),
        socket_(std::move(socket)),
        read_timer_(shared.io),
        write_timer_(shared.io),
        buffer_(std::max(kPipelineBytes, shared.limits.max_header_bytes) + kReadBytes) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }

  void Start() override {
    asio::post(strand_, [self = shared_from_this()] {
      error_code ignored;
      self->socket_.set_option(tcp::no_delay(true), ignored);
      self->WatchPeer();
      if (self->tls_) return self->Handshake();
      self->AwaitRequest();
      self->ReadMore();
    });
  }

  void MakeRoom() override {
    asio::post(strand_, [self = shared_from_this()] {
      if (self->closed_ || self->idle_since_ == 0) return;
      self->shared_.made_room += 1;
      self->Close(DisconnectReason::kShutdown);
    });
  }

  void Shutdown(bool at_once) override {
    asio::post(strand_, [self = shared_from_this(), at_once] {
      if (at_once || (!self->busy_ && !self->lingering_)) self->Close(DisconnectReason::kShutdown);
    });
  }

  template <typename Task>
  void Post(Task task) {
    asio::post(strand_, std::move(task));
  }

  // --- the answer under way; on the strand ---

  void SendWhole(HttpResponse response) {
    if (closed_) return;
    std::string text = Head(response, response.body.size(), keep_alive_, /*chunked=*/false);
    if (!head_only_) text += response.body;
    Enqueue(std::move(text));
    answered_ = true;
    FinishIfWritten();
  }

  void BeginStream(HttpResponse response) {
    if (closed_) return;
    chunked_ = http_11_;
    if (!chunked_) keep_alive_ = false;
    const std::string body = std::exchange(response.body, "");
    Enqueue(Head(response, std::nullopt, keep_alive_, chunked_));
    if (!body.empty()) WritePart(body);
  }

  bool WritePart(const std::string& part) {
    if (closed_) return false;
    if (part.empty() || head_only_) return true;
    Enqueue(chunked_ ? Chunk(part) : part);
    if (pending_bytes_ > shared_.limits.max_pending_bytes) {
      Close(DisconnectReason::kSlowReader);
      return false;
    }
    return true;
  }

  void EndStream() {
    if (closed_) return;
    if (chunked_ && !head_only_) Enqueue("0\r\n\r\n");
    answered_ = true;
    FinishIfWritten();
  }

  // An answer of the HTTP layer's own to the request under way.
  void SendFailure(HttpFailure failure) {
    if (closed_) return;
    failure.taken = std::chrono::steady_clock::now() - begun_;
    SendWhole(shared_.on_failure(std::move(failure)));
  }

  void OnDisconnect(std::function<void(DisconnectReason)> callback) {
    if (closed_) {
      asio::post(strand_,
                 [callback = std::move(callback), reason = close_reason_] { callback(reason); });
    } else {
      on_disconnect_ = std::move(callback);
    }
  }

  void Abandon() override {
    if (std::exchange(closed_, true)) return;
    error_code ignored;
    socket_.close(ignored);
    if (on_disconnect_) std::exchange(on_disconnect_, nullptr)(DisconnectReason::kShutdown);
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  // --- the transport ---

  // A peer that is gone without a word is noticed, also while it waits for its answer.
  void WatchPeer() {
    error_code ignored;
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
    const auto set = [this](int option, std::chrono::milliseconds value, int unit_ms) {
      const int number = std::max(1, static_cast<int>(value.count() / unit_ms));
      (void)setsockopt(socket_.native_handle(), IPPROTO_TCP, option, &number, sizeof(number));
    };
    const std::chrono::milliseconds time = shared_.limits.keepalive;
    set(TCP_KEEPIDLE, time, 1000);
    set(TCP_KEEPINTVL, time / 3, 1000);
    set(TCP_KEEPCNT, std::chrono::milliseconds(3), 1);
    set(TCP_USER_TIMEOUT, std::max(shared_.limits.write_timeout, 2 * time), 1);
  }

  void Handshake() {
    NoteIdle();
    ArmReadTimer(shared_.limits.handshake_timeout);
    handshaking_ = true;
    tls_->async_handshake(asio::ssl::stream_base::server,
                          asio::bind_executor(strand_, [self = shared_from_this()](error_code ec) {
                            self->handshaking_ = false;
                            if (self->closed_) return;
                            if (ec) return self->FailHandshake(ec);
                            self->AwaitRequest();
                            self->ReadMore();
                          }));
  }

  void FailHandshake(error_code ec) {
    shared_.failed_handshakes += 1;
    const auto error = static_cast<unsigned long>(ec.value());
    if (ec.category() == asio::error::get_ssl_category() &&
        ERR_GET_REASON(error) == SSL_R_HTTP_REQUEST) {
      const HttpResponse response =
          shared_.on_failure({400, "plain_http", "HTTPS is spoken here, not plain HTTP"});
      const std::string text = Head(response, response.body.size(), false, false) + response.body;
      error_code ignored;
      socket_.non_blocking(true, ignored);
      socket_.write_some(asio::buffer(text), ignored);
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
    }
    Close(DisconnectReason::kPeerClosed);
  }

  template <typename Callback>
  void ReadSome(Callback on_read) {
    auto on_strand = asio::bind_executor(strand_, std::move(on_read));
    if (tls_) {
      tls_->async_read_some(asio::buffer(incoming_), std::move(on_strand));
    } else {
      socket_.async_read_some(asio::buffer(incoming_), std::move(on_strand));
    }
  }

  template <typename Callback>
  void WriteSome(asio::const_buffer bytes, Callback on_written) {
    auto on_strand = asio::bind_executor(strand_, std::move(on_written));
    if (tls_) {
      tls_->async_write_some(bytes, std::move(on_strand));
    } else {
      socket_.async_write_some(bytes, std::move(on_strand));
    }
  }

  // Nothing more will be sent; what comes in is still read.
  void EndSending() {
    const auto end = [self = shared_from_this()](error_code) {
      error_code ignored;
      if (!self->closed_) self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
    };
    if (!tls_) return end(error_code());
    tls_->async_shutdown(asio::bind_executor(strand_, end));
  }

  // --- reading ---

  void ReadMore() {
    if (reading_ || closed_) return;
    // While an answer is under way the client may send ahead, but not without end.
    if (busy_ && buffer_.size() >= kPipelineBytes) return;
    reading_ = true;
    // Not into buffer_ itself: pipelined requests are taken out of it while this read is pending.
    ReadSome([self = shared_from_this()](error_code ec, size_t n) {
      self->reading_ = false;
      self->OnRead(ec, n);
    });
  }

  void OnRead(error_code ec, size_t n) {
    if (closed_) return;
    if (ec) return Close(DisconnectReason::kPeerClosed);
    if (lingering_) {
      lingered_bytes_ += n;
      if (lingered_bytes_ > kLingerBytes) return Close(DisconnectReason::kPeerClosed);
      return ReadMore();
    }
    buffer_.commit(asio::buffer_copy(buffer_.prepare(n), asio::buffer(incoming_, n)));
    ParseAvailable();
    ReadMore();
  }

  void ParseAvailable() {
    while (!busy_ && !closed_ && !lingering_ && buffer_.size() > 0) {
      if (!parser_) {
        NoteNotIdle();
        begun_ = std::chrono::steady_clock::now();
        parser_.emplace();
        // Its own limit is for the first line and for the fields, each, and for both when they come
        // in pieces: what comes is measured below, a part of the message at a time.
        parser_->eager(false);
        parser_->header_limit(static_cast<uint32_t>(shared_.limits.max_header_bytes + 1));
        parser_->body_limit(shared_.limits.max_body_bytes);
        // The time for a whole request starts with its first byte.
        ArmReadTimer(shared_.limits.request_timeout);
        expect_answered_ = false;
        frame_bytes_ = 0;
      }
      // Beast 1.81 asserts that a last chunk which goes on has so many bytes.
      const bool in_chunks = parser_->is_header_done() && parser_->chunked();
      if (in_chunks && buffer_.size() < kLastChunkBytes) return;
      error_code ec;
      const size_t body_bytes = parser_->get().body().size();
      const size_t used = parser_->put(buffer_.data(), ec);
      buffer_.consume(used);
      if (parser_->get().body().size() == body_bytes) frame_bytes_ += used;
      const size_t unfinished = ec == http::error::need_more ? buffer_.size() : 0;
      if ((!ec || unfinished > 0) && frame_bytes_ + unfinished > shared_.limits.max_header_bytes) {
        ec = http::error::header_limit;
      }
      if (parser_->is_header_done()) frame_bytes_ = 0;
      if (ec && ec != http::error::need_more) return RefuseRequest(ec);
      if (!CountIncoming(parser_->get().body().size())) {
        HttpFailure failure{503, "too_many_bodies",
                            "the bodies of requests that are on their way hold more than " +
                                std::to_string(shared_.limits.max_incoming_bytes) + " bytes"};
        failure.retry_after_s = 1;
        return Refuse(std::move(failure));
      }
      if (parser_->is_done()) return Dispatch();
      if (parser_->is_header_done() && buffer_.size() == 0) AnswerExpect();
      if (ec == http::error::need_more || used == 0) return;
    }
  }

  // This connection's part of all that is on its way. False: it is too much.
  bool CountIncoming(size_t body_bytes) {
    const uint64_t before = shared_.incoming_bytes.fetch_add(body_bytes - counted_bytes_);
    const uint64_t now = before + (body_bytes - counted_bytes_);
    counted_bytes_ = body_bytes;
    return body_bytes <= kSmallBody || now <= shared_.limits.max_incoming_bytes;
  }

  void AnswerExpect() {
    if (std::exchange(expect_answered_, true)) return;
    if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
      Enqueue("HTTP/1.1 100 Continue\r\n\r\n");
    }
  }

  void Dispatch() {
    auto message = parser_->release();
    parser_.reset();
    read_timer_.cancel();
    busy_ = true;
    answered_ = false;
    chunked_ = false;
    http_11_ = message.version() >= 11;
    keep_alive_ = message.keep_alive() && !shared_.stopping;
    head_only_ = message.method() == http::verb::head;

    HttpRequest request = HeadOf(message);
    if (message.body().size() <= kSmallBody) {
      CountIncoming(0);
      return Serve(std::move(request), std::move(message.body()));
    }
    request.body = std::move(message.body());
    held_ = std::move(request);
    shared_.heavy.Enter(
        [self = shared_from_this()] { asio::post(self->strand_, [self] { self->ServeHeld(); }); });
  }

  // It is this one's turn.
  void ServeHeld() {
    if (held_) {  // else it was closed meanwhile
      HttpRequest request = *std::exchange(held_, std::nullopt);
      std::string body = std::exchange(request.body, "");
      Serve(std::move(request), std::move(body));
      CountIncoming(0);
    }
    shared_.heavy.Leave();
  }

  void Serve(HttpRequest head, std::string body);

  // An error of the HTTP layer: answered, then the connection ends, for what follows cannot be
  // trusted.
  void RefuseRequest(error_code ec) {
    if (ec == http::error::body_limit) {
      Refuse(
          {413, "body_too_large",
           "the body is larger than " + std::to_string(shared_.limits.max_body_bytes) + " bytes"});
    } else if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
      Refuse({431, "header_too_large",
              "the header is larger than " + std::to_string(shared_.limits.max_header_bytes) +
                  " bytes"});
    } else {
      Refuse({400, "malformed_request", "the request is not valid HTTP: " + ec.message()});
    }
  }

  // Requires: a request is being read.
  void Refuse(HttpFailure failure) {
    failure.request = HeadOf(parser_->get());
    parser_.reset();
    CountIncoming(0);
    busy_ = true;
    keep_alive_ = false;
    head_only_ = false;
    SendFailure(std::move(failure));
  }

  // --- writing ---

  void Enqueue(std::string text) {
    pending_bytes_ += text.size();
    pending_ += text;
    if (!writing_) WriteMore();
  }

  void WriteMore() {
    if (sending_offset_ == sending_.size()) {
      sending_.clear();
      std::swap(sending_, pending_);
      sending_offset_ = 0;
    }
    writing_ = true;
    if (!window_open_) OpenWriteWindow();
    WriteSome(asio::buffer(sending_.data() + sending_offset_, sending_.size() - sending_offset_),
              [self = shared_from_this()](error_code ec, size_t n) { self->OnWritten(ec, n); });
  }

  void OnWritten(error_code ec, size_t n) {
    writing_ = false;
    if (closed_) return;
    if (ec) return Close(DisconnectReason::kPeerClosed);
    sending_offset_ += n;
    pending_bytes_ -= n;
    window_bytes_ += n;
    if (window_bytes_ >= shared_.limits.min_write_bytes || pending_bytes_ == 0) {
      window_open_ = false;
      write_timer_.cancel();
    }
    if (pending_bytes_ > 0) return WriteMore();
    FinishIfWritten();
  }

  // The next request is looked at when the answer has left: that keeps the order and bounds the
  // memory.
  void FinishIfWritten() {
    if (!busy_ || !answered_ || writing_ || pending_bytes_ > 0 || closed_) return;
    busy_ = false;
    on_disconnect_ = nullptr;
    if (!keep_alive_ || shared_.stopping) return Linger();
    AwaitRequest();
    // Not from here: a client that sends many requests at once must not grow the stack.
    asio::post(strand_, [self = shared_from_this()] {
      if (self->closed_) return;
      self->ParseAvailable();
      self->ReadMore();
    });
  }

  void Linger() {
    lingering_ = true;
    EndSending();
    ArmReadTimer(kLingerTime);
    ReadMore();
  }

  // --- time ---

  void AwaitRequest() {
    NoteIdle();
    ArmReadTimer(shared_.limits.idle_timeout);
  }

  void NoteIdle() {
    NoteNotIdle();
    const std::lock_guard lock(shared_.mutex);
    idle_since_ = ++shared_.last_idle;
    shared_.idle.emplace(idle_since_, weak_from_this());
  }
  void NoteNotIdle() {
    if (idle_since_ == 0) return;
    const std::lock_guard lock(shared_.mutex);
    shared_.idle.erase(std::exchange(idle_since_, 0));
  }

  void ArmReadTimer(std::chrono::milliseconds time) {
    read_timer_.expires_after(time);
    read_timer_.async_wait(asio::bind_executor(strand_, [self = shared_from_this()](error_code ec) {
      // A timer that was set anew after it fired is not due.
      if (ec || self->closed_ || self->read_timer_.expiry() > asio::steady_timer::clock_type::now())
        return;
      self->OnReadTimeout();
    }));
  }

  void OnReadTimeout() {
    if (busy_) return;
    if (handshaking_) shared_.failed_handshakes += 1;
    if (!parser_ || lingering_) return Close(DisconnectReason::kTimeout);
    shared_.slow_senders += 1;
    Refuse({408, "request_timeout",
            "the request was not complete after " +
                std::to_string(shared_.limits.request_timeout.count()) + " ms"});
  }

  // From here on the client has the time to take something worth mentioning.
  void OpenWriteWindow() {
    window_open_ = true;
    window_bytes_ = 0;
    write_timer_.expires_after(shared_.limits.write_timeout);
    write_timer_.async_wait(
        asio::bind_executor(strand_, [self = shared_from_this()](error_code ec) {
          if (ec || !self->window_open_ ||
              self->write_timer_.expiry() > asio::steady_timer::clock_type::now())
            return;
          self->Close(DisconnectReason::kTimeout);
        }));
  }

  // --- the end ---

  void Close(DisconnectReason reason) {
    if (std::exchange(closed_, true)) return;
    close_reason_ = reason;
    NoteNotIdle();
    held_.reset();
    CountIncoming(0);
    shared_.drain.Left(1);
    error_code ignored;
    if (reason == DisconnectReason::kSlowReader || reason == DisconnectReason::kTimeout) {
      // What is queued would only be sent to somebody who does not read.
      socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    }
    socket_.close(ignored);
    read_timer_.cancel();
    write_timer_.cancel();
    pending_.clear();
    // Not from here: whoever closes may be in the middle of the answer.
    if (on_disconnect_) {
      asio::post(strand_,
                 [callback = std::exchange(on_disconnect_, nullptr), reason] { callback(reason); });
    }
    bool empty = false;
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.connections.erase(shared_from_this());
      empty = shared_.connections.empty();
    }
    if (empty && shared_.stopping) shared_.on_empty();
  }

  HttpShared& shared_;
  Strand strand_;
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;  // nothing: plain HTTP
  asio::steady_timer read_timer_, write_timer_;
  bool handshaking_ = false;
  uint64_t idle_since_ = 0;   // in HttpShared::idle; 0: it is not
  size_t counted_bytes_ = 0;  // of HttpShared::incoming_bytes

  std::array<char, kReadBytes> incoming_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::chrono::steady_clock::time_point begun_;  // of the request that is read or answered
  size_t frame_bytes_ = 0;  // of its header; then of a chunk's first line, or the last chunk's all
  bool reading_ = false, expect_answered_ = false;

  bool busy_ = false;                // a request is being answered
  std::optional<HttpRequest> held_;  // this one; it waits for its turn
  bool answered_ = false;            // its answer is complete, though perhaps not written
  bool keep_alive_ = false, http_11_ = true, chunked_ = false, head_only_ = false;
  std::function<void(DisconnectReason)> on_disconnect_;

  std::string sending_, pending_;  // being written; waiting behind it
  size_t sending_offset_ = 0, pending_bytes_ = 0;
  bool writing_ = false;
  bool window_open_ = false;  // the write timer runs
  size_t window_bytes_ = 0;   // taken since it does

  bool lingering_ = false, closed_ = false;
  size_t lingered_bytes_ = 0;
  DisconnectReason close_reason_ = DisconnectReason::kPeerClosed;
};

// --- one request's answer ---

class Exchange : public Responder, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest head)
      : connection_(std::move(connection)), head_(std::move(head)) {}

  // A handler that drops its responder has still to be answered for.
  ~Exchange() override {
    if (state_ == State::kDone) return;
    connection_->Post([connection = connection_, begun = state_ == State::kStreaming,
                       head = std::move(head_)]() mutable {
      if (begun) return connection->EndStream();
      HttpFailure failure{500, "internal_error", "the request was dropped"};
      failure.request = std::move(head);
      connection->SendFailure(std::move(failure));
    });
  }

  // Nothing, when the handler has answered before it failed.
  void Fail(HttpFailure failure) {
    if (state_ != State::kOpen) return;
    state_ = State::kDone;
    failure.request = std::move(head_);
    connection_->SendFailure(std::move(failure));
  }

  void Send(HttpResponse response) override {
    if (state_ != State::kOpen) return;
    state_ = State::kDone;
    connection_->SendWhole(std::move(response));
  }
  void BeginStream(HttpResponse head) override {
    if (state_ != State::kOpen) return;
    state_ = State::kStreaming;
    connection_->BeginStream(std::move(head));
  }
  bool Write(std::string part) override {
    return state_ == State::kStreaming && connection_->WritePart(part);
  }
  void EndStream() override {
    if (state_ != State::kStreaming) return;
    state_ = State::kDone;
    connection_->EndStream();
  }
  void OnDisconnect(std::function<void(DisconnectReason)> callback) override {
    connection_->OnDisconnect(
        [weak = weak_from_this(), callback = std::move(callback)](DisconnectReason reason) {
          if (const auto self = weak.lock()) self->state_ = State::kDone;
          callback(reason);
        });
  }
  void Post(std::function<void()> task) override { connection_->Post(std::move(task)); }

 private:
  enum class State : uint8_t { kOpen, kStreaming, kDone };
  std::shared_ptr<Connection> connection_;
  HttpRequest head_;
  State state_ = State::kOpen;
};

void Connection::Serve(HttpRequest head, std::string body) {
  auto exchange = std::make_shared<Exchange>(shared_from_this(), head);
  if (shared_.stopping) {
    const auto grace = std::chrono::ceil<std::chrono::seconds>(shared_.limits.shutdown_grace);
    HttpFailure failure{503, "shutting_down", "the server is shutting down"};
    failure.retry_after_s = static_cast<int>(std::max<int64_t>(grace.count(), 1));
    return exchange->Fail(std::move(failure));
  }
  head.body = std::move(body);
  try {
    shared_.handler(std::move(head), exchange);
  } catch (const std::exception& e) {
    // Out of memory, or a library's exception: this request's error, not the server's end.
    exchange->Fail({500, "internal_error", std::string("internal error: ") + e.what()});
  }
}

}  // namespace

std::shared_ptr<HttpConnection> MakeHttpConnection(HttpShared& shared, tcp::socket socket,
                                                   asio::ssl::context* tls) {
  return std::make_shared<Connection>(shared, std::move(socket), tls);
}

}  // namespace kvlink::server
