#include "server/http_socket.h"

#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ssl/error.hpp>
#include <chrono>
#include <string>

#include "server/http_text.h"

namespace kvlink::server {

namespace asio = boost::asio;
using boost::system::error_code;

HttpSocket::HttpSocket(Strand strand, Tcp::socket socket, asio::ssl::context* tls)
    : strand_(std::move(strand)), socket_(std::move(socket)) {
  if (tls != nullptr) tls_.emplace(socket_, *tls);
}

void HttpSocket::SetUp(const Limits& limits) {
  error_code ignored;
  socket_.set_option(Tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [this](int option, std::chrono::milliseconds value, int unit_ms) {
    const int number = std::max(1, static_cast<int>(value.count() / unit_ms));
    (void)setsockopt(socket_.native_handle(), IPPROTO_TCP, option, &number, sizeof(number));
  };
  const std::chrono::milliseconds time = limits.keepalive;
  set(TCP_KEEPIDLE, time, 1000);
  set(TCP_KEEPINTVL, time / 3, 1000);
  set(TCP_KEEPCNT, std::chrono::milliseconds(3), 1);
  set(TCP_USER_TIMEOUT, std::max(limits.write_timeout, 2 * time), 1);
}

bool HttpSocket::IsPlainHttp(error_code failure) {
  const auto error = static_cast<unsigned long>(failure.value());
  return failure.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(error) == SSL_R_HTTP_REQUEST;
}

void HttpSocket::EndSending(std::shared_ptr<void> owner) {
  const auto end = [this, owner = std::move(owner)](error_code) {
    error_code ignored;  // it may be closed by now
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
  };
  if (!tls_) return end(error_code());
  tls_->async_shutdown(asio::bind_executor(strand_, end));
}

void HttpSocket::SendLast(const HttpResponse& response) { SendLastAnswer(socket_, response); }

void HttpSocket::Close(bool reset) {
  error_code ignored;
  if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

void SendLastAnswer(asio::ip::tcp::socket& socket, const HttpResponse& response) {
  const std::string text = Head(response, response.body.size(), false, false) + response.body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(text), ignored);
  socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace kvlink::server
