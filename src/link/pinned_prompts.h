// PinnedPrompts: the naive reference of pins: a list of prompts, each with its own time.
#pragma once

#include <algorithm>
#include <vector>

#include "link/cache_harness.h"

namespace kvlink::link {

class PinnedPrompts {
 public:
  struct Pin {
    Namespace ns;
    Tokens prompt;
    uint32_t tokens = 0;  // that are held
    base::TimePoint until;
  };

  void Set(Pin pin) {
    Take(pin.ns, pin.prompt);
    pins_.push_back(std::move(pin));
  }
  // Its tokens; 0: it has none.
  uint32_t Take(const Namespace& ns, const Tokens& prompt) {
    const auto at = std::ranges::find_if(
        pins_, [&](const Pin& pin) { return pin.ns == ns && pin.prompt == prompt; });
    if (at == pins_.end()) return 0;
    const uint32_t tokens = at->tokens;
    pins_.erase(at);
    return tokens;
  }
  void Expire(base::TimePoint now) {
    std::erase_if(pins_, [now](const Pin& pin) { return pin.until <= now; });
  }
  void Clear() { pins_.clear(); }
  const std::vector<Pin>& all() const { return pins_; }

  // Of the prompt's tokens, those in whole blocks that another prompt's pin holds as well.
  uint32_t HeldByOthers(const Namespace& ns, const Tokens& prompt,
                        uint32_t tokens_per_block) const {
    uint32_t most = 0;
    for (const Pin& pin : pins_) {
      if (pin.ns != ns || pin.prompt == prompt) continue;
      const auto end =
          std::ranges::mismatch(prompt, FirstOf(pin.prompt, pin.tokens)).in1 - prompt.begin();
      most = std::max(most, static_cast<uint32_t>(end) / tokens_per_block * tokens_per_block);
    }
    return most;
  }

 private:
  std::vector<Pin> pins_;
};

}  // namespace kvlink::link
