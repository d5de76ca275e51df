#include "cli/http_client.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <chrono>
#include <sstream>
#include <utility>

namespace kvlink::cli {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint16_t kHttpPort = 80, kHttpsPort = 443;

Result<int> ReadAnswer(ClientSocket& socket, const HttpClient::OnBody& on_body) {
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  std::array<char, 16384> piece;
  std::string unread;  // what the parser could not use yet
  beast::error_code error;
  while (!parser.is_done()) {
    const auto count = socket.Read(piece.data(), piece.size());
    if (!count.ok()) return count.status();
    if (*count == 0) {
      parser.put_eof(error);
      if (error) return socket.Failure("broken answer from", error.message());
      break;
    }
    unread.append(piece.data(), *count);
    while (!unread.empty() && !parser.is_done()) {
      const size_t used = parser.put(boost::asio::buffer(unread), error);
      unread.erase(0, used);
      if (error == http::error::need_more) break;
      if (error) return socket.Failure("broken answer from", error.message());
    }
    std::string& body = parser.get().body();
    if (!body.empty()) on_body(body);
    body.clear();
  }
  return static_cast<int>(parser.get().result_int());
}

}  // namespace

std::string Url::Authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string name = is_ipv6 ? "[" + host + "]" : host;
  return port == (tls ? kHttpsPort : kHttpPort) ? name : name + ":" + std::to_string(port);
}

std::string Url::Text() const { return (tls ? "https://" : "http://") + Authority() + path; }

Result<Url> ParseUrl(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "--url: '" + std::string(text) + "' " + why);
  };
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  Url url;
  url.tls = text.starts_with(kHttps);
  if (!url.tls && !text.starts_with(kHttp)) return bad("must start with http:// or https://");
  url.port = url.tls ? kHttpsPort : kHttpPort;
  std::string_view rest = text.substr(url.tls ? kHttps.size() : kHttp.size());
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

HttpClient::HttpClient(HttpClientOptions options, TlsTrust trust)
    : options_(std::move(options)), trust_(std::move(trust)) {}

Result<HttpClient> HttpClient::Create(HttpClientOptions options) {
  if (!options.url.tls) {
    if (options.tls_ca.empty()) return HttpClient(std::move(options), nullptr);
    return Status(StatusCode::kInvalidArgument, "--tls-ca: only with an https:// --url");
  }
  auto trust = LoadTlsTrust(options.tls_ca);
  if (!trust.ok()) return trust.status();
  return HttpClient(std::move(options), *std::move(trust));
}

Result<int> HttpClient::Exchange(const std::string& path, const std::string* json,
                                 const OnBody& on_body, const std::atomic<bool>* stop) const {
  const Url& url = options_.url;
  http::request<http::string_body> request(json != nullptr ? http::verb::post : http::verb::get,
                                           url.path + path, 11);
  request.set(http::field::host, url.Authority());
  request.set(http::field::connection, "close");
  if (has_key()) request.set(http::field::authorization, "Bearer " + options_.api_key);
  if (json != nullptr) {
    request.set(http::field::content_type, "application/json");
    request.body() = *json;
  }
  request.prepare_payload();
  std::ostringstream text;
  text << request;
  const auto timeout = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(options_.timeout_s));
  ClientSocket socket(url.host, url.port, std::chrono::steady_clock::now() + timeout, stop);
  if (Status status = socket.Connect(trust_); !status.ok()) return status;
  if (Status status = socket.Write(text.str()); !status.ok()) return status;
  return ReadAnswer(socket, on_body);
}

Result<HttpAnswer> HttpClient::ExchangeWhole(const std::string& path,
                                             const std::string* json) const {
  HttpAnswer answer;
  const auto status = Exchange(
      path, json, [&](std::string_view piece) { answer.body += piece; }, nullptr);
  if (!status.ok()) return status.status();
  answer.status = *status;
  return answer;
}

Result<HttpAnswer> HttpClient::Get(const std::string& path) const {
  return ExchangeWhole(path, nullptr);
}

Result<HttpAnswer> HttpClient::Post(const std::string& path, const std::string& json) const {
  return ExchangeWhole(path, &json);
}

Result<int> HttpClient::PostAndStream(const std::string& path, const std::string& json,
                                      const OnBody& on_body, const std::atomic<bool>* stop) const {
  return Exchange(path, &json, on_body, stop);
}

}  // namespace kvlink::cli
