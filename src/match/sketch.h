// Sketch: what is kept of a prompt to find it again when a similar one comes.
//
//   tokens -> classes -> hashes of 3-grams -> anchors: the smallest hash of every `window` in a row
//                                          -> signature: a one-permutation MinHash of the anchors
//
// Properties
//   1. Two prompts that share a run of w + 2 classes, w the wider of their windows, share an anchor
//      inside that run (winnowing, Schleimer et al. 2003; an anchor of a wide window is one of
//      every narrower window, too).
//   2. Two signatures of one window agree in about as many places as the prompts' sets of anchors
//      are similar (Jaccard): one-permutation hashing (Li et al. 2012) whose empty bins are filled
//      by optimal densification (Shrivastava 2017).
// A sketch knows no tenant: the donor index mixes the namespace into every key. Cost: 10 to 20 us
// per thousand tokens. No state, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvlink/similar_options.h"
#include "match/normal_tokens.h"

namespace kvlink::match {

constexpr uint32_t kGram = 3;  // tokens whose order one hash knows
constexpr uint32_t kSignatureBins = 64;
constexpr uint32_t kBandRows = 3;
constexpr uint32_t kBands = kSignatureBins / kBandRows;

struct Anchor {
  uint64_t hash = 0;
  uint32_t position = 0;  // of the 3-gram's first token
  uint8_t tag = 0;        // of its raw ids: the same classes may stand for other numbers
  bool operator==(const Anchor&) const = default;
};

struct Sketch {
  uint32_t num_tokens = 0;
  uint32_t window = 0;          // of the anchors
  std::vector<Anchor> anchors;  // by position; empty below three tokens
  std::array<uint16_t, kSignatureBins> signature{};
};

// The window for a prompt of so many tokens, as wide as it must be for `max_anchors` to suffice
// (they lie (window + 1) / 2 apart on average).
uint32_t WindowFor(uint32_t num_tokens, const SimilarOptions& options);

Sketch MakeSketch(std::span<const TokenId> tokens, const NormalTokens& classes,
                  const SimilarOptions& options);

// A hash per 3-gram, by its first token: max(0, tokens - 2) of them.
std::vector<uint64_t> GramHashes(std::span<const TokenId> tokens, const NormalTokens& classes);
// The smallest hash of every `window` neighbours, each place once; the last among equals, unless
// the one chosen before still counts. Of fewer than `window` hashes the smallest.
std::vector<Anchor> Winnow(std::span<const uint64_t> hashes, uint32_t window);
// Sets the anchors' tags.
void TagAnchors(std::span<const TokenId> tokens, std::vector<Anchor>* anchors);
// The anchors that a wider window would have kept: some of equal hashes may lie elsewhere.
std::vector<Anchor> Coarsen(std::span<const Anchor> anchors, uint32_t num_tokens, uint32_t window);

std::array<uint16_t, kSignatureBins> SignatureOf(std::span<const Anchor> anchors);
// Places in which both agree, of kSignatureBins.
uint32_t Agreement(const std::array<uint16_t, kSignatureBins>& a,
                   const std::array<uint16_t, kSignatureBins>& b);
// A hash per band of kBandRows places: equal where the prompts agree in all of them.
std::array<uint64_t, kBands> BandHashes(const std::array<uint16_t, kSignatureBins>& signature);

}  // namespace kvlink::match
