#include "cli/calibrate_experiments.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/calibrate_modes.h"
#include "cli/calibrate_window.h"
#include "cli/similar_setup.h"

namespace kvlink::cli {
namespace {

constexpr const char* kWindowLesson =
    "What this shows: how narrow a window must be for edits so dense, and that the length of a "
    "prompt matters only below some hundred tokens, where few windows lie between the edits. A run "
    "of window + 2 equal tokens is certain to share an anchor, but how long it is shows only "
    "between its first and last one: the wider the window, the shorter it seems, and what seems "
    "shorter than min_run = 16 tokens counts for nothing. So in short prompts narrower windows "
    "than 14 find more. What this cannot show: anything about the model. Retrieval sees token ids, "
    "so two models of different widths with one vocabulary give the same tables, number for "
    "number; with other vocabularies the same text has other lengths, and nothing else changes. "
    "That a wider model wants a wider window is therefore no rule of retrieval: the window does "
    "not touch quality, which the checks decide on raw ids.\n";
constexpr const char* kDistanceLegend =
    "Distance: the most layers in a row that keep the donor's K and V. Time: processor time to the "
    "first token, of what exact reuse takes; refused attempts count without the exact run that "
    "follows. KV added: pages beside the donor's, beside those that exact reuse adds for the same "
    "prompts. Cells: (layer, row) behind the exact rows; modified ones are written anew.\n\n";
constexpr const char* kDecisiveLegend =
    "Other pairs than above, each mode with its usual distance. The answer's start is given; every "
    "second donor was asked the same, so that its last rows hold the old answer. Usable: the exact "
    "answer holds the new fact and not the donor's; all modes get the same of them. Of what fell "
    "back the table says whose fact the answer that was kept back would have held.\n\n";

// The sentences of the corpus as token ids.
Result<std::vector<std::vector<TokenId>>> SentencesOf(const model::Tokenizer& tokenizer) {
  auto corpus = Corpus::Parse(CalibrationTemplates(), 1);
  if (!corpus.ok()) return corpus.status();
  std::vector<std::vector<TokenId>> sentences;
  for (const std::string& text : corpus->Texts()) {
    for (size_t from = 0; from < text.size();) {
      const size_t stop = text.find(". ", from);
      const size_t end = stop == std::string::npos ? text.size() : stop + 1;
      sentences.push_back(tokenizer.Encode(" " + text.substr(from, end - from), false, false));
      from = std::min(end + 1, text.size());
    }
  }
  return sentences;
}

}  // namespace

Result<Experiments> RunExperiments(const model::Model& model, const CalibrationOptions& options,
                                   const CalibrationFigures& figures,
                                   const std::function<void(const std::string&)>& note) {
  const auto sentences = SentencesOf(model.tokenizer());
  if (!sentences.ok()) return sentences.status();
  const SimilarModel described = DescribeForSimilar(model);
  const match::NormalTokens classes(described.token_texts);
  const WindowOptions window_options;
  note("windows");
  const auto windows = MeasureWindows(*sentences, classes, window_options);
  const auto modes = CompareModes(model, options, figures, note);
  if (!modes.ok()) return modes.status();
  Experiments experiments;
  experiments.memory = PlotOfMemory(modes->variants);
  experiments.section =
      "\n## Experiment: window against length\n\nRetrieval alone: no model runs. Each prompt's "
      "donor lies among twice as many strangers made of the same sentences.\n\n" +
      WindowTables(windows, window_options) + kWindowLesson +
      "\n## Experiment: reuse distance, and memory\n\n" + std::to_string(modes->pairs) +
      " pairs, the same for every row, with the rows, checks and bounds of setting " +
      figures.ladder[figures.choice.setting].name + ". " + kDistanceLegend +
      DistanceTable(modes->variants) + "\n## Experiment: edits that decide, by mode\n\n" +
      kDecisiveLegend + DecisiveModesTable(modes->variants);
  return experiments;
}

}  // namespace kvlink::cli
