#include "cli/calibrate_window.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/random.h"
#include "cli/machine.h"
#include "match/donor_index.h"
#include "match/sketch.h"

namespace kvlink::cli {
namespace {

using Tokens = std::vector<TokenId>;

constexpr uint32_t kStrangers = 2;  // for every prompt

Tokens Compose(std::span<const Tokens> sentences, uint32_t length, base::Random& random) {
  Tokens tokens;
  while (tokens.size() < length) {
    const Tokens& next = sentences[random.Below(sentences.size())];
    tokens.insert(tokens.end(), next.begin(), next.end());
  }
  tokens.resize(length);
  return tokens;
}

// A token in every gap / 2 to 3 gap / 2 becomes another one of the text's, or one comes or goes.
Tokens Edited(const Tokens& tokens, uint32_t gap, base::Random& random) {
  Tokens edited;
  size_t next = random.Below(gap);
  for (size_t at = 0; at < tokens.size(); ++at) {
    if (at != next) {
      edited.push_back(tokens[at]);
      continue;
    }
    next += gap / 2 + 1 + random.Below(gap);
    const uint64_t way = random.Below(4);
    if (way == 0) continue;  // goes
    edited.push_back(tokens[random.Below(tokens.size())]);
    if (way == 1) edited.push_back(tokens[at]);  // one has come
  }
  return edited;
}

SimilarOptions OptionsOf(uint32_t window, uint32_t length) {
  SimilarOptions options;
  options.fingerprint_window = options.short_window = window;
  options.min_reused_rows = std::min(options.min_reused_rows, length / 2);
  return options;
}

}  // namespace

std::vector<WindowFigures> MeasureWindows(std::span<const Tokens> sentences,
                                          const match::NormalTokens& classes,
                                          const WindowOptions& options) {
  KVLINK_CHECK(sentences.size() >= 10) << "too few sentences: " << sentences.size();
  const match::KeyMaker keys("window experiment");
  const match::Root root = keys.MakeRoot({});
  std::vector<WindowFigures> all;
  for (const uint32_t gap : options.gaps) {
    for (const uint32_t length : options.lengths) {
      base::Random random(options.seed + length + gap);
      std::vector<Tokens> donors, prompts;
      for (uint32_t i = 0; i < (1 + kStrangers) * options.queries; ++i) {
        donors.push_back(Compose(sentences, length, random));
        if (i < options.queries) prompts.push_back(Edited(donors.back(), gap, random));
      }
      for (const uint32_t window : options.windows) {
        const SimilarOptions similar = OptionsOf(window, length);
        match::DonorIndex index(similar);
        for (size_t i = 0; i < donors.size(); ++i) {
          index.Add(i, root, match::MakeSketch(donors[i], classes, similar));
        }
        WindowFigures figures{window, length, gap, options.queries, 0, 0, 0};
        const double start_s = ProcessCpuSeconds();
        for (size_t i = 0; i < prompts.size(); ++i) {
          const auto found = index.Find(root, match::MakeSketch(prompts[i], classes, similar), 0);
          if (found) ++(found->donor == i ? figures.right : figures.wrong);
        }
        figures.find_us = (ProcessCpuSeconds() - start_s) * 1e6 / std::max(options.queries, 1u);
        all.push_back(figures);
      }
    }
  }
  return all;
}

std::string WindowTables(std::span<const WindowFigures> figures, const WindowOptions& options) {
  std::string text;
  char cell[64];
  for (const uint32_t gap : options.gaps) {
    text += "A token in " + std::to_string(gap) +
            " changed, came or went. Right donor found (wrong one):\n\n| prompt, tokens |";
    for (const uint32_t window : options.windows)
      text += " window " + std::to_string(window) + " |";
    text += "\n|---|" + [&] {
      std::string dashes;
      for (size_t i = 0; i < options.windows.size(); ++i) dashes += "---|";
      return dashes;
    }() + "\n";
    for (const uint32_t length : options.lengths) {
      text += "| " + std::to_string(length) + " |";
      for (const uint32_t window : options.windows) {
        const auto found = std::ranges::find_if(figures, [&](const WindowFigures& of) {
          return of.gap == gap && of.length == length && of.window == window;
        });
        if (found == figures.end()) continue;
        std::snprintf(cell, sizeof cell, " %.0f %% (%u), %.0f us |", 100 * found->recall(),
                      found->wrong, found->find_us);
        text += cell;
      }
      text += "\n";
    }
    text += "\n";
  }
  return text;
}

}  // namespace kvlink::cli
