#include "match/sketch.h"

#include <algorithm>
#include <bit>

#include "base/random.h"

namespace kvlink::match {
namespace {

uint64_t Mix(uint64_t value) { return base::SplitMix64(value); }

constexpr uint64_t kEmptyBin = ~uint64_t{0};

// Where an empty bin takes its value from: a fixed random walk over the bins, the same for every
// prompt, so that two prompts with the same full bins fill the others alike.
uint32_t DonorBin(uint32_t bin, const std::array<uint64_t, kSignatureBins>& minima) {
  uint64_t walk = bin;
  for (;;) {
    const auto other = static_cast<uint32_t>(base::SplitMix64(walk) % kSignatureBins);
    if (minima[other] != kEmptyBin) return other;
  }
}

}  // namespace

uint32_t WindowFor(uint32_t num_tokens, const SimilarOptions& options) {
  uint32_t window = std::max(options.fingerprint_window, 1u);
  if (num_tokens < options.short_prompt_tokens) {
    return std::min(window, std::max(options.short_window, 1u));
  }
  while (2 * uint64_t{num_tokens} > (window + uint64_t{1}) * options.max_anchors &&
         window < num_tokens) {
    window *= 2;
  }
  return window;
}

// A cyclic polynomial: each class has a random word, rotated by its place in the 3-gram, so that
// the oldest one can be taken out again. The mixer makes the order of hashes independent of it.
std::vector<uint64_t> GramHashes(std::span<const TokenId> tokens, const NormalTokens& classes) {
  if (tokens.size() < kGram) return {};
  std::vector<uint64_t> hashes(tokens.size() - kGram + 1);
  std::array<uint64_t, kGram> words{};  // of the last three tokens, a ring
  uint64_t rolling = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint64_t& oldest = words[i % kGram];
    const uint64_t word = Mix(classes.ClassOf(tokens[i]));
    rolling = std::rotl(rolling, 1) ^ std::rotl(oldest, kGram) ^ word;
    oldest = word;
    if (i + 1 >= kGram) hashes[i + 1 - kGram] = Mix(rolling);
  }
  return hashes;
}

std::vector<Anchor> Winnow(std::span<const uint64_t> hashes, uint32_t window) {
  std::vector<Anchor> anchors;
  if (hashes.empty()) return anchors;
  window = std::min(window, static_cast<uint32_t>(hashes.size()));
  anchors.reserve(2 * hashes.size() / (window + 1) + 8);
  uint32_t chosen = 0;
  const auto choose_from = [&](uint32_t begin, uint32_t end) {
    chosen = begin;
    for (uint32_t i = begin + 1; i < end; ++i) {
      if (hashes[i] <= hashes[chosen]) chosen = i;
    }
    anchors.push_back({.hash = hashes[chosen], .position = chosen});
  };
  choose_from(0, window);
  for (uint32_t end = window + 1; end <= hashes.size(); ++end) {
    const uint32_t begin = end - window;
    if (chosen < begin) {
      choose_from(begin, end);
    } else if (hashes[end - 1] < hashes[chosen]) {
      chosen = end - 1;
      anchors.push_back({.hash = hashes[chosen], .position = chosen});
    }
  }
  return anchors;
}

void TagAnchors(std::span<const TokenId> tokens, std::vector<Anchor>* anchors) {
  for (Anchor& anchor : *anchors) {
    uint64_t ids = 0;
    for (const TokenId token : tokens.subspan(anchor.position, kGram)) {
      ids = Mix(ids ^ static_cast<uint32_t>(token));
    }
    anchor.tag = static_cast<uint8_t>(ids >> 56);
  }
}

// A window's smallest hash is the smallest of the anchors in it, because every narrower window
// inside it has kept its own smallest one.
std::vector<Anchor> Coarsen(std::span<const Anchor> anchors, uint32_t num_tokens, uint32_t window) {
  std::vector<Anchor> coarse;
  if (anchors.empty()) return coarse;
  const uint32_t num_grams = num_tokens - kGram + 1;
  window = std::min(window, num_grams);
  // Indices of anchors that may yet be the smallest of a window: hashes rise from front to back.
  std::vector<uint32_t> rising;
  size_t front = 0, next = 0;
  for (uint32_t end = window; end <= num_grams; ++end) {
    for (; next < anchors.size() && anchors[next].position < end; ++next) {
      while (rising.size() > front && anchors[rising.back()].hash > anchors[next].hash) {
        rising.pop_back();
      }
      rising.push_back(static_cast<uint32_t>(next));
    }
    while (front < rising.size() && anchors[rising[front]].position + window < end) ++front;
    if (front == rising.size()) continue;
    const Anchor& smallest = anchors[rising[front]];
    if (coarse.empty() || !(coarse.back() == smallest)) coarse.push_back(smallest);
  }
  return coarse;
}

std::array<uint16_t, kSignatureBins> SignatureOf(std::span<const Anchor> anchors) {
  std::array<uint16_t, kSignatureBins> signature{};
  if (anchors.empty()) return signature;
  std::array<uint64_t, kSignatureBins> minima;
  minima.fill(kEmptyBin);
  for (const Anchor& anchor : anchors) {
    const uint64_t hash = Mix(anchor.hash ^ 0x5ce7c4u);  // anchors are small hashes: spread them
    uint64_t& bin = minima[hash >> 58];
    bin = std::min(bin, hash & (~uint64_t{0} >> 6));
  }
  for (uint32_t bin = 0; bin < kSignatureBins; ++bin) {
    const uint32_t from = minima[bin] == kEmptyBin ? DonorBin(bin, minima) : bin;
    signature[bin] = static_cast<uint16_t>(minima[from]);
  }
  return signature;
}

uint32_t Agreement(const std::array<uint16_t, kSignatureBins>& a,
                   const std::array<uint16_t, kSignatureBins>& b) {
  uint32_t equal = 0;
  for (uint32_t i = 0; i < kSignatureBins; ++i) equal += a[i] == b[i] ? 1 : 0;
  return equal;
}

std::array<uint64_t, kBands> BandHashes(const std::array<uint16_t, kSignatureBins>& signature) {
  std::array<uint64_t, kBands> hashes;
  for (uint32_t band = 0; band < kBands; ++band) {
    uint64_t places = band + 1;
    for (uint32_t row = 0; row < kBandRows; ++row) {
      places = places << 16 | signature[band * kBandRows + row];
    }
    hashes[band] = Mix(places);
  }
  return hashes;
}

Sketch MakeSketch(std::span<const TokenId> tokens, const NormalTokens& classes,
                  const SimilarOptions& options) {
  Sketch sketch;
  sketch.num_tokens = static_cast<uint32_t>(tokens.size());
  sketch.window = WindowFor(sketch.num_tokens, options);
  const std::vector<uint64_t> hashes = GramHashes(tokens, classes);
  // The signature's window does not follow the length, so that a long prompt and a slightly longer
  // one stay comparable.
  const uint32_t base_window = std::min(sketch.window, std::max(options.fingerprint_window, 1u));
  sketch.anchors = Winnow(hashes, base_window);
  sketch.signature = SignatureOf(sketch.anchors);
  const auto limit = static_cast<size_t>(std::max(options.max_anchors, 1u));
  if (sketch.window > base_window) sketch.anchors = Winnow(hashes, sketch.window);
  while (sketch.anchors.size() > limit && sketch.window < hashes.size()) {
    sketch.window *= 2;
    sketch.anchors = Winnow(hashes, sketch.window);
  }
  if (sketch.anchors.size() > limit) sketch.anchors.resize(limit);
  TagAnchors(tokens, &sketch.anchors);
  return sketch;
}

}  // namespace kvlink::match
