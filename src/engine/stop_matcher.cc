#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kvlink::engine {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  std::vector<Pattern> patterns;
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern{stop, std::vector<uint32_t>(stop.size() + 1, 0)};
    for (size_t i = 1; i < stop.size(); ++i) {
      pattern.border[i + 1] = Advance(pattern, pattern.border[i], stop[i]);
    }
    patterns.push_back(std::move(pattern));
  }
  // The longest first: of those that end together it starts first.
  std::stable_sort(patterns.begin(), patterns.end(), [](const Pattern& a, const Pattern& b) {
    return a.text.size() > b.text.size();
  });
  states_.assign(patterns.size(), 0);
  patterns_ = std::make_shared<const std::vector<Pattern>>(std::move(patterns));
}

// Requires: state < pattern.text.size() (a full match ends the matching).
uint32_t StopMatcher::Advance(const Pattern& pattern, uint32_t state, char byte) {
  while (state > 0 && pattern.text[state] != byte) state = pattern.border[state];
  return pattern.text[state] == byte ? state + 1 : 0;
}

std::string StopMatcher::Append(std::string_view text) {
  if (matched()) return {};
  if (states_.empty()) return std::string(text);
  std::string seen = std::exchange(held_, {});
  for (const char byte : text) {
    seen.push_back(byte);
    for (size_t i = 0; i < states_.size(); ++i) {
      const Pattern& pattern = (*patterns_)[i];
      states_[i] = Advance(pattern, states_[i], byte);
      if (states_[i] == pattern.text.size()) {
        matched_ = static_cast<int>(i);
        seen.resize(seen.size() - pattern.text.size());
        return seen;
      }
    }
  }
  const uint32_t held = *std::max_element(states_.begin(), states_.end());
  held_ = seen.substr(seen.size() - held);
  seen.resize(seen.size() - held);
  return seen;
}

std::string StopMatcher::Flush() {
  std::fill(states_.begin(), states_.end(), 0);
  return std::exchange(held_, {});
}

const std::string& StopMatcher::stop_text() const {
  static const std::string none;
  return matched() ? (*patterns_)[static_cast<size_t>(matched_)].text : none;
}

}  // namespace kvlink::engine
