// KeptTexts: the texts of match::TextMemory in the tiers, so that a server that was restarted, or
// another one, makes the next turn of a chat of the very ids that the answer was generated as.
// Tokenising it again often gives other ids, which no block has.
//
// A text is filed under the SHA-256 of its namespace and itself, with its ids as payload: it needs
// no index, and who does not know the text does not find it. Looking costs a hash probe where no
// tier has it, and a read where one does; a peer that answers late is left alone for a while.
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvlink/kv_shape.h"
#include "tier/tier_store.h"

namespace kvlink::link {

class KeptTexts {
 public:
  static constexpr size_t kMostTextBytes = size_t{64} << 10;  // longer ones stay in RAM
  // How long a request may be held up: by a tier that has the text, and by one that may have it.
  static constexpr std::chrono::milliseconds kPatience{250}, kPeerPatience{20};
  static constexpr std::chrono::seconds kLeftAlone{5};

  explicit KeptTexts(tier::TierStore& store) : store_(store) {}

  // `extras`: the namespace's typed fields. `us_per_byte`: what computing a byte of a block takes;
  // so a text is evicted when the blocks of its time are.
  void Put(std::string_view extras, std::string_view text, std::span<const TokenId> tokens,
           double us_per_byte);
  std::optional<std::vector<TokenId>> Get(std::string_view extras, std::string_view text) const;

 private:
  tier::TierStore& store_;
  mutable std::atomic<int64_t> quiet_until_ms_{0};  // of the steady clock: peers are not asked
};

}  // namespace kvlink::link
