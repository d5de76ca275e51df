// RedisConnection: commands and replies over one RedisSocket, pipelined: Send many, Receive as
// many.
//
// Commands are written here (RESP arrays of bulk strings, long values straight from the caller's
// memory); replies are read by redis_reply.h.
// Not thread-safe. A failure leaves the connection closed, since replies would no longer match.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tier/redis_reply.h"
#include "tier/redis_socket.h"

namespace kvlink::tier {

// The name of the command, then its arguments. Views must outlive the call.
using RedisCommand = std::vector<std::string_view>;

class RedisConnection {
 public:
  explicit RedisConnection(RemoteEndpoint endpoint);
  ~RedisConnection();

  // Connects and, with a password, authenticates.
  Failure Connect(const RemoteTierOptions& options, const std::shared_ptr<TlsContext>& tls,
                  TimePoint deadline);
  bool open() const { return socket_.open(); }
  void Close();

  Failure Send(std::span<const RedisCommand> commands, TimePoint deadline);
  // Appends `count` replies; error replies are replies.
  Failure Receive(size_t count, std::vector<RedisReply>* replies, TimePoint deadline);

  const RemoteEndpoint& endpoint() const { return endpoint_; }
  const std::string& where() const { return where_; }

 private:
  const RemoteEndpoint endpoint_;
  const std::string where_;
  RedisSocket socket_;
  std::unique_ptr<ReplyReader> reader_;
  std::vector<char> buffer_;
};

}  // namespace kvlink::tier
