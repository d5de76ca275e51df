// HttpRequestReader: the bytes of a connection -> its requests, one after the other, within the
// limits of header and body.
//
//   Append ... -> CanRead -> Begin -> Read ... -> kComplete -> Take
//                                              -> kRefused, or the caller's own reason -> Drop
//
// Bytes behind a request stay for the next one. What is refused ends the connection, for what
// follows cannot be trusted. Not thread-safe; no I/O, no clock. Costs: a parser a request; each
// byte is copied twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "server/http.h"
#include "server/server.h"

namespace kvlink::server {

class HttpRequestReader {
 public:
  static constexpr size_t kMostBytes = 16 << 10;  // of an Append

  struct Received {
    HttpRequest request;
    bool http_11 = true, keep_alive = false, head_only = false;
  };
  enum class Step : uint8_t { kNeedsMore, kGoesOn, kComplete, kRefused };

  explicit HttpRequestReader(const Limits& limits);
  ~HttpRequestReader();

  // Requires: not full.
  void Append(std::string_view bytes);
  // While an answer is under way the client may send ahead, but not without end.
  bool full() const;

  // Whether there are bytes that Read can make something of.
  bool CanRead() const;
  // A request has begun, and is not taken.
  bool reading() const;
  // Requires: not reading().
  void Begin();
  // The next part of the message: its header, or some of its body. Requires: reading(), CanRead().
  Step Read();
  // Of the request that is read, so far; 0: none is.
  size_t body_bytes() const;
  // True once: the client waits for "100 Continue" before it sends the body.
  bool TakeExpectation();
  // Requires: the last step was kComplete.
  Received Take();
  // Requires: the last step was kRefused.
  HttpFailure failure() const;
  // Gives the request up: its head, as far as it came. Requires: reading().
  HttpRequest Drop();

 private:
  struct State;  // keeps the parser out of this header
  const std::unique_ptr<State> state_;
};

}  // namespace kvlink::server
