// HttpClient: how the commands ask a server: `run`, `chat`, `cache`, `bench` and `doctor` with
// --url.
//
// http:// and https:// (client_socket.h), a connection an exchange. Sockets block: a piece of a
// stream costs one system call and one wake-up, so that a client that measures takes little of its
// machine. The answer's framing (chunked, by length, to the end) is Beast's parser's. Threads: any
// number may ask through one client.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/client_socket.h"
#include "kvlink/status.h"

namespace kvlink::cli {

inline constexpr const char* kTlsCaHelp =
    "With --url https://: PEM file of the authorities to trust; default: the system's";

struct Url {
  std::string host;
  uint16_t port = 80;
  std::string path;  // before "/v1/...": "" or "/prefix"
  bool tls = false;

  std::string Authority() const;  // "host", "[::1]:81"; the port unless it is the scheme's
  std::string Text() const;
};

// "http://host[:port][/prefix]" or https://, with or without "/v1" at the end. kInvalidArgument
// with the text seen.
Result<Url> ParseUrl(std::string_view text);

struct HttpClientOptions {
  Url url;
  std::string api_key;     // sent as a bearer token; empty: none
  std::string tls_ca;      // PEM file of the authorities to trust; empty: the system's
  double timeout_s = 600;  // of an exchange
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

class HttpClient {
 public:
  using OnBody = std::function<void(std::string_view)>;

  // kInvalidArgument, kNotFound: what is wrong with --tls-ca. Connects to nobody yet.
  static Result<HttpClient> Create(HttpClientOptions options);

  // `path` is appended to the URL's. kUnavailable: nobody there, a certificate that is not trusted,
  // a broken answer; kDeadlineExceeded.
  Result<HttpAnswer> Get(const std::string& path) const;
  Result<HttpAnswer> Post(const std::string& path, const std::string& json) const;
  // Calls `on_body` with each piece of the body as it comes; answers the HTTP status. Also
  // kCancelled: `stop` became true.
  Result<int> PostAndStream(const std::string& path, const std::string& json, const OnBody& on_body,
                            const std::atomic<bool>* stop = nullptr) const;

  const Url& url() const { return options_.url; }
  bool has_key() const { return !options_.api_key.empty(); }

 private:
  HttpClient(HttpClientOptions options, TlsTrust trust);
  // `json` null: GET.
  Result<int> Exchange(const std::string& path, const std::string* json, const OnBody& on_body,
                       const std::atomic<bool>* stop) const;
  Result<HttpAnswer> ExchangeWhole(const std::string& path, const std::string* json) const;

  HttpClientOptions options_;
  TlsTrust trust_;  // null: http://
};

}  // namespace kvlink::cli
