// RedisReply: what a Redis answers, out of bytes: replies, what its errors mean for the tier, whom
// it sends us to, and who has which slots.
//
// Nothing here does input or output, or believes the peer: nesting, elements and nodes have limits,
// so that a reply costs memory in proportion to its bytes. Whoever reads them bounds the bytes.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tier/redis_slots.h"
#include "tier/redis_socket.h"

namespace kvlink::tier {

struct RedisReply {
  enum class Type : uint8_t { kNil, kText, kInteger, kArray, kError };
  Type type = Type::kNil;
  std::string text;  // of kText and kError
  int64_t integer = 0;
  std::vector<RedisReply> elements;
  Failure failure;  // no reply, or an error that is not about the command: then this says why
  bool ok() const { return failure.ok(); }
};

// Takes replies (RESP2) off a stream of bytes that comes in any pieces; the parser is hiredis'.
class ReplyReader {
 public:
  enum class Step : uint8_t { kReply, kMore, kBroken };
  // Of one reply, those of arrays within arrays counted together.
  static constexpr int64_t kMostElements = int64_t{1} << 20;

  ReplyReader();
  ~ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  // False: as kBroken.
  bool Feed(const char* bytes, size_t size);
  // kReply: `reply` is the next one. kMore: it is not there yet. kBroken: these are no replies, and
  // nothing more can be read; error() says why.
  Step Next(RedisReply* reply);
  std::string error() const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

// What an error reply means for the tier; ok() for one that it does not know, such as of syntax.
Failure FailureOfErrorReply(const std::string& text, const std::string& where);

inline constexpr uint32_t kMaxRedisNodes = 1000;  // of a cluster

// "MOVED slot host:port": that node has the slot from now on. "ASK slot host:port": for this once.
struct RedisRedirect {
  bool once = false;
  uint32_t slot = 0;
  RemoteEndpoint endpoint;
};
// Nothing where the error is no such thing. `same_host`: what an empty host stands for.
std::optional<RedisRedirect> ParseRedirect(const std::string& error, const std::string& same_host);

// The answer to CLUSTER SLOTS, given by a node at the host `asked`.
Failure ReadSlots(const RedisReply& reply, const std::string& asked, RedisSlots* slots);

}  // namespace kvlink::tier
