#include "tier/remote_tier.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "tier/redis_client.h"
#include "tier/tier_files.h"

namespace kvlink::tier {
namespace {

constexpr std::chrono::seconds kListTimeout{10};  // of one page of a listing

class RemoteTier final : public BlockTier {
 public:
  RemoteTier(const RemoteTierOptions& options, std::shared_ptr<TlsContext> tls)
      : options_(options),
        time_to_live_(std::to_string(options.time_to_live.count())),
        read_(options_, tls),
        write_(options_, tls) {}

  std::string_view name() const override { return "remote"; }

  std::vector<TierAnswer> Put(std::span<const TierPut> items, TimePoint deadline) override {
    std::vector<std::string> names;
    std::vector<RedisCommand> commands;
    for (const TierPut& item : items) names.push_back(NameOf(item.key));
    for (size_t i = 0; i < items.size(); ++i) {
      commands.push_back({"SET", names[i], items[i].bytes});
      if (expires()) commands.back().insert(commands.back().end(), {"EX", time_to_live_});
    }
    return Run(write_, commands, deadline, [](RedisReply& reply) {
      return reply.text == "OK" ? TierAnswer::Ok() : TierAnswer::Error(ErrorReason::kProtocol);
    });
  }

  std::vector<TierAnswer> Get(std::span<const BlockKey> keys, TimePoint deadline) override {
    return RunEach(
        read_, expires() ? "GETEX" : "GET", keys, expires(), deadline, [](RedisReply& reply) {
          if (reply.type == RedisReply::Type::kNil) return TierAnswer::Miss();
          return reply.type == RedisReply::Type::kText ? TierAnswer::Ok(std::move(reply.text))
                                                       : TierAnswer::Error(ErrorReason::kProtocol);
        });
  }

  std::vector<TierAnswer> Contains(std::span<const BlockKey> keys, TimePoint deadline) override {
    return RunEach(read_, "EXISTS", keys, false, deadline, CountAnswer);
  }
  std::vector<TierAnswer> Remove(std::span<const BlockKey> keys, TimePoint deadline) override {
    return RunEach(write_, "UNLINK", keys, false, deadline, CountAnswer);
  }

  std::optional<bool> ContainsNow(const BlockKey&) const override { return std::nullopt; }

  Status Ping(TimePoint deadline) override {
    const std::unique_lock<std::timed_mutex> lock(write_.mutex, deadline);
    const Failure failure =
        lock.owns_lock() ? write_.client.Ping(deadline) : Failure{ErrorReason::kTimeout, "busy"};
    return StatusOf(failure);
  }
  Status Flush(TimePoint) override { return {}; }  // durability is the peer's setting
  TierUsage Usage() const override { return {}; }
  Status List(const std::function<bool(const TierEntry&)>& visit) const override;

  std::string LastError() const override {
    const base::MutexLock lock(error_mutex_);
    return last_error_;
  }

 private:
  // Connections of one direction.
  struct Side {
    Side(const RemoteTierOptions& options, const std::shared_ptr<TlsContext>& tls)
        : client(options, tls) {}
    std::timed_mutex mutex;
    RedisClient client;
  };

  bool expires() const { return options_.time_to_live.count() > 0; }
  std::string NameOf(const BlockKey& key) const { return options_.key_prefix + HexOfKey(key); }

  static TierAnswer CountAnswer(RedisReply& reply) {
    if (reply.type != RedisReply::Type::kInteger) return TierAnswer::Error(ErrorReason::kProtocol);
    return reply.integer > 0 ? TierAnswer::Ok() : TierAnswer::Miss();
  }

  // `name key` for every key, with EX where asked.
  std::vector<TierAnswer> RunEach(Side& side, std::string_view name, std::span<const BlockKey> keys,
                                  bool renew, TimePoint deadline,
                                  TierAnswer (*answer_of)(RedisReply&)) {
    std::vector<std::string> names;
    std::vector<RedisCommand> commands;
    for (const BlockKey& key : keys) names.push_back(NameOf(key));
    for (const std::string& key : names) {
      commands.push_back({name, key});
      if (renew) commands.back().insert(commands.back().end(), {"EX", time_to_live_});
    }
    return Run(side, commands, deadline, answer_of);
  }

  std::vector<TierAnswer> Run(Side& side, std::span<const RedisCommand> commands,
                              TimePoint deadline, TierAnswer (*answer_of)(RedisReply&)) {
    const std::unique_lock<std::timed_mutex> lock(side.mutex, deadline);
    if (!lock.owns_lock() || std::chrono::steady_clock::now() >= deadline) {
      return std::vector<TierAnswer>(commands.size(), TierAnswer::Error(ErrorReason::kTimeout));
    }
    std::vector<RedisReply> replies = side.client.Run(commands, deadline);
    KVLINK_CHECK(replies.size() == commands.size()) << replies.size() << " replies";
    std::vector<TierAnswer> answers;
    for (RedisReply& reply : replies) {
      if (reply.ok() && reply.type != RedisReply::Type::kError) {
        answers.push_back(answer_of(reply));
        continue;
      }
      Note(reply.ok() ? reply.text : reply.failure.message);
      answers.push_back(
          TierAnswer::Error(reply.ok() ? ErrorReason::kProtocol : reply.failure.reason));
    }
    return answers;
  }

  Failure ListNode(uint32_t node, std::vector<TierEntry>* entries) const;

  void Note(const std::string& error) const {
    const base::MutexLock lock(error_mutex_);
    last_error_ = error;
  }
  Status StatusOf(const Failure& failure) const {
    if (failure.ok()) return {};
    Note(failure.message);
    const StatusCode code = failure.reason == ErrorReason::kTimeout ? StatusCode::kDeadlineExceeded
                                                                    : StatusCode::kUnavailable;
    return {code, "remote tier: " + failure.message};
  }

  const RemoteTierOptions options_;
  const std::string time_to_live_;
  mutable Side read_, write_;
  mutable base::Mutex error_mutex_;
  mutable std::string last_error_ KVLINK_GUARDED_BY(error_mutex_);
};

Status RemoteTier::List(const std::function<bool(const TierEntry&)>& visit) const {
  std::vector<TierEntry> entries;  // visit runs without the lock: it may call the tier
  {
    const TimePoint deadline = std::chrono::steady_clock::now() + kListTimeout;
    const std::unique_lock<std::timed_mutex> lock(read_.mutex, deadline);
    Failure failure = lock.owns_lock() ? read_.client.EnsureNodes(deadline)
                                       : Failure{ErrorReason::kTimeout, "busy"};
    const uint32_t nodes = failure.ok() ? read_.client.num_nodes() : 0;
    for (uint32_t node = 0; failure.ok() && node < nodes; ++node) {
      failure = ListNode(node, &entries);
    }
    if (!failure.ok()) return StatusOf(failure);
  }
  for (const TierEntry& entry : entries) {
    if (!visit(entry)) break;
  }
  return {};
}

Failure RemoteTier::ListNode(uint32_t node, std::vector<TierEntry>* entries) const {
  const std::string pattern = options_.key_prefix + "*";
  std::string cursor = "0";
  do {
    const TimePoint deadline = std::chrono::steady_clock::now() + kListTimeout;
    const RedisCommand scan = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"};
    const RedisReply page = std::move(read_.client.RunOn(node, {&scan, 1}, deadline)[0]);
    if (!page.ok()) return page.failure;
    // Without a cursor in words a mad peer would be asked without end.
    if (page.elements.size() != 2 || page.elements[0].type != RedisReply::Type::kText) {
      return {ErrorReason::kProtocol, "SCAN: " + page.text};
    }
    const std::vector<RedisReply>& names = page.elements[1].elements;
    std::vector<RedisCommand> lengths;
    for (const RedisReply& name : names) lengths.push_back({"STRLEN", name.text});
    const std::vector<RedisReply> sizes = read_.client.RunOn(node, lengths, deadline);
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!sizes[i].ok()) return sizes[i].failure;
      TierEntry entry;
      entry.bytes = static_cast<uint64_t>(sizes[i].integer);
      const std::string_view digits =
          std::string_view(names[i].text)
              .substr(std::min(names[i].text.size(), options_.key_prefix.size()));
      if (KeyOfHex(digits, &entry.key)) entries->push_back(entry);
    }
    cursor = page.elements[0].text;
  } while (cursor != "0");
  return {};
}

}  // namespace

Result<std::unique_ptr<BlockTier>> OpenRemoteTier(const RemoteTierOptions& options) {
  if (options.endpoints.empty()) {
    return Status(StatusCode::kInvalidArgument, "remote tier: no host given");
  }
  std::shared_ptr<TlsContext> tls;
  if (options.tls) {
    Result<std::shared_ptr<TlsContext>> made =
        TlsContext::Create(options.ca_file, options.tls_server_name);
    if (!made.ok()) return made.status();
    tls = std::move(*made);
  }
  return std::unique_ptr<BlockTier>(std::make_unique<RemoteTier>(options, std::move(tls)));
}

}  // namespace kvlink::tier
