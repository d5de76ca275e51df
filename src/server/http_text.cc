#include "server/http_text.h"

#include <cstdio>
#include <cstdlib>

namespace kvlink::server {
namespace {

const char* Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 413:
      return "Payload Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

std::string Head(const HttpResponse& response, std::optional<size_t> length, bool keep_alive,
                 bool chunked) {
  std::string head =
      "HTTP/1.1 " + std::to_string(response.status) + " " + Reason(response.status) + "\r\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    head += name + ": " + value + "\r\n";
  };
  add("Server", "kvlink");
  add("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) add(name, value);
  if (length) add("Content-Length", std::to_string(*length));
  if (chunked) add("Transfer-Encoding", "chunked");
  add("Connection", keep_alive ? "keep-alive" : "close");
  return head + "\r\n";
}

std::string Chunk(const std::string& part) {
  char size[24];
  std::snprintf(size, sizeof(size), "%zx\r\n", part.size());
  return size + part + "\r\n";
}

std::string PercentDecode(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && IsHex(text[i + 1]) && IsHex(text[i + 2])) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace kvlink::server
