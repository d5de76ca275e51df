#include "tier/redis_reply.h"

#include <hiredis/hiredis.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

namespace kvlink::tier {
namespace {

template <typename T>
bool ParseNumber(std::string_view text, T* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

// "host:port"; the host may be empty, or an IPv6 address with colons.
bool ParseEndpoint(std::string_view text, const std::string& same_host, RemoteEndpoint* endpoint) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  endpoint->host = colon == 0 ? same_host : std::string(text.substr(0, colon));
  return ParseNumber(text.substr(colon + 1), &endpoint->port) && endpoint->port != 0;
}

RedisReply Converted(const redisReply& reply) {
  RedisReply made;
  switch (reply.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      made.type = RedisReply::Type::kText;
      made.text.assign(reply.str, reply.len);
      break;
    case REDIS_REPLY_ERROR:
      made.type = RedisReply::Type::kError;
      made.text.assign(reply.str, reply.len);
      break;
    case REDIS_REPLY_INTEGER:
      made.type = RedisReply::Type::kInteger;
      made.integer = reply.integer;
      break;
    case REDIS_REPLY_ARRAY:
      made.type = RedisReply::Type::kArray;
      for (size_t i = 0; i < reply.elements; ++i) {
        made.elements.push_back(Converted(*reply.element[i]));
      }
      break;
    default:
      break;
  }
  return made;
}

}  // namespace

struct ReplyReader::Parser {
  redisReader* reader = ::redisReaderCreate();
  // hiredis takes memory for as many elements as an array says it has.
  redisReplyObjectFunctions make = *reader->fn, original = make;
  int64_t elements = 0;  // of the reply on its way
  Parser() {
    make.createArray = [](const redisReadTask* task, int count) -> void* {
      auto* parser = static_cast<Parser*>(task->privdata);
      parser->elements += count;
      if (parser->elements > kMostElements) return nullptr;
      return parser->original.createArray(task, count);
    };
    reader->fn = &make;
    reader->privdata = this;
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { ::redisReaderFree(reader); }
};

ReplyReader::ReplyReader() : parser_(std::make_unique<Parser>()) {}
ReplyReader::~ReplyReader() = default;

bool ReplyReader::Feed(const char* bytes, size_t size) {
  return ::redisReaderFeed(parser_->reader, bytes, size) == REDIS_OK;
}

ReplyReader::Step ReplyReader::Next(RedisReply* reply) {
  void* raw = nullptr;
  if (::redisReaderGetReply(parser_->reader, &raw) != REDIS_OK) return Step::kBroken;
  if (raw == nullptr) return Step::kMore;
  const std::unique_ptr<redisReply, void (*)(redisReply*)> owned(
      static_cast<redisReply*>(raw), [](redisReply* r) { ::freeReplyObject(r); });
  parser_->elements = 0;
  *reply = Converted(*owned);
  return Step::kReply;
}

std::string ReplyReader::error() const { return parser_->reader->errstr; }

Failure FailureOfErrorReply(const std::string& text, const std::string& where) {
  static constexpr std::array<std::pair<std::string_view, ErrorReason>, 14> kKnown = {{
      {"NOAUTH", ErrorReason::kAuth},
      {"WRONGPASS", ErrorReason::kAuth},
      {"NOPERM", ErrorReason::kAuth},
      {"ERR AUTH", ErrorReason::kAuth},
      {"ERR invalid password", ErrorReason::kAuth},
      {"ERR Client sent AUTH", ErrorReason::kAuth},
      {"OOM", ErrorReason::kFull},
      {"MISCONF", ErrorReason::kIo},
      {"LOADING", ErrorReason::kUnavailable},
      {"CLUSTERDOWN", ErrorReason::kUnavailable},
      {"MASTERDOWN", ErrorReason::kUnavailable},
      {"READONLY", ErrorReason::kUnavailable},
      {"TRYAGAIN", ErrorReason::kUnavailable},
      {"ERR max number of clients", ErrorReason::kUnavailable},
  }};
  for (const auto& [start, reason] : kKnown) {
    if (text.starts_with(start)) return {reason, where + ": " + text};
  }
  return {};
}

std::optional<RedisRedirect> ParseRedirect(const std::string& error, const std::string& same_host) {
  const bool moved = error.starts_with("MOVED "), ask = error.starts_with("ASK ");
  const size_t start = moved ? 6 : 4, space = error.find(' ', start);
  if ((!moved && !ask) || space == std::string::npos) return std::nullopt;
  RedisRedirect redirect;
  redirect.once = ask;
  const std::string_view text = error;
  if (!ParseNumber(text.substr(start, space - start), &redirect.slot) ||
      redirect.slot >= kNumSlots ||
      !ParseEndpoint(text.substr(space + 1), same_host, &redirect.endpoint)) {
    return std::nullopt;
  }
  return redirect;
}

// [[first slot, last slot, [host, port, ...] of the primary, replicas ...], ...]
Failure ReadSlots(const RedisReply& reply, const std::string& asked, RedisSlots* slots) {
  using Type = RedisReply::Type;
  RedisSlots made;
  for (const RedisReply& range : reply.elements) {
    if (range.type != Type::kArray || range.elements.size() < 3 ||
        range.elements[2].type != Type::kArray || range.elements[2].elements.size() < 2) {
      return {ErrorReason::kProtocol, asked + ": an unexpected answer to CLUSTER SLOTS"};
    }
    const RedisReply& primary = range.elements[2];
    const int64_t first = range.elements[0].integer, last = range.elements[1].integer;
    const int64_t port = primary.elements[1].integer;
    if (first < 0 || last < first || last >= int64_t{kNumSlots} || port < 1 || port > 65535 ||
        made.num_nodes() >= kMaxRedisNodes) {
      return {ErrorReason::kProtocol, asked + ": CLUSTER SLOTS is out of range"};
    }
    const std::string& host = primary.elements[0].text;
    const uint32_t node =
        made.AddNode({host.empty() || host == "?" ? asked : host, static_cast<uint16_t>(port)});
    made.Assign(static_cast<uint32_t>(first), static_cast<uint32_t>(last), node);
  }
  if (made.num_nodes() == 0) {
    return {ErrorReason::kUnavailable, asked + ": the cluster has no slots assigned"};
  }
  *slots = std::move(made);
  return {};
}

}  // namespace kvlink::tier
