// DonorIndex: prompts whose rows can be lent to a similar one. The similar part of the MatchMaker.
//
//   sketch --anchors, bands--> buckets of the newest donors --votes--> shortlist --coverage--> one
//
// A rare n-gram votes for the donors that have it, by 1 / how many have it. N-grams in more than a
// tenth of a namespace's donors are a template's: they vote for nobody, but their buckets hold the
// newest donors with that template, the best of which join the shortlist (behind a changed clock
// any of them will do). Of the shortlist that donor is taken which covers most of the prompt behind
// the exact hit, by anchors that stand in the same order and at the same distances.
//
// Invariants
//   1. A donor is found only by requests of its own namespace: namespaces are compared, not hashed.
//   2. A donor is here from Add to Erase, or until Move leaves less than half of what was sketched.
//   3. Every posting belongs to a donor that is here: memory goes with live donors, at most
//      max_anchors + kBands postings each.
// What is found is a candidate: alignment on raw ids says what can be reused. Threads: const
// members may run at the same time; everything else needs the index alone. Cost: a probe per anchor
// and band, O(1) in the number of donors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvlink/similar_options.h"
#include "match/anchor_runs.h"
#include "match/block_key.h"
#include "match/posting_table.h"
#include "match/sketch.h"
#include "match/vote_tally.h"

namespace kvlink::match {

using DonorId = uint64_t;  // the caller's name for a donor: its last block, or its sequence

struct DonorMatch {
  DonorId donor = 0;
  uint32_t donor_tokens = 0;    // rows that the donor has
  uint32_t estimated_rows = 0;  // behind the exact hit that it seems to cover
};

class DonorIndex {
 public:
  explicit DonorIndex(const SimilarOptions& options);
  DonorIndex(const DonorIndex&) = delete;
  DonorIndex& operator=(const DonorIndex&) = delete;

  // `id` lends the rows of the sketched prompt; a donor of this name is replaced. Prompts of fewer
  // than min_reused_rows tokens are not taken: false.
  bool Add(DonorId id, const Root& root, const Sketch& sketch);
  // The donor's last rows are gone: it has `num_tokens` left and is called `to`. It goes when that
  // is less than half of what was sketched, or when `to` lends already. Nothing happens when `from`
  // is not here.
  void Move(DonorId from, DonorId to, uint32_t num_tokens);
  void Erase(DonorId id);  // nothing happens when it is not here
  void Clear();

  // The donor for a prompt whose first `exact_tokens` rows are there already. None when those leave
  // fewer than min_reused_rows, or when nobody seems to cover nearly as many.
  std::optional<DonorMatch> Find(const Root& root, const Sketch& sketch,
                                 uint32_t exact_tokens) const;

  bool Contains(DonorId id) const { return numbers_.contains(id); }
  uint32_t RowsOf(DonorId id) const;  // that the donor has; 0 when it is not here
  size_t num_donors() const { return numbers_.size(); }
  size_t num_namespaces() const { return spaces_.size(); }
  size_t num_postings() const { return num_postings_; }
  size_t tracking_bytes() const;

 private:
  struct Donor {
    DonorId id = 0;
    uint64_t age = 0;  // counts up
    uint32_t space = 0;
    uint32_t num_tokens = 0;
    uint32_t sketched_tokens = 0;
    uint32_t window = 0;
    std::vector<KeyPlace> anchors;  // ascending
    std::array<uint32_t, kBands> bands{};
  };
  struct Space {
    uint32_t number = 0;
    uint32_t num_donors = 0;
  };
  using Spaces = std::unordered_map<std::string, Space>;  // by the root's extras
  class Query;

  uint32_t EnterSpace(const Root& root);
  void LeaveSpace(uint32_t number);
  void Vote(const Query& query, const Space& space, VoteTally* tally) const;
  std::vector<uint32_t> Shortlist(const VoteTally& tally) const;

  const SimilarOptions options_;
  PostingTable postings_;
  std::vector<Donor> donors_;  // by number
  std::vector<uint32_t> free_numbers_;
  std::unordered_map<DonorId, uint32_t> numbers_;
  Spaces spaces_;                               // those that have donors
  std::vector<Spaces::pointer> space_numbers_;  // by number
  std::vector<uint32_t> free_spaces_;
  uint64_t last_age_ = 0;
  size_t num_postings_ = 0;
  size_t anchor_bytes_ = 0;
};

}  // namespace kvlink::match
