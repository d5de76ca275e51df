#include "tier/redis_connection.h"

#include <hiredis/hiredis.h>

#include <array>
#include <utility>

namespace kvlink::tier {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kLongArgument = size_t{16} << 10;  // not copied
// A peer is not trusted with our memory or time. No value in Redis is longer than the first, as it
// is set up; of a reply that is not whole when the deadline has passed the second is read, which is
// more than lies in a socket's buffer; no answer of ours has as many elements as the third.
constexpr size_t kMostReplyBytes = size_t{512} << 20, kMostLateBytes = size_t{16} << 20;
constexpr int kMostElements = 1 << 20;

void AppendLength(std::string& out, char type, size_t length) {
  out.push_back(type);
  out.append(std::to_string(length));
  out.append("\r\n");
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

struct RedisConnection::Parser {
  redisReader* reader = ::redisReaderCreate();
  // hiredis takes memory for as many elements as an array says it has.
  redisReplyObjectFunctions make = *reader->fn, original = make;
  Parser() {
    make.createArray = [](const redisReadTask* task, int elements) -> void* {
      const auto* parser = static_cast<const Parser*>(task->privdata);
      return elements > kMostElements ? nullptr : parser->original.createArray(task, elements);
    };
    reader->fn = &make;
    reader->privdata = this;
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { ::redisReaderFree(reader); }
};

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

RedisConnection::RedisConnection(RemoteEndpoint endpoint)
    : endpoint_(std::move(endpoint)),
      where_(endpoint_.host + ":" + std::to_string(endpoint_.port)),
      buffer_(kReadBytes) {}

RedisConnection::~RedisConnection() = default;

void RedisConnection::Close() {
  socket_.Close();
  parser_.reset();
}

Failure RedisConnection::Connect(const RemoteTierOptions& options,
                                 const std::shared_ptr<TlsContext>& tls, TimePoint deadline) {
  Close();
  Failure failure = socket_.Connect(endpoint_, tls, deadline);
  if (!failure.ok()) return failure;
  parser_ = std::make_unique<Parser>();
  if (options.password.empty()) return {};
  RedisCommand command = {"AUTH"};
  if (!options.user.empty()) command.push_back(options.user);
  command.push_back(options.password);
  std::vector<RedisReply> replies;
  failure = Send({&command, 1}, deadline);
  if (failure.ok()) failure = Receive(1, &replies, deadline);
  if (failure.ok() && replies[0].type == RedisReply::Type::kError) {
    // Whatever it says, it did not let us in. Only known messages are shown: others could quote the
    // command.
    const std::string& text = replies[0].text;
    const bool known = text.starts_with("WRONGPASS") || text.starts_with("ERR AUTH <password>");
    failure = {ErrorReason::kAuth, where_ + " refuses the password: " +
                                       (known ? text : text.substr(0, text.find(' ')))};
  }
  if (!failure.ok()) Close();
  return failure;
}

Failure RedisConnection::Send(std::span<const RedisCommand> commands, TimePoint deadline) {
  std::string out;
  Failure failure;
  for (const RedisCommand& command : commands) {
    AppendLength(out, '*', command.size());
    for (const std::string_view argument : command) {
      AppendLength(out, '$', argument.size());
      if (argument.size() < kLongArgument) {
        out.append(argument);
      } else {
        failure = socket_.Write(out, deadline);
        if (failure.ok()) failure = socket_.Write(argument, deadline);
        if (!failure.ok()) return failure;
        out.clear();
      }
      out.append("\r\n");
    }
  }
  return socket_.Write(out, deadline);
}

Failure RedisConnection::Receive(size_t count, std::vector<RedisReply>* replies,
                                 TimePoint deadline) {
  if (!parser_) return {ErrorReason::kUnavailable, where_ + ": not connected"};
  size_t unfinished = 0, late = 0;  // bytes of the reply on its way, and of those behind time
  while (count > 0) {
    void* raw = nullptr;
    if (::redisReaderGetReply(parser_->reader, &raw) != REDIS_OK) {
      const std::string why = parser_->reader->errstr;
      Close();
      return {ErrorReason::kProtocol, where_ + ": " + why};
    }
    if (raw != nullptr) {
      const std::unique_ptr<redisReply, void (*)(redisReply*)> reply(
          static_cast<redisReply*>(raw), [](redisReply* r) { ::freeReplyObject(r); });
      replies->push_back(Converted(*reply));
      --count;
      unfinished = 0;
      continue;
    }
    size_t got = 0;
    Failure failure = socket_.Read(buffer_.data(), buffer_.size(), &got, deadline);
    unfinished += got;
    if (std::chrono::steady_clock::now() >= deadline) late += got;
    if (unfinished > kMostReplyBytes) {
      failure = {ErrorReason::kProtocol,
                 where_ + ": a reply of more than " + std::to_string(kMostReplyBytes) + " bytes"};
    } else if (late > kMostLateBytes) {
      failure = {ErrorReason::kTimeout, where_ + ": no whole answer within the deadline"};
    }
    if (failure.ok() && ::redisReaderFeed(parser_->reader, buffer_.data(), got) != REDIS_OK) {
      failure = {ErrorReason::kProtocol, where_ + ": " + parser_->reader->errstr};
    }
    if (!failure.ok()) {
      Close();
      return failure;
    }
  }
  return {};
}

}  // namespace kvlink::tier
