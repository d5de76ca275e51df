// RedisSocket: one TCP connection, encrypted where asked, on which no call waits longer than its
// deadline: resolving the name, connecting, the TLS handshake, reading and writing.
//
// hiredis 0.14, which Debian 12 has, knows neither TLS nor a deadline of a whole call, so that only
// its parser is used (redis_client.h).
// Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tier/block_tier.h"
#include "tier/remote_tier.h"

namespace kvlink::tier {

struct Failure {
  ErrorReason reason = ErrorReason::kNone;
  std::string message;
  bool ok() const { return reason == ErrorReason::kNone; }
};

// Whom to trust: OpenSSL's context. Shared by all connections of a tier.
class TlsContext {
 public:
  // kInvalidArgument when the CA file cannot be used. Without a file: the system's authorities.
  static Result<std::shared_ptr<TlsContext>> Create(const std::string& ca_file,
                                                    const std::string& server_name);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class RedisSocket;
  TlsContext() = default;
  void* context_ = nullptr;  // SSL_CTX
  std::string server_name_;
};

class RedisSocket {
 public:
  RedisSocket();
  ~RedisSocket();
  RedisSocket(const RedisSocket&) = delete;
  RedisSocket& operator=(const RedisSocket&) = delete;

  // `tls` may be null. A failure of any function leaves the socket closed.
  Failure Connect(const RemoteEndpoint& endpoint, const std::shared_ptr<TlsContext>& tls,
                  TimePoint deadline);
  Failure Write(std::string_view bytes, TimePoint deadline);
  // At least one byte, at most `size`. What has arrived is read even when the deadline has passed.
  Failure Read(char* buffer, size_t size, size_t* got, TimePoint deadline);
  void Close();
  bool open() const { return descriptor_ >= 0; }

 private:
  struct Tls;

  Failure Handshake(TlsContext& context, const std::string& host, TimePoint deadline);
  Failure SendRaw(std::string_view bytes, TimePoint deadline);
  Failure ReceiveRaw(char* buffer, size_t size, size_t* got, TimePoint deadline);
  Failure SendPending(TimePoint deadline);  // what OpenSSL wants to send
  Failure ReceiveMore(TimePoint deadline);  // more for OpenSSL to read
  Failure Wait(short events, TimePoint deadline) const;
  Failure Closed(Failure failure);

  int descriptor_ = -1;
  std::string where_;  // host:port, for messages
  std::unique_ptr<Tls> tls_;
};

}  // namespace kvlink::tier
