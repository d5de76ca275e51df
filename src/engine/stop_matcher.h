// StopMatcher: finds the first stop string in text that comes in pieces.
//
// "First" is the one that ends first (of those that end together, the longest), so that the answer
// does not depend on where the pieces are cut. Text that may be the beginning of a stop string is
// held back. One KMP automaton a stop string: the cost is O(stop strings) a byte, whatever they
// hold. A value: a branch copies its parent's matcher.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvlink::engine {

class StopMatcher {
 public:
  StopMatcher() = default;
  explicit StopMatcher(const std::vector<std::string>& stops);  // empty strings are ignored

  // Takes more text; returns what can be shown now. After a match nothing more is shown.
  std::string Append(std::string_view text);
  // The text has ended: returns what was held back.
  std::string Flush();

  bool matched() const { return matched_ >= 0; }
  const std::string& stop_text() const;  // the stop string that matched; "" if none

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> border;  // [i]: length of the longest border of text[0, i)
  };
  static uint32_t Advance(const Pattern& pattern, uint32_t state, char byte);

  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<uint32_t> states_;  // bytes of each pattern that the text's end matches
  std::string held_;              // as long as the largest state
  int matched_ = -1;
};

}  // namespace kvlink::engine
