#include "tier/redis_connection.h"

#include <utility>

namespace kvlink::tier {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kLongArgument = size_t{16} << 10;  // not copied
// A peer is not trusted with our memory or time. No value in Redis is longer than the first, as it
// is set up; of a reply that is not whole when the deadline has passed the second is read, which is
// more than lies in a socket's buffer.
constexpr size_t kMostReplyBytes = size_t{512} << 20, kMostLateBytes = size_t{16} << 20;

void AppendLength(std::string& out, char type, size_t length) {
  out.push_back(type);
  out.append(std::to_string(length));
  out.append("\r\n");
}

}  // namespace

RedisConnection::RedisConnection(RemoteEndpoint endpoint)
    : endpoint_(std::move(endpoint)),
      where_(endpoint_.host + ":" + std::to_string(endpoint_.port)),
      buffer_(kReadBytes) {}

RedisConnection::~RedisConnection() = default;

void RedisConnection::Close() {
  socket_.Close();
  reader_.reset();
}

Failure RedisConnection::Connect(const RemoteTierOptions& options,
                                 const std::shared_ptr<TlsContext>& tls, TimePoint deadline) {
  Close();
  Failure failure = socket_.Connect(endpoint_, tls, deadline);
  if (!failure.ok()) return failure;
  reader_ = std::make_unique<ReplyReader>();
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
  if (!reader_) return {ErrorReason::kUnavailable, where_ + ": not connected"};
  size_t unfinished = 0, late = 0;  // bytes of the reply on its way, and of those behind time
  while (count > 0) {
    RedisReply reply;
    const ReplyReader::Step step = reader_->Next(&reply);
    if (step == ReplyReader::Step::kBroken) {
      const std::string why = reader_->error();
      Close();
      return {ErrorReason::kProtocol, where_ + ": " + why};
    }
    if (step == ReplyReader::Step::kReply) {
      replies->push_back(std::move(reply));
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
    if (failure.ok() && !reader_->Feed(buffer_.data(), got)) {
      failure = {ErrorReason::kProtocol, where_ + ": " + reader_->error()};
    }
    if (!failure.ok()) {
      Close();
      return failure;
    }
  }
  return {};
}

}  // namespace kvlink::tier
