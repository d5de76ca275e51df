#include "server/http_request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "server/http_text.h"

namespace kvlink::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Message = http::request<http::string_body>;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kPipelineBytes = 64 << 10;  // read ahead while an answer is under way
constexpr size_t kLastChunkBytes = 5;        // at least; every chunked body ends with one

// "" when the header is absent or there more than once.
std::string OnlyHeader(const http::fields& fields, beast::string_view name) {
  const auto [begin, end] = fields.equal_range(name);
  if (begin == end || std::next(begin) != end) return "";
  return std::string(begin->value());
}

// A header that is a list may come in parts.
std::string JoinedHeaders(const http::fields& fields, beast::string_view name) {
  std::string joined;
  const auto [begin, end] = fields.equal_range(name);
  for (auto field = begin; field != end; ++field) {
    if (field != begin) joined += ',';
    joined += std::string(field->value());
  }
  return joined;
}

// All of a request but its body; nothing as long as its head is not complete.
HttpRequest HeadOf(const Message& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = PercentDecode(target.substr(0, question));
  if (question != std::string::npos) request.query = target.substr(question + 1);
  request.authorization = std::string(message[http::field::authorization]);
  // As Anthropic's clients send it.
  if (const auto key = message.find("x-api-key");
      request.authorization.empty() && key != message.end()) {
    request.authorization = "Bearer " + std::string(key->value());
  }
  request.request_id = OnlyHeader(message, "x-request-id");
  request.traceparent = OnlyHeader(message, "traceparent");
  request.tracestate = JoinedHeaders(message, "tracestate");
  return request;
}

}  // namespace

struct HttpRequestReader::State {
  explicit State(const Limits& given)
      : limits(given), buffer(std::max(kPipelineBytes, given.max_header_bytes) + kMostBytes) {}

  const Limits& limits;
  beast::flat_buffer buffer;
  std::optional<Parser> parser;
  size_t frame_bytes = 0;  // of the header; then of a chunk's first line, or the last chunk's all
  bool expectation_taken = false;
  error_code error;  // of the last step
};

HttpRequestReader::HttpRequestReader(const Limits& limits)
    : state_(std::make_unique<State>(limits)) {}
HttpRequestReader::~HttpRequestReader() = default;

void HttpRequestReader::Append(std::string_view bytes) {
  beast::flat_buffer& buffer = state_->buffer;
  buffer.commit(boost::asio::buffer_copy(buffer.prepare(bytes.size()),
                                         boost::asio::buffer(bytes.data(), bytes.size())));
}

bool HttpRequestReader::full() const { return state_->buffer.size() >= kPipelineBytes; }

bool HttpRequestReader::CanRead() const {
  const std::optional<Parser>& parser = state_->parser;
  // Beast 1.81 asserts that a last chunk which goes on has so many bytes.
  const bool in_chunks = parser && parser->is_header_done() && parser->chunked();
  return state_->buffer.size() >= (in_chunks ? kLastChunkBytes : 1);
}

bool HttpRequestReader::reading() const { return state_->parser.has_value(); }

void HttpRequestReader::Begin() {
  Parser& parser = state_->parser.emplace();
  // Its own limit is for the first line and for the fields, each, and for both when they come in
  // pieces: what comes is measured in Read, a part of the message at a time.
  parser.eager(false);
  parser.header_limit(static_cast<uint32_t>(state_->limits.max_header_bytes + 1));
  parser.body_limit(state_->limits.max_body_bytes);
  state_->expectation_taken = false;
  state_->frame_bytes = 0;
}

HttpRequestReader::Step HttpRequestReader::Read() {
  Parser& parser = *state_->parser;
  error_code& error = state_->error;
  const size_t body_bytes = parser.get().body().size();
  const size_t used = parser.put(state_->buffer.data(), error);
  state_->buffer.consume(used);
  if (parser.get().body().size() == body_bytes) state_->frame_bytes += used;
  const bool needs_more = error == http::error::need_more;
  const size_t unfinished = needs_more ? state_->buffer.size() : 0;
  if ((!error || unfinished > 0) &&
      state_->frame_bytes + unfinished > state_->limits.max_header_bytes) {
    error = http::error::header_limit;
    return Step::kRefused;
  }
  if (parser.is_header_done()) state_->frame_bytes = 0;
  if (error && !needs_more) return Step::kRefused;
  if (parser.is_done()) return Step::kComplete;
  return needs_more || used == 0 ? Step::kNeedsMore : Step::kGoesOn;
}

size_t HttpRequestReader::body_bytes() const {
  return reading() ? state_->parser->get().body().size() : 0;
}

bool HttpRequestReader::TakeExpectation() {
  const Parser& parser = *state_->parser;
  if (!parser.is_header_done() || state_->buffer.size() > 0) return false;
  if (std::exchange(state_->expectation_taken, true)) return false;
  return beast::iequals(parser.get()[http::field::expect], "100-continue");
}

HttpRequestReader::Received HttpRequestReader::Take() {
  Message message = state_->parser->release();
  state_->parser.reset();
  Received received{HeadOf(message), message.version() >= 11, message.keep_alive(),
                    message.method() == http::verb::head};
  received.request.body = std::move(message.body());
  return received;
}

HttpFailure HttpRequestReader::failure() const {
  const Limits& limits = state_->limits;
  const error_code error = state_->error;
  if (error == http::error::body_limit) {
    return {413, "body_too_large",
            "the body is larger than " + std::to_string(limits.max_body_bytes) + " bytes"};
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return {431, "header_too_large",
            "the header is larger than " + std::to_string(limits.max_header_bytes) + " bytes"};
  }
  return {400, "malformed_request", "the request is not valid HTTP: " + error.message()};
}

HttpRequest HttpRequestReader::Drop() {
  HttpRequest head = HeadOf(state_->parser->get());
  state_->parser.reset();
  return head;
}

}  // namespace kvlink::server
