// RedisClient: commands to one Redis or to the nodes of a cluster: who has the key, MOVED and ASK,
// and connections that come back by themselves.
//
// A call sends each node its commands before it reads any reply, so that nodes work at the same
// time. A connection that proves to be stale (the server was restarted) is made again once, since
// all our commands may be repeated.
// Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tier/redis_connection.h"
#include "tier/redis_slots.h"

namespace kvlink::tier {

class RedisClient {
 public:
  RedisClient(const RemoteTierOptions& options, std::shared_ptr<TlsContext> tls)
      : options_(options), tls_(std::move(tls)) {}

  // One reply a command, in order; each command's second word is its key.
  std::vector<RedisReply> Run(std::span<const RedisCommand> commands, TimePoint deadline);
  // To one node, whatever the keys.
  std::vector<RedisReply> RunOn(uint32_t node, std::span<const RedisCommand> commands,
                                TimePoint deadline);
  // Learns the nodes again, and every one of them answers.
  Failure Ping(TimePoint deadline);
  // Learns the nodes when they are not known.
  Failure EnsureNodes(TimePoint deadline);
  uint32_t num_nodes() const { return slots_.num_nodes(); }

 private:
  struct Round;

  Failure Learn(TimePoint deadline);
  Failure LearnFrom(const RemoteEndpoint& endpoint, TimePoint deadline);
  // Open, or the failure; `fresh` says that it was made now.
  Failure Connected(const RemoteEndpoint& endpoint, TimePoint deadline,
                    RedisConnection** connection, bool* fresh);
  void RunRound(Round& round, TimePoint deadline);
  void Sort(Round& round, size_t i, RedisReply reply, const RedisConnection& from);
  bool Redirect(Round& round, size_t i, const std::string& text, const RedisConnection& from);

  const RemoteTierOptions& options_;
  const std::shared_ptr<TlsContext> tls_;
  std::map<std::string, std::unique_ptr<RedisConnection>> connections_;  // by host:port
  RedisSlots slots_;
  bool known_ = false;         // slots_ holds
  size_t first_endpoint_ = 0;  // asked first next time
};

}  // namespace kvlink::tier
