// Made-up texts with a known relation: letters, notices and reports of an invented town, from a
// seed. Strangers are written by the same few patterns, so that they share words and phrases; near
// duplicates differ as revisions of one text do.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"

namespace kvlink::bench {

class Corpus {
 public:
  explicit Corpus(uint64_t seed) : random_(seed) {}
  // Sentences; a word is about 1.3 tokens.
  using Text = std::vector<std::string>;

  Text Write(size_t num_sentences);
  // Another version of it: one to three of a changed name, number or date, a word here and there,
  // a sentence put in, taken out or written anew, another spelling.
  Text Revise(const Text& text);
  std::string ClockLine();
  std::string Question();
  base::Random& random() { return random_; }

  static std::string Join(const Text& text);

 private:
  std::string Sentence();
  std::string Fill(std::string_view pattern);
  base::Random random_;
};

}  // namespace kvlink::bench
