// HttpConnection: one client's connection: reads a request, has it answered, writes the answer, and
// looks at the next one when that has left.
//
//   socket -> HttpRequestReader -> handler, with an HttpExchange
//          <- UnsentBytes       <- the exchange's answer
//
// Internal to the HTTP server. Everything of a connection runs on its strand; Start, MakeRoom,
// Shutdown, CutOff and Post may be called from any thread. It lives as long as something is pending
// on it.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http_request_reader.h"
#include "server/http_shared.h"
#include "server/http_socket.h"
#include "server/unsent_bytes.h"

namespace kvlink::server {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // Speaks TLS if `tls` is not null.
  HttpConnection(HttpShared& shared, boost::asio::ip::tcp::socket socket,
                 boost::asio::ssl::context* tls);

  void Start();
  // Closes when idle, or at once.
  void Shutdown(bool at_once);
  // The answer under way has no more time: whoever works for it may still end it with an error.
  void CutOff();
  // Closes if it still is idle.
  void MakeRoom();
  // No thread serves any more: lets go of whoever waits for it.
  void Abandon();
  void Post(std::function<void()> task);

  // --- the answer under way, as HttpExchange gives it; on the strand ---
  void SendWhole(HttpResponse response);
  void BeginStream(HttpResponse response);
  bool WritePart(const std::string& part);
  void EndStream();
  // An answer of the HTTP layer's own.
  void SendFailure(HttpFailure failure);
  void OnDisconnect(std::function<void(DisconnectReason)> callback);

 private:
  using error_code = boost::system::error_code;

  void Handshake();
  void FailHandshake(error_code error);

  void ReadMore();
  void OnRead(error_code error, size_t n);
  void ReadRequests();
  void BeginRequest();
  bool CountIncoming(size_t body_bytes);
  void Dispatch();
  void ServeHeld();
  void Serve(HttpRequest request);
  void Refuse(HttpFailure failure);

  void Enqueue(std::string_view text);
  void WriteMore();
  void OnWritten(error_code error, size_t n);
  void FinishIfWritten();
  void Linger();

  void AwaitRequest();
  void NoteIdle();
  void NoteNotIdle();
  void ArmReadTimer(std::chrono::milliseconds time);
  void OnReadTimeout();
  void ArmWriteTimer();
  void Close(DisconnectReason reason);

  HttpShared& shared_;
  HttpSocket::Strand strand_;
  HttpSocket socket_;
  boost::asio::steady_timer read_timer_, write_timer_;
  bool handshaking_ = false;
  uint64_t idle_since_ = 0;   // in HttpShared::connections; 0: it is not
  size_t counted_bytes_ = 0;  // of HttpShared::incoming_bytes

  std::array<char, HttpRequestReader::kMostBytes> incoming_;
  HttpRequestReader reader_;
  std::chrono::steady_clock::time_point begun_;  // of the request that is read or answered
  bool reading_ = false;

  bool busy_ = false;                // a request is being answered
  std::optional<HttpRequest> held_;  // this one; it waits for its turn
  bool answered_ = false;            // its answer is complete, though perhaps not written
  bool keep_alive_ = false, http_11_ = true, chunked_ = false, head_only_ = false;
  std::function<void(DisconnectReason)> on_disconnect_;
  UnsentBytes unsent_;

  bool lingering_ = false, closed_ = false;
  size_t lingered_bytes_ = 0;
  DisconnectReason close_reason_ = DisconnectReason::kPeerClosed;
};

}  // namespace kvlink::server
