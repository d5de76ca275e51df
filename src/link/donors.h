// Donors: the prompts that can lend rows, those that are resident and those being computed.
//
//   being computed   leader's prompt --Announce--> pending --Settle(last block)--> resident
//   resident         the block with the prompt's last row names it; its tokens are read back
//                    through the chain, no copy is kept
//                    the block is evicted -> the parent's rows remain (Move)
//
// Invariants
//   1. A resident donor's rows are all in the prefix index, up to the block that names it, and have
//      the tokens that were sketched.
//   2. Only sequences that store are announced, so every donor is exact.
// Threads: const members may run at the same time; everything else needs the object alone. Exists
// only when similar reuse is on. Cost: a sketch (10 to 20 us per thousand tokens) and an entry in
// the index per prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "match/donor_index.h"
#include "match/normal_tokens.h"
#include "match/prefix_index.h"
#include "match/sketch.h"

namespace kvlink::link {

class Donors {
 public:
  Donors(const SimilarOptions& options, std::span<const std::string> token_texts)
      : options_(options), classes_(token_texts), resident_(options), pending_(options) {}

  match::Sketch SketchOf(std::span<const TokenId> tokens) const {
    return match::MakeSketch(tokens, classes_, options_);
  }

  // Sequence `leader` computes this prompt.
  void Announce(uint64_t leader, const match::Root& root, std::span<const TokenId> tokens);
  // It did; the last row is in `block`. Nothing happens when it was not announced.
  void Settle(uint64_t leader, BlockId block);
  // It never will.
  void Drop(uint64_t leader);

  // Block `id` leaves the index: its prompt's rows up to the parent remain.
  void Evicted(BlockId id, BlockId parent, uint32_t rows_left);
  // Block `to` stands for the same tokens.
  void GoneOver(BlockId from, BlockId to);

  std::optional<match::DonorMatch> FindResident(const match::Root& root,
                                                const match::Sketch& sketch,
                                                uint32_t exact_tokens) const {
    return resident_.Find(root, sketch, exact_tokens);
  }
  // The match names the leader.
  std::optional<match::DonorMatch> FindPending(const match::Root& root, const match::Sketch& sketch,
                                               uint32_t exact_tokens) const;
  std::span<const TokenId> TokensOfPending(uint64_t leader) const;

  bool IsEmpty() const { return resident_.num_donors() + pending_.num_donors() == 0; }
  const match::DonorIndex& resident() const { return resident_; }
  const match::NormalTokens& classes() const { return classes_; }
  size_t tracking_bytes() const;

  // What a leader announces as in flight until its prompt is settled.
  static base::BlockKey KeyOf(uint64_t leader) { return {leader, 0xd0da5d0da5d0da50u}; }

 private:
  struct Pending {
    match::Root root;
    match::Sketch sketch;
    std::vector<TokenId> tokens;
  };

  const SimilarOptions options_;
  const match::NormalTokens classes_;
  match::DonorIndex resident_;                     // by BlockId
  match::DonorIndex pending_;                      // by leader
  std::unordered_map<uint64_t, Pending> prompts_;  // by leader
};

// Blocks of the chain that ends in a donor's last block, and the tokens of their first `num_rows`
// rows.
struct DonorChain {
  std::vector<BlockId> blocks;
  std::vector<TokenId> tokens;
};
DonorChain ReadDonor(const match::PrefixIndex& index, BlockId last, uint32_t num_rows);

}  // namespace kvlink::link
