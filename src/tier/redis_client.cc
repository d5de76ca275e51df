#include "tier/redis_client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvlink::tier {
namespace {

constexpr int kMaxRounds = 6;  // MOVED, ASK and stale connections, one after the other

}  // namespace

// The commands that have no reply yet.
struct RedisClient::Round {
  std::span<const RedisCommand> commands;
  std::vector<RedisReply> replies;
  std::vector<size_t> pending;
  // Whom ASK named, for the next round only. No node's number: the nodes may be learnt anew before.
  std::vector<std::optional<RemoteEndpoint>> asked;
  std::vector<uint32_t> retries;
  std::vector<size_t> again;  // pending in the next round

  explicit Round(std::span<const RedisCommand> all)
      : commands(all), replies(all.size()), asked(all.size()), retries(all.size()) {
    for (size_t i = 0; i < all.size(); ++i) pending.push_back(i);
  }
  void FailPending(const Failure& failure) {
    for (const size_t i : pending) replies[i].failure = failure;
    pending.clear();
  }
};

std::vector<RedisReply> RedisClient::Run(std::span<const RedisCommand> commands,
                                         TimePoint deadline) {
  Round round(commands);
  for (int n = 0; n < kMaxRounds && !round.pending.empty(); ++n) {
    Failure failure = EnsureNodes(deadline);
    if (!failure.ok()) {
      round.FailPending(failure);
      break;
    }
    RunRound(round, deadline);
    round.pending = std::exchange(round.again, {});
  }
  round.FailPending({ErrorReason::kProtocol, "Redis sends commands from node to node"});
  return std::move(round.replies);
}

void RedisClient::RunRound(Round& round, TimePoint deadline) {
  struct Part {
    std::vector<size_t> commands;
    RedisConnection* connection = nullptr;
    bool fresh = false;
    Failure failure;
  };
  std::map<uint32_t, Part> parts;  // by node
  for (const size_t i : round.pending) {
    const uint32_t node = round.asked[i] ? slots_.AddNode(*round.asked[i])
                                         : slots_.NodeOf(SlotOf(round.commands[i][1]));
    parts[node].commands.push_back(i);
  }
  for (auto& [node, part] : parts) {
    part.failure = Connected(slots_.endpoint(node), deadline, &part.connection, &part.fresh);
    if (!part.failure.ok()) continue;
    std::vector<RedisCommand> commands;
    for (const size_t i : part.commands) {
      if (round.asked[i]) commands.push_back({"ASKING"});
      commands.push_back(round.commands[i]);
    }
    part.failure = part.connection->Send(commands, deadline);
  }
  for (auto& [node, part] : parts) {
    for (const size_t i : part.commands) {
      std::vector<RedisReply> replies;
      if (part.failure.ok()) {
        part.failure = part.connection->Receive(round.asked[i] ? 2 : 1, &replies, deadline);
      }
      round.asked[i].reset();
      if (part.failure.ok()) {
        Sort(round, i, std::move(replies.back()), *part.connection);
      } else if (!part.fresh && part.failure.reason == ErrorReason::kUnavailable &&
                 round.retries[i]++ == 0) {
        round.again.push_back(i);
      } else {
        round.replies[i].failure = part.failure;
      }
    }
    if (part.failure.ok()) continue;
    known_ = false;  // the node may have gone, and others have its slots
    if (part.connection != nullptr) part.connection->Close();
  }
}

// A reply, or another round.
void RedisClient::Sort(Round& round, size_t i, RedisReply reply, const RedisConnection& from) {
  if (reply.type == RedisReply::Type::kError) {
    if (Redirect(round, i, reply.text, from)) return;
    reply.failure = FailureOfErrorReply(reply.text, from.where());
    if (reply.text.starts_with("READONLY") || reply.text.starts_with("CLUSTERDOWN")) {
      known_ = false;
    }
  }
  round.replies[i] = std::move(reply);
}

bool RedisClient::Redirect(Round& round, size_t i, const std::string& text,
                           const RedisConnection& from) {
  std::optional<RedisRedirect> redirect = ParseRedirect(text, from.endpoint().host);
  if (!redirect || slots_.num_nodes() >= kMaxRedisNodes) return false;
  if (redirect->once) {
    round.asked[i] = std::move(redirect->endpoint);
  } else {
    slots_.Assign(redirect->slot, redirect->slot, slots_.AddNode(redirect->endpoint));
  }
  round.again.push_back(i);
  return true;
}

std::vector<RedisReply> RedisClient::RunOn(uint32_t node, std::span<const RedisCommand> commands,
                                           TimePoint deadline) {
  KVLINK_CHECK(node < slots_.num_nodes()) << "node " << node;
  RedisConnection* connection = nullptr;
  bool fresh = false;
  std::vector<RedisReply> replies;
  Failure failure = Connected(slots_.endpoint(node), deadline, &connection, &fresh);
  if (failure.ok()) failure = connection->Send(commands, deadline);
  if (failure.ok()) failure = connection->Receive(commands.size(), &replies, deadline);
  for (RedisReply& reply : replies) {
    if (reply.type == RedisReply::Type::kError) {
      reply.failure = FailureOfErrorReply(reply.text, connection->where());
    }
  }
  if (!failure.ok() && connection != nullptr) connection->Close();
  while (replies.size() < commands.size()) {
    replies.emplace_back();
    replies.back().failure = failure;
  }
  return replies;
}

Failure RedisClient::Ping(TimePoint deadline) {
  known_ = false;
  connections_.clear();
  Failure failure = EnsureNodes(deadline);
  const RedisCommand ping = {"PING"};
  for (uint32_t node = 0; failure.ok() && node < slots_.num_nodes(); ++node) {
    const std::vector<RedisReply> replies = RunOn(node, {&ping, 1}, deadline);
    failure = replies[0].failure;
  }
  return failure;
}

Failure RedisClient::EnsureNodes(TimePoint deadline) {
  return known_ ? Failure{} : Learn(deadline);
}

Failure RedisClient::Learn(TimePoint deadline) {
  std::vector<RemoteEndpoint> candidates = options_.endpoints;
  std::rotate(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(first_endpoint_),
              candidates.end());
  Failure failure;
  for (const RemoteEndpoint& candidate : candidates) {
    // One that does not answer must not use up the time of the next.
    const TimePoint until =
        std::min(deadline, std::chrono::steady_clock::now() + options_.connect_timeout);
    failure = LearnFrom(candidate, until);
    if (failure.ok()) {
      known_ = true;
      return failure;
    }
    first_endpoint_ = (first_endpoint_ + 1) % options_.endpoints.size();
  }
  return failure;
}

Failure RedisClient::LearnFrom(const RemoteEndpoint& endpoint, TimePoint deadline) {
  RedisConnection* connection = nullptr;
  bool fresh = false;
  const RedisCommand command = {"CLUSTER", "SLOTS"};
  std::vector<RedisReply> replies;
  Failure failure;
  for (int attempt = 0; attempt < 2; ++attempt) {
    failure = Connected(endpoint, deadline, &connection, &fresh);
    if (failure.ok()) failure = connection->Send({&command, 1}, deadline);
    if (failure.ok()) failure = connection->Receive(1, &replies, deadline);
    if (failure.ok() || fresh || connection == nullptr) break;
    connection->Close();
  }
  if (!failure.ok()) return failure;
  if (replies[0].type == RedisReply::Type::kArray) {
    return ReadSlots(replies[0], endpoint.host, &slots_);
  }
  failure = FailureOfErrorReply(replies[0].text, connection->where());
  if (!failure.ok()) {
    connection->Close();
    return failure;
  }
  if (options_.endpoints.size() > 1) {
    return {ErrorReason::kProtocol,
            connection->where() +
                " is not a cluster node, but several hosts are given: " + replies[0].text};
  }
  slots_ = RedisSlots();
  slots_.AddNode(endpoint);
  return {};
}

Failure RedisClient::Connected(const RemoteEndpoint& endpoint, TimePoint deadline,
                               RedisConnection** connection, bool* fresh) {
  std::unique_ptr<RedisConnection>& place =
      connections_[endpoint.host + ":" + std::to_string(endpoint.port)];
  if (!place) place = std::make_unique<RedisConnection>(endpoint);
  *connection = place.get();
  *fresh = !place->open();
  if (!*fresh) return {};
  const TimePoint until =
      std::min(deadline, std::chrono::steady_clock::now() + options_.connect_timeout);
  return place->Connect(options_, tls_, until);
}

}  // namespace kvlink::tier
