// HttpClient: a blocking client on a plain socket, which can also misbehave: half requests, no
// reading, sudden closing.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvlink::server {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;
  nlohmann::json json() const { return nlohmann::json::parse(body); }
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool Send(const std::string& bytes);
  // The next answer; `until` ends the reading early, when the body holds that text.
  HttpReply Read(const std::string& until = "");
  // Everything until the server closes.
  std::string ReadRaw();
  // Takes up to `bytes` and forgets them; how many. 0: the connection has ended.
  size_t Skip(size_t bytes);
  // True when the server has closed and everything was read.
  bool AtEnd();
  void Close();
  // Closes so that the server sees a reset.
  void Reset();
  void ShrinkReceiveBuffer();

  HttpReply Post(const std::string& path, const nlohmann::json& body, const std::string& key = "");
  HttpReply Get(const std::string& path, const std::string& key = "");
  static std::string PostText(const std::string& path, const std::string& body,
                              const std::string& key = "");

 private:
  bool Fill();
  int fd_ = -1;
  std::string buffer_;
};

}  // namespace kvlink::server
