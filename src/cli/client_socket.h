// ClientSocket: a connection to a server, plain or TLS, whose calls give up at a deadline.
//
// TLS 1.2 and 1.3. A server must show a certificate that one of the trusted authorities signed, for
// the host that was asked for, in its time. Calls block, and look about once a second whether the
// deadline has passed or somebody wants to stop. Threads: a socket is one thread's; what is trusted
// may be shared by many.
#pragma once

#include <openssl/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvlink/status.h"

namespace kvlink::cli {

// The authorities that sign what is trusted.
using TlsTrust = std::shared_ptr<SSL_CTX>;

// `ca_file` is PEM; empty: the system's authorities, where OpenSSL looks for them (SSL_CERT_FILE
// and SSL_CERT_DIR say otherwise). kNotFound: it cannot be read; kInvalidArgument: it holds none.
Result<TlsTrust> LoadTlsTrust(const std::string& ca_file);

class ClientSocket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  ClientSocket(std::string host, uint16_t port, TimePoint deadline, const std::atomic<bool>* stop);
  ~ClientSocket();
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  // All of them: kUnavailable, with the peer and the reason; kDeadlineExceeded; kCancelled: `stop`
  // became true.
  Status Connect(const TlsTrust& trust);  // null: no TLS
  Status Write(std::string_view bytes);
  Result<size_t> Read(char* data, size_t size);  // 0: the other side is done

  // "<what> <host>:<port>: <why>".
  Status Failure(const std::string& what, const std::string& why) const;

 private:
  struct Bio;  // how OpenSSL sends and receives
  struct FreeSsl {
    void operator()(SSL* ssl) const;
  };

  Status ConnectPlain();
  Status Send(std::string_view bytes);
  Result<size_t> Receive(char* data, size_t size);
  Status Handshake(SSL_CTX* trust);
  Status HandshakeFailure() const;
  Status TlsFailure(const std::string& what) const;

  void SetTimeout(int option);
  bool IsStopped() const { return stop_ != nullptr && *stop_; }
  bool MayGoOn() const;
  Status GivenUp(const std::string& what) const;
  std::string Peer() const { return host_ + ":" + std::to_string(port_); }

  const std::string host_;
  const uint16_t port_;
  const TimePoint deadline_;
  const std::atomic<bool>* const stop_;
  int socket_ = -1;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // null: plain, or not connected
  bool established_ = false;           // the handshake is done
  Status transport_;                   // why OpenSSL could not send or receive
  bool peer_done_ = false;             // it could, but the peer is done
};

}  // namespace kvlink::cli
