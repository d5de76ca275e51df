// One HTTP exchange of the load client: connect, write, read the answer as it comes.
//
// Blocking sockets: a piece of a stream costs one system call and one wake-up, so that the client
// takes little of the machine that it measures. The answer's framing (chunked, by length, to the
// end) is Beast's parser's. Plain HTTP, a connection a request. Threads: an Exchange is one
// thread's.
#pragma once

#include <atomic>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kvlink/status.h"

namespace kvlink::cli {

inline constexpr const char* kTlsCaHelp =
    "With --url https://: PEM file of the authorities to trust; default: the system's";

struct Url {
  std::string host;
  uint16_t port = 80;
  std::string path;  // before "/v1/...": "" or "/prefix"
};

// "http://host[:port][/prefix]", with or without "/v1" at the end. kInvalidArgument with the text
// seen.
Result<Url> ParseUrl(std::string_view text);

// Sends the request to the host of `url` and calls `on_body` with each piece of the body as it
// comes. Answers the HTTP status. kUnavailable: nobody there, a broken answer;
// kDeadlineExceeded: not done after `timeout`; kCancelled: `stop` became true (both noticed within
// a second).
Result<int> SendRequest(const Url& url,
                        const boost::beast::http::request<boost::beast::http::string_body>& request,
                        std::chrono::milliseconds timeout,
                        const std::function<void(std::string_view)>& on_body,
                        const std::atomic<bool>* stop = nullptr);

}  // namespace kvlink::cli
