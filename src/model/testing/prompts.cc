#include "model/testing/prompts.h"

#include <array>
#include <random>
#include <sstream>
#include <string_view>

namespace kvlink::model {
namespace {

// %n becomes a number, %p a name, %t a thing.
constexpr std::array<std::string_view, 24> kSentences = {
    "The library opens at %n in the morning, and %p usually waits outside with a cup of tea.",
    "To repair a %t, first disconnect the power, then remove the %n screws on the back plate.",
    "%p wrote that the harbour had frozen over in the winter of 18%n, which nobody believed.",
    "A good %t lasts about %n years if it is kept dry and oiled twice a season.",
    "In the second experiment the temperature rose by %n degrees before the %t began to bend.",
    "\"I never asked for a %t,\" said %p, \"and I certainly did not ask for %n of them.\"",
    "Rivers carry sediment downstream; where the current slows, the sediment settles and builds a "
    "delta.",
    "The committee approved item %n by a narrow vote after %p explained the cost of the %t.",
    "def area(width, height):\n    return width * height + %n\n",
    "Shopping list:\n- %n eggs\n- flour\n- one %t\n- salt\n",
    "When light passes from air into glass it slows down and bends towards the normal.",
    "图书馆每天早上%n点开门，%p常常在门口等着。",
    "这台机器的第%n个零件坏了，需要换一个新的。",
    "for (int i = 0; i < %n; ++i) {\n  total += values[i];\n}\n",
    "The recipe asks for %n grams of butter, melted slowly, and a pinch of nutmeg.",
    "%p measured the distance three times and got %n metres each time, so the map was wrong.",
    "Bread rises because yeast turns sugar into carbon dioxide, which stretches the dough.",
    "According to the ledger, %n crates of %ts were shipped in March and none came back.",
    "Question: why does a %t float? Answer: it displaces more water than it weighs.",
    "The old road climbs %n hundred steps past the mill, the chapel and a field of barley.",
    "SELECT name, price FROM items WHERE price < %n ORDER BY name;\n",
    "Most birds of this valley leave in autumn; the wren stays and sings through the frost.",
    "Dear %p, thank you for the %t. We have %n guests this weekend and will use it at once.",
    "Il est %n heures, et le train pour Lyon n'est toujours pas là.",
};
constexpr std::array<std::string_view, 8> kNames = {
    "Marta", "old Mr. Finch", "Doctor Okafor",  "the captain",
    "Yuki",  "a neighbour",   "Inspector Lund", "Amina"};
constexpr std::array<std::string_view, 8> kThings = {"kettle",     "lantern",    "bicycle pump",
                                                     "violin",     "boat",       "barometer",
                                                     "typewriter", "garden gate"};

}  // namespace

std::string MakePrompt(uint64_t seed, uint32_t num_words) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  std::string text;
  uint32_t words = 0;
  while (words < num_words) {
    const std::string_view sentence = kSentences[below(kSentences.size())];
    for (size_t i = 0; i < sentence.size(); ++i) {
      if (sentence[i] == ' ') ++words;
      if (sentence[i] != '%') {
        text += sentence[i];
        continue;
      }
      switch (sentence[++i]) {
        case 'n':
          text += std::to_string(2 + below(95));
          break;
        case 'p':
          text += kNames[below(kNames.size())];
          break;
        default:
          text += kThings[below(kThings.size())];
          break;
      }
    }
    ++words;
    text += below(5) == 0 ? "\n\n" : " ";
  }
  return text;
}

}  // namespace kvlink::model
