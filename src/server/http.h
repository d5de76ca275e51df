// Http: what the API sees of HTTP/1.1, without the library that speaks it.
//
// A handler gets a parsed request and a Responder. It answers with one Send, or with BeginStream,
// Write..., EndStream; now or later. Threads: the handler and everything of a Responder run on the
// connection's strand (one at a time), except Post, which any thread may call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvlink::server {

struct HttpRequest {
  std::string method, path, query;  // path is percent-decoded, without the query
  std::string authorization;
  std::string body;
  // Headers as they came; empty: absent, or (but tracestate, which is a list) there more than once.
  std::string request_id, traceparent, tracestate;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

enum class DisconnectReason : uint8_t { kPeerClosed, kSlowReader, kTimeout, kShutdown };
const char* DisconnectReasonName(DisconnectReason reason);

class Responder {
 public:
  virtual ~Responder() = default;
  virtual void Send(HttpResponse response) = 0;
  // Starts a chunked answer; `head.body` is its first part.
  virtual void BeginStream(HttpResponse head) = 0;
  // False when the connection is gone, or is now because the client does not keep up.
  virtual bool Write(std::string part) = 0;
  virtual void EndStream() = 0;
  // Called once, on the strand, if the connection goes away before the answer is complete. At
  // kShutdown it may still be there until the callback returns: what is answered then is sent.
  virtual void OnDisconnect(std::function<void(DisconnectReason)> callback) = 0;
  virtual void Post(std::function<void()> task) = 0;
};

using Handler = std::function<void(HttpRequest request, std::shared_ptr<Responder> responder)>;

// Why the HTTP layer answers by itself: instead of a handler, or for one that failed.
struct HttpFailure {
  int status = 400;
  std::string code, message;
  int retry_after_s = 0;                        // of 503
  HttpRequest request;                          // its head, where all of that has come
  std::chrono::steady_clock::duration taken{};  // since its first byte; 0: none came
};
// Makes that answer. Any thread.
using FailureHandler = std::function<HttpResponse(HttpFailure failure)>;

}  // namespace kvlink::server
