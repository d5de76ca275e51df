// How often the right donor is found: prompts come one after the other, each is looked up among
// those before it and then lends itself.
//
// What is right is decided by alignment with *every* donor: the best is the one with most rows of
// the same tokens in runs behind the exact hit. A prompt has a donor when the best would lend at
// least min_reused_rows; a found donor is right when it lends at least nine tenths of that.
//   recall    = right / prompts that have a donor
//   precision = right / prompts for which one was returned
#pragma once

#include <string>
#include <vector>

#include "kvlink/similar_options.h"
#include "match/normal_tokens.h"
#include "prompts.h"

namespace kvlink::bench {

struct Case {
  struct Item {
    Tokens tokens;
    bool is_query = true;
    bool is_donor = true;
  };
  std::string name;
  std::vector<Item> items;
};

struct Counts {
  uint32_t queries = 0, have_donor = 0, returned = 0, right = 0;
  Counts& operator+=(const Counts& other) {
    queries += other.queries;
    have_donor += other.have_donor;
    returned += other.returned;
    right += other.right;
    return *this;
  }
  double recall() const { return have_donor == 0 ? 1 : double{1} * right / have_donor; }
  double precision() const { return returned == 0 ? 1 : double{1} * right / returned; }
};

struct Quality {
  Counts index;           // DonorIndex
  Counts single_minimum;  // the smallest 3-gram hash as the only fingerprint
  double mean_tokens = 0, mean_exact = 0, mean_best = 0;  // of the queries
};

Quality Measure(const Case& prompts, const match::NormalTokens& classes,
                const std::vector<uint8_t>& special, const SimilarOptions& options);

}  // namespace kvlink::bench
