#include "tier/redis_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "tier/redis_resolve.h"

namespace kvlink::tier {
namespace {

std::string OpensslError() {
  const unsigned long code = ::ERR_get_error();
  if (code == 0) return "the peer broke the handshake off";
  char text[256];
  ::ERR_error_string_n(code, text, sizeof(text));
  return text;
}

bool IsAddress(const std::string& host) {
  ASN1_OCTET_STRING* address = ::a2i_IPADDRESS(host.c_str());
  if (address == nullptr) {
    ::ERR_clear_error();
    return false;
  }
  ::ASN1_OCTET_STRING_free(address);
  return true;
}

}  // namespace

struct RedisSocket::Tls {
  std::shared_ptr<TlsContext> context;
  SSL* ssl = nullptr;
  BIO* in = nullptr;   // from the socket; owned by ssl
  BIO* out = nullptr;  // to the socket; owned by ssl
  ~Tls() { ::SSL_free(ssl); }
};

Result<std::shared_ptr<TlsContext>> TlsContext::Create(const std::string& ca_file,
                                                       const std::string& server_name) {
  std::shared_ptr<TlsContext> made(new TlsContext);
  SSL_CTX* context = ::SSL_CTX_new(::TLS_client_method());
  if (context == nullptr) return Status(StatusCode::kInternal, "TLS: " + OpensslError());
  made->context_ = context;
  made->server_name_ = server_name;
  ::SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  const bool loaded = ca_file.empty()
                          ? ::SSL_CTX_set_default_verify_paths(context) == 1
                          : ::SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) == 1;
  if (!loaded) {
    return Status(StatusCode::kInvalidArgument,
                  "TLS: no certificate authorities in '" + ca_file + "': " + OpensslError());
  }
  return made;
}

TlsContext::~TlsContext() { ::SSL_CTX_free(static_cast<SSL_CTX*>(context_)); }

RedisSocket::RedisSocket() = default;
RedisSocket::~RedisSocket() { Close(); }

void RedisSocket::Close() {
  tls_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Failure RedisSocket::Closed(Failure failure) {
  Close();
  return failure;
}

Failure RedisSocket::Connect(const RemoteEndpoint& endpoint, const std::shared_ptr<TlsContext>& tls,
                             TimePoint deadline) {
  Close();
  where_ = endpoint.host + ":" + std::to_string(endpoint.port);
  std::vector<ResolvedAddress> addresses;
  Failure failure = Resolve(endpoint, deadline, &addresses);
  if (!failure.ok()) return failure;
  failure = {ErrorReason::kUnavailable, "no address for '" + endpoint.host + "'"};
  for (const ResolvedAddress& to : addresses) {
    Close();
    descriptor_ = ::socket(to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor_ < 0) {
      failure = {ErrorReason::kUnavailable, where_ + ": " + std::strerror(errno)};
      continue;
    }
    const int on = 1;
    ::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    int error = 0;
    if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&to.address), to.length) != 0) {
      if (errno == EINPROGRESS) {
        failure = Wait(POLLOUT, deadline);
        if (!failure.ok()) continue;
        socklen_t size = sizeof(error);
        ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
      } else {
        error = errno;
      }
    }
    if (error != 0) {
      failure = {ErrorReason::kUnavailable, where_ + ": " + std::strerror(error)};
      continue;
    }
    failure = {};
    if (tls) {
      tls_ = std::make_unique<Tls>();
      tls_->context = tls;
      failure = Handshake(*tls, endpoint.host, deadline);
    }
    if (failure.ok()) return failure;
  }
  return Closed(failure);
}

Failure RedisSocket::Handshake(TlsContext& context, const std::string& host, TimePoint deadline) {
  Tls& tls = *tls_;
  tls.ssl = ::SSL_new(static_cast<SSL_CTX*>(context.context_));
  tls.in = ::BIO_new(::BIO_s_mem());
  tls.out = ::BIO_new(::BIO_s_mem());
  if (tls.ssl == nullptr || tls.in == nullptr || tls.out == nullptr) {
    return {ErrorReason::kTls, "TLS: " + OpensslError()};
  }
  ::SSL_set_bio(tls.ssl, tls.in, tls.out);
  ::SSL_set_connect_state(tls.ssl);
  const std::string& name = context.server_name_.empty() ? host : context.server_name_;
  if (IsAddress(name)) {
    ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(tls.ssl), name.c_str());
  } else {
    ::SSL_set_tlsext_host_name(tls.ssl, name.c_str());
    ::SSL_set1_host(tls.ssl, name.c_str());
  }
  for (;;) {
    ::ERR_clear_error();
    const int done = ::SSL_do_handshake(tls.ssl);
    const int want = ::SSL_get_error(tls.ssl, done);
    Failure failure = SendPending(deadline);
    if (!failure.ok()) return failure;
    if (done == 1) return {};
    if (want != SSL_ERROR_WANT_READ) {
      const long verdict = ::SSL_get_verify_result(tls.ssl);
      const std::string why =
          verdict != X509_V_OK ? ::X509_verify_cert_error_string(verdict) : OpensslError();
      return {ErrorReason::kTls, where_ + ": TLS handshake failed: " + why};
    }
    failure = ReceiveMore(deadline);
    if (failure.reason == ErrorReason::kUnavailable) {
      return {ErrorReason::kTls,
              where_ + ": closed the connection during the TLS handshake" + " (is TLS on there?)"};
    }
    if (!failure.ok()) {  // a server without TLS waits for more, as a rule
      failure.message += " during the TLS handshake (is TLS on there?)";
      return failure;
    }
  }
}

Failure RedisSocket::Write(std::string_view bytes, TimePoint deadline) {
  if (!open()) return {ErrorReason::kUnavailable, where_ + ": not connected"};
  if (!tls_) return SendRaw(bytes, deadline);
  constexpr size_t kMost = size_t{1} << 18;  // so that memory for encrypted bytes stays small
  while (!bytes.empty()) {
    const int size = static_cast<int>(std::min(bytes.size(), kMost));
    ::ERR_clear_error();
    const int written = ::SSL_write(tls_->ssl, bytes.data(), size);
    if (written <= 0) return Closed({ErrorReason::kTls, where_ + ": TLS: " + OpensslError()});
    bytes.remove_prefix(static_cast<size_t>(written));
    Failure failure = SendPending(deadline);
    if (!failure.ok()) return failure;
  }
  return {};
}

Failure RedisSocket::Read(char* buffer, size_t size, size_t* got, TimePoint deadline) {
  if (!open()) return {ErrorReason::kUnavailable, where_ + ": not connected"};
  if (!tls_) return ReceiveRaw(buffer, size, got, deadline);
  for (;;) {
    ::ERR_clear_error();
    const int read = ::SSL_read(tls_->ssl, buffer, static_cast<int>(size));
    if (read > 0) {
      *got = static_cast<size_t>(read);
      return {};
    }
    const int want = ::SSL_get_error(tls_->ssl, read);
    if (want == SSL_ERROR_ZERO_RETURN) {
      return Closed({ErrorReason::kUnavailable, where_ + ": closed the connection"});
    }
    if (want != SSL_ERROR_WANT_READ) {
      return Closed({ErrorReason::kTls, where_ + ": TLS: " + OpensslError()});
    }
    Failure failure = SendPending(deadline);
    if (failure.ok()) failure = ReceiveMore(deadline);
    if (!failure.ok()) return failure;
  }
}

Failure RedisSocket::SendPending(TimePoint deadline) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(tls_->out, &bytes);
  if (size <= 0) return {};
  const std::string pending(bytes, static_cast<size_t>(size));
  (void)BIO_reset(tls_->out);
  return SendRaw(pending, deadline);
}

Failure RedisSocket::ReceiveMore(TimePoint deadline) {
  std::vector<char> buffer(size_t{64} << 10);
  size_t got = 0;
  Failure failure = ReceiveRaw(buffer.data(), buffer.size(), &got, deadline);
  if (failure.ok()) ::BIO_write(tls_->in, buffer.data(), static_cast<int>(got));
  return failure;
}

Failure RedisSocket::SendRaw(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      return Closed({ErrorReason::kUnavailable, where_ + ": " + std::strerror(errno)});
    }
    Failure failure = Wait(POLLOUT, deadline);
    if (!failure.ok()) return Closed(failure);
  }
  return {};
}

Failure RedisSocket::ReceiveRaw(char* buffer, size_t size, size_t* got, TimePoint deadline) {
  for (;;) {
    const ssize_t received = ::recv(descriptor_, buffer, size, 0);
    if (received > 0) {
      *got = static_cast<size_t>(received);
      return {};
    }
    if (received == 0) {
      return Closed({ErrorReason::kUnavailable, where_ + ": closed the connection"});
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return Closed({ErrorReason::kUnavailable, where_ + ": " + std::strerror(errno)});
    }
    Failure failure = Wait(POLLIN, deadline);
    if (!failure.ok()) return Closed(failure);
  }
}

Failure RedisSocket::Wait(short events, TimePoint deadline) const {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return {ErrorReason::kTimeout, where_ + ": no answer within the deadline"};
    }
    pollfd entry{descriptor_, events, 0};
    const auto most = std::numeric_limits<int>::max();
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), most)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) {
      return {ErrorReason::kUnavailable, where_ + ": " + std::strerror(errno)};
    }
  }
}

}  // namespace kvlink::tier
