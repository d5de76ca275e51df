#include "link/kept_texts.h"

#include <array>
#include <string>

#include "base/endian.h"
#include "base/key_builder.h"
#include "tier/chain_digest.h"

namespace kvlink::link {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

int64_t NowMs() {
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

tier::BlockName NameOf(std::string_view extras, std::string_view text) {
  tier::BlockName name;
  name.kind = tier::PayloadKind::kText;
  name.identity =
      tier::DigestOf(base::KeyBuilder().Add("text of", extras).Add("text", text).bytes());
  name.key = tier::AddressOf(name.identity);
  return name;
}

}  // namespace

void KeptTexts::Put(std::string_view extras, std::string_view text, std::span<const TokenId> tokens,
                    double us_per_byte) {
  if (text.empty() || text.size() > kMostTextBytes || tokens.empty()) return;
  std::string payload;
  for (const TokenId token : tokens) base::PutLe(payload, static_cast<uint32_t>(token));
  tier::PutBlock block;
  block.name = NameOf(extras, text);
  block.payload = std::as_bytes(std::span(payload));
  block.cost_us = us_per_byte * static_cast<double>(tier::kHeaderBytes + payload.size());
  store_.Put(block);  // refused: it is there, or the answer is tokenised again
}

std::optional<std::vector<TokenId>> KeptTexts::Get(std::string_view extras,
                                                   std::string_view text) const {
  if (text.empty() || text.size() > kMostTextBytes) return std::nullopt;
  const tier::BlockName name = NameOf(extras, text);
  const tier::Where where = store_.Find(name.key);
  if (where.present == 0 && (where.unknown == 0 || NowMs() < quiet_until_ms_)) return std::nullopt;
  const auto deadline =
      steady_clock::now() + (where.present != 0 ? milliseconds(kPatience) : kPeerPatience);
  const std::array<tier::Want, 1> wants = {tier::Want{name, {}}};
  const auto ticket = store_.Load(wants, deadline, {});
  const bool in_time = ticket->WaitUntil(deadline);
  ticket->Cancel();
  if (!in_time) quiet_until_ms_ = NowMs() + milliseconds(kLeftAlone).count();
  const tier::LoadResult result = ticket->TakeResult(0);
  if (!result.loaded() || result.payload.size() % sizeof(uint32_t) != 0) return std::nullopt;
  std::vector<TokenId> tokens;
  std::string_view payload = result.payload;
  for (uint32_t token = 0; base::TakeLe(payload, token);) {
    tokens.push_back(static_cast<TokenId>(token));
  }
  return tokens;
}

}  // namespace kvlink::link
