#include "cli/client_socket.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

namespace kvlink::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr const char* kIsItPlain = "; is it http:// there?";

// The oldest error of OpenSSL's, in words.
std::string OpensslError() {
  const unsigned long error = ::ERR_peek_error();
  const char* const reason = error != 0 ? ::ERR_reason_error_string(error) : nullptr;
  return reason != nullptr ? reason : "no reason given";
}

int AsInt(size_t size) {
  return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
}

Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

}  // namespace

Result<TlsTrust> LoadTlsTrust(const std::string& ca_file) {
  ::ERR_clear_error();
  TlsTrust trust(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
  if (trust == nullptr) return Status(StatusCode::kInternal, "TLS: " + OpensslError());
  ::SSL_CTX_set_min_proto_version(trust.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_verify(trust.get(), SSL_VERIFY_PEER, nullptr);
  if (ca_file.empty()) {
    if (::SSL_CTX_set_default_verify_paths(trust.get()) == 1) return trust;
    return Status(StatusCode::kFailedPrecondition,
                  "the system's certificate authorities cannot be read: " + OpensslError());
  }
  errno = 0;
  if (std::ifstream(ca_file).get() == std::ifstream::traits_type::eof()) {
    return Status(StatusCode::kNotFound, "--tls-ca: cannot read '" + ca_file + "': " +
                                             (errno != 0 ? std::strerror(errno) : "it is empty"));
  }
  if (::SSL_CTX_load_verify_locations(trust.get(), ca_file.c_str(), nullptr) == 1) return trust;
  return Status(StatusCode::kInvalidArgument,
                "--tls-ca: '" + ca_file + "' holds no PEM certificate: " + OpensslError());
}

// OpenSSL's own socket BIO raises SIGPIPE and knows no deadline.
struct ClientSocket::Bio {
  static ClientSocket& Of(BIO* bio) { return *static_cast<ClientSocket*>(::BIO_get_data(bio)); }

  static int Write(BIO* bio, const char* data, int size) {
    ClientSocket& socket = Of(bio);
    BIO_clear_retry_flags(bio);
    socket.transport_ = socket.Send({data, static_cast<size_t>(size)});
    return socket.transport_.ok() ? size : -1;
  }

  static int Read(BIO* bio, char* data, int size) {
    ClientSocket& socket = Of(bio);
    BIO_clear_retry_flags(bio);
    const auto count = socket.Receive(data, static_cast<size_t>(size));
    socket.transport_ = count.ok() ? Status::Ok() : count.status();
    if (!count.ok()) return -1;
    socket.peer_done_ = *count == 0;
    return static_cast<int>(*count);
  }

  static long Control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return Of(bio).peer_done_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static BIO* New(ClientSocket* socket) {
    using Method = std::unique_ptr<BIO_METHOD, decltype(&::BIO_meth_free)>;
    static const Method method = [] {
      Method made(::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "client socket"),
                  ::BIO_meth_free);
      if (made == nullptr) return made;
      ::BIO_meth_set_write(made.get(), Write);
      ::BIO_meth_set_read(made.get(), Read);
      ::BIO_meth_set_ctrl(made.get(), Control);
      return made;
    }();
    BIO* const bio = method != nullptr ? ::BIO_new(method.get()) : nullptr;
    if (bio == nullptr) return nullptr;
    ::BIO_set_data(bio, socket);
    ::BIO_set_init(bio, 1);
    return bio;
  }
};

void ClientSocket::FreeSsl::operator()(SSL* ssl) const { ::SSL_free(ssl); }

ClientSocket::ClientSocket(std::string host, uint16_t port, TimePoint deadline,
                           const std::atomic<bool>* stop)
    : host_(std::move(host)), port_(port), deadline_(deadline), stop_(stop) {}

ClientSocket::~ClientSocket() {
  if (established_ && transport_.ok()) {
    ::SSL_shutdown(ssl_.get());  // tells the end; the peer's answer is not waited for
    ::ERR_clear_error();
  }
  ssl_.reset();
  if (socket_ >= 0) ::close(socket_);
}

Status ClientSocket::Failure(const std::string& what, const std::string& why) const {
  return Unavailable(what + " " + Peer() + ": " + why);
}

Status ClientSocket::Connect(const TlsTrust& trust) {
  if (Status status = ConnectPlain(); !status.ok() || trust == nullptr) return status;
  return Handshake(trust.get());
}

Status ClientSocket::Write(std::string_view bytes) {
  if (ssl_ == nullptr) return Send(bytes);
  while (!bytes.empty()) {
    ::ERR_clear_error();
    const int count = ::SSL_write(ssl_.get(), bytes.data(), AsInt(bytes.size()));
    if (count <= 0) return TlsFailure("cannot write to");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return Status::Ok();
}

Result<size_t> ClientSocket::Read(char* data, size_t size) {
  if (ssl_ == nullptr) return Receive(data, size);
  ::ERR_clear_error();
  const int count = ::SSL_read(ssl_.get(), data, AsInt(size));
  if (count > 0) return static_cast<size_t>(count);
  if (::SSL_get_error(ssl_.get(), count) == SSL_ERROR_ZERO_RETURN) return size_t{0};
  return TlsFailure("broken answer from");
}

// --- TLS ---

Status ClientSocket::Handshake(SSL_CTX* trust) {
  ::ERR_clear_error();
  ssl_.reset(::SSL_new(trust));
  BIO* const bio = ssl_ != nullptr ? Bio::New(this) : nullptr;
  if (bio == nullptr) return {StatusCode::kInternal, "TLS: " + OpensslError()};
  ::SSL_set_bio(ssl_.get(), bio, bio);
  ::SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl_.get()), host_.c_str()) != 1) {
    ::SSL_set1_host(ssl_.get(), host_.c_str());  // it is a name
    SSL_set_tlsext_host_name(ssl_.get(), host_.c_str());
  }
  ::ERR_clear_error();
  established_ = ::SSL_connect(ssl_.get()) == 1;
  return established_ ? Status::Ok() : HandshakeFailure();
}

Status ClientSocket::HandshakeFailure() const {
  const long verdict = ::SSL_get_verify_result(ssl_.get());
  const std::string certificate = "the certificate of " + Peer();
  switch (verdict) {
    case X509_V_OK:
      break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Unavailable(certificate + " has expired");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Unavailable(certificate + " is not valid yet");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return Unavailable(certificate + " is not for '" + host_ + "'");
    default:
      return Unavailable(certificate +
                         " is not trusted: " + ::X509_verify_cert_error_string(verdict) +
                         "; --tls-ca FILE trusts the authority that signed it");
  }
  if (transport_.code() == StatusCode::kCancelled) return transport_;
  if (!transport_.ok()) {
    return {transport_.code(), transport_.message() + ", in the TLS handshake" + kIsItPlain};
  }
  if (peer_done_) {
    return Failure("no TLS handshake with", "the connection was closed" + std::string(kIsItPlain));
  }
  const unsigned long error = ::ERR_peek_error();
  if (ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) == SSL_R_WRONG_VERSION_NUMBER) {
    return Unavailable(Peer() + " does not speak TLS" + kIsItPlain);
  }
  return Failure("no TLS handshake with", OpensslError());
}

Status ClientSocket::TlsFailure(const std::string& what) const {
  if (!transport_.ok()) return transport_;
  if (peer_done_) return Failure(what, "the connection was cut");
  return Failure(what, OpensslError());
}

// --- the socket ---

Status ClientSocket::ConnectPlain() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
  if (error != 0) return Failure("cannot resolve", ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  int last_errno = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    socket_ = ::socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (socket_ < 0) {
      last_errno = errno;
      continue;
    }
    SetTimeout(SO_SNDTIMEO);  // connect obeys it as well
    if (::connect(socket_, address->ai_addr, address->ai_addrlen) == 0) {
      const int on = 1;
      ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      SetTimeout(SO_RCVTIMEO);
      return Status::Ok();
    }
    last_errno = errno;
    ::close(std::exchange(socket_, -1));
  }
  return Failure("cannot connect to", std::strerror(last_errno));
}

Status ClientSocket::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && !MayGoOn()) return GivenUp("cannot write to");
    if (count > 0) bytes.remove_prefix(static_cast<size_t>(count));
  }
  return Status::Ok();
}

Result<size_t> ClientSocket::Receive(char* data, size_t size) {
  while (true) {
    const ssize_t count = ::recv(socket_, data, size, 0);
    if (IsStopped()) return GivenUp("");
    if (count >= 0) return static_cast<size_t>(count);
    if (!MayGoOn()) return GivenUp("broken answer from");
  }
}

// Calls return at least once a second, to look at the deadline of the whole exchange.
void ClientSocket::SetTimeout(int option) {
  using std::chrono::microseconds;
  const auto left =
      std::chrono::duration_cast<microseconds>(deadline_ - SteadyClock::now()).count();
  const auto wait = std::clamp<int64_t>(left, 1, 1000000);
  const timeval time{wait / 1000000, wait % 1000000};
  ::setsockopt(socket_, SOL_SOCKET, option, &time, sizeof time);
}

bool ClientSocket::MayGoOn() const {
  if (IsStopped()) return false;
  if (errno == EINTR) return true;
  return (errno == EAGAIN || errno == EWOULDBLOCK) && SteadyClock::now() < deadline_;
}

Status ClientSocket::GivenUp(const std::string& what) const {
  if (IsStopped()) return {StatusCode::kCancelled, "the request was stopped"};
  if (errno != EAGAIN && errno != EWOULDBLOCK) return Failure(what, std::strerror(errno));
  return {StatusCode::kDeadlineExceeded, "no answer in time from " + Peer()};
}

}  // namespace kvlink::cli
