#include "corpus.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <span>
#include <string_view>

namespace kvlink::bench {
namespace {

// Slots: %n name, %p place, %t thing, %v verb, %a adjective, %d date, %# number.
constexpr std::string_view kPatterns[] = {
    "%n asked whether the %a %t at %p could be %v before %d.",
    "The office at %p keeps %# copies of every %t, and %n holds the key.",
    "On %d a %a %t was %v near %p without anyone taking notice.",
    "Please send the %t to %p; the porter will sign for it until %# o'clock.",
    "%n and %n have agreed that the %t will be %v twice a year.",
    "Nobody at %p remembers who paid %# crowns for the %a %t.",
    "A %t that was %v must be shown to %n within %# days.",
    "Since %d the ferry stops at %p only when a %a flag is raised.",
    "The council has %v the plan for a %a %t by %# votes.",
    "If the %t is %a, write the number %# on the lid and call %n.",
    "Visitors of %p may borrow a %t, but it has to be back by %d.",
    "%n writes that the %a %t has not been seen since %d.",
    "There are %# steps from %p to the harbour, all of them %a.",
    "For the feast on %d every household brings a %t and a %a lamp.",
    "The carpenter of %p has %v the %t, which now weighs %# pounds.",
    "It was %n who first %v the %t, long before %p had a bridge.",
    "Bring %# nails, a %a rope and the %t that %n left behind.",
    "After the storm of %d the %t stood %a in the middle of the road.",
    "We regret that the %t you ordered was %v by mistake.",
    "The minutes of %d say that %n spoke for %# minutes about the %t.",
    "Keep the %a door closed, or the %t will be %v again.",
    "Our reading of %d showed %# degrees inside the %t.",
    "Anyone who finds a %a %t near %p should tell %n at once.",
    "The %t is %v every morning, except when %n is away at %p."};
constexpr std::string_view kNames[] = {"Odile",   "Marten", "Ruta",  "Casimir", "Imke",  "Tobias",
                                       "Ysolde",  "Bram",   "Neva",  "Lorenz",  "Petra", "Aurel",
                                       "Sunniva", "Joris",  "Maren", "Emeric"};
constexpr std::string_view kPlaces[] = {"the mill",       "Harrow Street",  "the old quay",
                                        "Saint Vey",      "the north gate", "Copper Lane",
                                        "the glasshouse", "Low Meadow",     "the signal tower",
                                        "Brightwater",    "the tannery",    "Upper Ford"};
constexpr std::string_view kThings[] = {
    "ledger",   "barometer", "ladder",   "kettle", "cart", "clock",        "lantern",
    "register", "pump",      "boat",     "letter", "drum", "weather vane", "stove",
    "map",      "bell",      "umbrella", "scale",  "loom", "telescope"};
constexpr std::string_view kVerbs[] = {"repaired", "moved",    "counted", "painted",
                                       "measured", "sold",     "weighed", "lent",
                                       "cleaned",  "replaced", "opened",  "sealed"};
constexpr std::string_view kAdjectives[] = {"heavy",  "green",  "narrow", "borrowed", "broken",
                                            "quiet",  "wooden", "second", "crooked",  "useful",
                                            "yellow", "tall",   "damp",   "forgotten"};
constexpr std::string_view kMonths[] = {"January", "March",   "April",   "June",
                                        "August",  "October", "November"};
constexpr std::string_view kQuestions[] = {
    "Who has to be told, and by when?", "What happened to the %t?",
    "How many %t are there at %p?",     "Write a short answer to %n about the %t.",
    "Which of the rules speak of %p?",  "Say in one sentence what %n wants.",
    "When was the %t last %v?"};

}  // namespace

std::string Corpus::Fill(std::string_view pattern) {
  const auto any = [&](std::span<const std::string_view> words) {
    return std::string(words[random_.Below(words.size())]);
  };
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      out.push_back(pattern[i]);
      continue;
    }
    switch (pattern[++i]) {
      case 'n':
        out += any(kNames);
        break;
      case 'p':
        out += any(kPlaces);
        break;
      case 't':
        out += any(kThings);
        break;
      case 'v':
        out += any(kVerbs);
        break;
      case 'a':
        out += any(kAdjectives);
        break;
      case 'd':
        out += std::to_string(1 + random_.Below(30)) + " " + any(kMonths);
        break;
      default:
        out += std::to_string(2 + random_.Below(400));
    }
  }
  return out;
}

std::string Corpus::Sentence() { return Fill(kPatterns[random_.Below(std::size(kPatterns))]); }

std::string Corpus::Question() { return Fill(kQuestions[random_.Below(std::size(kQuestions))]); }

std::string Corpus::ClockLine() {
  std::array<char, 80> line;
  std::snprintf(line.data(), line.size(), "It is %02u:%02u:%02u, request %08x of the day.\n",
                static_cast<unsigned>(random_.Below(24)), static_cast<unsigned>(random_.Below(60)),
                static_cast<unsigned>(random_.Below(60)),
                static_cast<unsigned>(random_.Below(1u << 31)));
  return line.data();
}

Corpus::Text Corpus::Write(size_t num_sentences) {
  Text text;
  for (size_t i = 0; i < num_sentences; ++i) text.push_back(Sentence());
  return text;
}

Corpus::Text Corpus::Revise(const Text& text) {
  Text revised = text;
  for (uint64_t edits = 1 + random_.Below(3); edits > 0; --edits) {
    const size_t at = random_.Below(revised.size());
    const auto where = revised.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random_.Below(6)) {
      case 0:  // the head, as a date or a name would
        revised.front() = Sentence();
        break;
      case 1:
        revised.insert(where, Sentence());
        break;
      case 2:
        if (revised.size() > 4) revised.erase(where);
        break;
      case 3:
        revised[at] = Sentence();
        break;
      case 4:  // a word in every tenth sentence
        for (size_t i = random_.Below(10); i < revised.size(); i += 10) {
          const size_t blank = revised[i].find(' ', revised[i].size() / 2);
          if (blank != std::string::npos) revised[i].insert(blank, " indeed");
        }
        break;
      default:
        std::ranges::transform(revised[at], revised[at].begin(),
                               [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    }
  }
  return revised;
}

std::string Corpus::Join(const Text& text) {
  std::string joined;
  for (size_t i = 0; i < text.size(); ++i) joined += text[i] + (i % 5 == 4 ? "\n" : " ");
  return joined;
}

}  // namespace kvlink::bench
