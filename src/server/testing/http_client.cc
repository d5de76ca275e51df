#include "server/testing/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace kvlink::server {
namespace {

constexpr int kPatienceSeconds = 60;  // a test that hangs ends

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string Authorization(const std::string& key) {
  return key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
}

}  // namespace

HttpClient::HttpClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  const timeval patience{kPatienceSeconds, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Close();
}

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void HttpClient::Reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

void HttpClient::ShrinkReceiveBuffer() {
  const int bytes = 4096;
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

bool HttpClient::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool HttpClient::Fill() {
  char bytes[65536];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string HttpClient::ReadRaw() {
  while (Fill()) {
  }
  return std::exchange(buffer_, "");
}

size_t HttpClient::Skip(size_t bytes) {
  std::string skipped(bytes, '\0');
  return static_cast<size_t>(std::max<ssize_t>(recv(fd_, skipped.data(), bytes, 0), 0));
}

bool HttpClient::AtEnd() { return buffer_.empty() && !Fill(); }

HttpReply HttpClient::Read(const std::string& until) {
  HttpReply reply;
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill()) return reply;
  }
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply.status = std::stoi(head.substr(head.find(' ') + 1));
  for (size_t line = head.find("\r\n") + 2; line < head.size();) {
    const size_t stop = head.find("\r\n", line), colon = head.find(": ", line);
    reply.headers[Lower(head.substr(line, colon - line))] =
        head.substr(colon + 2, stop - colon - 2);
    line = stop + 2;
  }
  const auto done = [&] { return !until.empty() && reply.body.find(until) != std::string::npos; };
  if (reply.headers.contains("content-length")) {
    const size_t length = std::stoul(reply.headers["content-length"]);
    while (buffer_.size() < length && Fill()) {
    }
    reply.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
  } else if (reply.headers.contains("transfer-encoding")) {
    while (!done()) {
      size_t line;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!Fill()) return reply;
      }
      const size_t length = std::stoul(buffer_, nullptr, 16);
      while (buffer_.size() < line + 2 + length + 2) {
        if (!Fill()) return reply;
      }
      reply.body += buffer_.substr(line + 2, length);
      buffer_.erase(0, line + 2 + length + 2);
      if (length == 0) break;
    }
  } else if (reply.status != 100) {
    while (!done() && Fill()) {
    }
    reply.body = std::exchange(buffer_, "");
  }
  return reply;
}

std::string HttpClient::PostText(const std::string& path, const std::string& body,
                                 const std::string& key) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\n" + Authorization(key) +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

HttpReply HttpClient::Post(const std::string& path, const nlohmann::json& body,
                           const std::string& key) {
  Send(PostText(path, body.dump(), key));
  return Read();
}

HttpReply HttpClient::Get(const std::string& path, const std::string& key) {
  Send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + Authorization(key) + "\r\n");
  return Read();
}

}  // namespace kvlink::server
