// What a Redis answers: any bytes, in any pieces, are replies, the wish for more, or an error; the
// pieces do not matter; and what errors and slots say stays within its limits.
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "tier/redis_reply.h"

namespace kvlink::tier {
namespace {

struct Answers {
  std::vector<RedisReply> replies;
  bool broken = false;
};

Answers Read(std::string_view bytes, size_t piece) {
  Answers answers;
  ReplyReader reader;
  for (;;) {
    RedisReply reply;
    const ReplyReader::Step step = reader.Next(&reply);
    if (step == ReplyReader::Step::kBroken) {
      KVLINK_CHECK(!reader.error().empty()) << "an error without words";
      answers.broken = true;
      return answers;
    }
    if (step == ReplyReader::Step::kReply) {
      answers.replies.push_back(std::move(reply));
      continue;
    }
    if (bytes.empty()) return answers;
    const std::string_view next = bytes.substr(0, piece);
    bytes.remove_prefix(next.size());
    KVLINK_CHECK(reader.Feed(next.data(), next.size())) << reader.error();
  }
}

bool Same(const RedisReply& a, const RedisReply& b) {
  if (a.type != b.type || a.text != b.text || a.integer != b.integer ||
      a.elements.size() != b.elements.size()) {
    return false;
  }
  for (size_t i = 0; i < a.elements.size(); ++i) {
    if (!Same(a.elements[i], b.elements[i])) return false;
  }
  return true;
}

size_t Elements(const RedisReply& reply) {
  size_t count = reply.elements.size();
  for (const RedisReply& element : reply.elements) count += Elements(element);
  return count;
}

void CheckMeaning(const RedisReply& reply) {
  KVLINK_CHECK(Elements(reply) <= static_cast<size_t>(ReplyReader::kMostElements));
  if (reply.type == RedisReply::Type::kError) {
    const Failure failure = FailureOfErrorReply(reply.text, "h:1");
    KVLINK_CHECK(failure.ok() || failure.message == "h:1: " + reply.text) << failure.message;
    const auto redirect = ParseRedirect(reply.text, "same");
    KVLINK_CHECK(!redirect || (redirect->slot < kNumSlots && redirect->endpoint.port != 0 &&
                               !redirect->endpoint.host.empty()))
        << reply.text;
  } else if (reply.type == RedisReply::Type::kArray) {
    RedisSlots slots;
    if (!ReadSlots(reply, "asked", &slots).ok()) {
      KVLINK_CHECK(slots.num_nodes() == 0) << "a refused answer was taken";
      return;
    }
    KVLINK_CHECK(slots.num_nodes() > 0 && slots.num_nodes() <= kMaxRedisNodes);
    for (uint32_t slot = 0; slot < kNumSlots; ++slot) {
      KVLINK_CHECK(slots.NodeOf(slot) < slots.num_nodes()) << slot;
    }
    for (uint32_t node = 0; node < slots.num_nodes(); ++node) {
      KVLINK_CHECK(!slots.endpoint(node).host.empty() && slots.endpoint(node).port != 0) << node;
    }
  }
}

}  // namespace
}  // namespace kvlink::tier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using kvlink::tier::Read;
  kvlink::fuzz::FuzzInput input(bytes, size);
  const size_t piece = 1 + input.Below(32);
  const std::string_view stream = input.Rest();
  const auto whole = Read(stream, stream.size());
  const auto pieces = Read(stream, piece);
  KVLINK_CHECK(whole.broken == pieces.broken && whole.replies.size() == pieces.replies.size())
      << whole.replies.size() << " replies of the whole, " << pieces.replies.size() << " of pieces";
  for (size_t i = 0; i < whole.replies.size(); ++i) {
    KVLINK_CHECK(kvlink::tier::Same(whole.replies[i], pieces.replies[i])) << "reply " << i;
    kvlink::tier::CheckMeaning(whole.replies[i]);
  }
  return 0;
}
