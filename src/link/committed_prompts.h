// CommittedPrompts: the naive reference of what a cache may find. It remembers every prefix that
// was ever committed, by namespace, and finds the longest common one by comparing with all of them.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "link/cache_harness.h"

namespace kvlink::link {

class CommittedPrompts {
 public:
  void Add(Tokens tokens, const Namespace& ns) { prompts_[Key(ns)].insert(std::move(tokens)); }

  uint32_t LongestCommon(const Tokens& tokens, const Namespace& ns) const {
    size_t longest = 0;
    const auto known = prompts_.find(Key(ns));
    if (known == prompts_.end()) return 0;
    for (const Tokens& other : known->second) {
      const auto end =
          std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
      longest = std::max(longest, static_cast<size_t>(end - tokens.begin()));
    }
    return static_cast<uint32_t>(longest);
  }

  // Whether somebody committed all of these rows, in any namespace.
  bool Has(const Tokens& tokens) const {
    return std::any_of(prompts_.begin(), prompts_.end(), [&](const auto& of_namespace) {
      const auto at = of_namespace.second.lower_bound(tokens);
      return at != of_namespace.second.end() && at->size() >= tokens.size() &&
             std::equal(tokens.begin(), tokens.end(), at->begin());
    });
  }

  // Three different tokens, and mostly something that was there before: prefixes collide all the
  // time. At most half of the pages, and eight blocks.
  template <typename Random>
  Tokens RandomPrompt(const Namespace& ns, uint32_t tokens_per_block, uint64_t pages,
                      Random& random) const {
    Tokens prompt;
    const auto known = prompts_.find(Key(ns));
    if (known != prompts_.end() && !random.OneIn(5)) {
      prompt = *std::next(known->second.begin(),
                          static_cast<ptrdiff_t>(random.Below(known->second.size())));
      if (!random.OneIn(3)) prompt.resize(1 + random.Below(prompt.size()));
    }
    const uint64_t more = random.Below(3 * tokens_per_block);
    for (uint64_t i = 0; i < more || prompt.empty(); ++i) {
      prompt.push_back(static_cast<TokenId>(random.Below(3)));
    }
    const uint64_t most = tokens_per_block * std::min<uint64_t>(pages / 2, 8);
    if (prompt.size() > most) prompt.resize(most);
    return prompt;
  }

 private:
  static std::string Key(const Namespace& ns) { return ns.tenant + "/" + ns.salt; }

  std::map<std::string, std::set<Tokens>> prompts_;
};

}  // namespace kvlink::link
