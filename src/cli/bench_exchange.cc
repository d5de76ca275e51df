#include "cli/bench_exchange.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

namespace kvlink::cli {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using SteadyClock = std::chrono::steady_clock;

// A connected socket whose calls give up at a deadline.
class Connection {
 public:
  Connection(const Url& url, SteadyClock::time_point deadline, const std::atomic<bool>* stop)
      : url_(url), deadline_(deadline), stop_(stop) {}
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Status Connect() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error =
        ::getaddrinfo(url_.host.c_str(), std::to_string(url_.port).c_str(), &hints, &found);
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

  Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && !MayGoOn()) return Stopped("cannot write to");
      if (count > 0) bytes.remove_prefix(static_cast<size_t>(count));
    }
    return Status::Ok();
  }

  // 0: the other side is done.
  Result<size_t> Read(char* data, size_t size) {
    while (true) {
      const ssize_t count = ::recv(socket_, data, size, 0);
      if (IsStopped()) return Cancelled();
      if (count >= 0) return static_cast<size_t>(count);
      if (!MayGoOn()) return Stopped("broken answer from");
    }
  }

  Status Failure(const std::string& what, const std::string& why) const {
    return Status(StatusCode::kUnavailable,
                  what + " " + url_.host + ":" + std::to_string(url_.port) + ": " + why);
  }

 private:
  // Calls return at least once a second, to look at the deadline of the whole exchange.
  void SetTimeout(int option) {
    using std::chrono::microseconds;
    const auto left =
        std::chrono::duration_cast<microseconds>(deadline_ - SteadyClock::now()).count();
    const auto wait = std::clamp<int64_t>(left, 1, 1000000);
    const timeval time{wait / 1000000, wait % 1000000};
    ::setsockopt(socket_, SOL_SOCKET, option, &time, sizeof time);
  }

  bool MayGoOn() const {
    if (IsStopped()) return false;
    if (errno == EINTR) return true;
    return (errno == EAGAIN || errno == EWOULDBLOCK) && SteadyClock::now() < deadline_;
  }

  bool IsStopped() const { return stop_ != nullptr && *stop_; }
  static Status Cancelled() { return Status(StatusCode::kCancelled, "the request was stopped"); }

  Status Stopped(const std::string& what) const {
    if (IsStopped()) return Cancelled();
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Failure(what, std::strerror(errno));
    return Status(StatusCode::kDeadlineExceeded,
                  "no answer in time from " + url_.host + ":" + std::to_string(url_.port));
  }

  const Url& url_;
  const SteadyClock::time_point deadline_;
  const std::atomic<bool>* const stop_;
  int socket_ = -1;
};

Result<int> ReadAnswer(Connection& connection,
                       const std::function<void(std::string_view)>& on_body) {
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  std::array<char, 16384> piece;
  std::string unread;  // what the parser could not use yet
  beast::error_code error;
  while (!parser.is_done()) {
    const auto count = connection.Read(piece.data(), piece.size());
    if (!count.ok()) return count.status();
    if (*count == 0) {
      parser.put_eof(error);
      if (error) return connection.Failure("broken answer from", error.message());
      break;
    }
    unread.append(piece.data(), *count);
    while (!unread.empty() && !parser.is_done()) {
      const size_t used = parser.put(boost::asio::buffer(unread), error);
      unread.erase(0, used);
      if (error == http::error::need_more) break;
      if (error) return connection.Failure("broken answer from", error.message());
    }
    std::string& body = parser.get().body();
    if (!body.empty()) on_body(body);
    body.clear();
  }
  return static_cast<int>(parser.get().result_int());
}

}  // namespace

Result<Url> ParseUrl(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "--url: '" + std::string(text) + "' " + why);
  };
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return bad("must start with http://");
  std::string_view rest = text.substr(kScheme.size());
  Url url;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  const size_t colon = rest.find(']') == std::string_view::npos ? rest.rfind(':') : rest.find("]:");
  if (colon != std::string_view::npos) {
    const size_t host_end = rest[colon] == ']' ? colon + 1 : colon;
    const std::string_view digits = rest.substr(host_end + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (error != std::errc() || end != digits.data() + digits.size() || url.port == 0) {
      return bad("has no port from 1 to 65535");
    }
    rest = rest.substr(0, host_end);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) return bad("names no host");
  url.host = rest;
  return url;
}

Result<int> SendRequest(const Url& url, const http::request<http::string_body>& request,
                        std::chrono::milliseconds timeout,
                        const std::function<void(std::string_view)>& on_body,
                        const std::atomic<bool>* stop) {
  Connection connection(url, SteadyClock::now() + timeout, stop);
  if (const Status status = connection.Connect(); !status.ok()) return status;
  std::ostringstream text;
  text << request;
  if (const Status status = connection.Write(text.str()); !status.ok()) return status;
  return ReadAnswer(connection, on_body);
}

}  // namespace kvlink::cli
