#include "cli/calibrate_corpus.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <map>
#include <sstream>
#include <utility>

namespace kvlink::cli {
namespace {

constexpr const char* kNames[] = {"Anna Berg",       "John Carter", "Li Wei",        "Maria Lopez",
                                  "Priya Natarajan", "Tom Hill",    "Sofia Ivanova", "Ahmed Haddad",
                                  "Grace O'Neill",   "Karl Schmid", "Yuki Tanaka",   "Ben Ford"};
constexpr const char* kRemarks[] = {
    "The customer has called before.",         "The customer writes from a phone.",
    "The customer prefers short answers.",     "The customer was sent here by a colleague.",
    "The customer is in a hurry today.",       "The customer has a question about the rules.",
    "The customer asks for a friendly answer."};
constexpr const char* kStates[] = {"shipped", "cancelled", "delivered", "packed", "returned"};
constexpr size_t kManyEdits = 11;  // more places than verify::kFewPlaces
// Words of a given start: so many repeated ones tell a small model to go on as the text does.
constexpr size_t kStartWords = 24, kFewestStartWords = 8;
constexpr size_t kShortSections = 4;  // of a short decisive text
constexpr int kDecisivePairs = 6;     // of a group, at most

template <typename Choices>
auto Choose(const Choices& choices, base::Random& random) {
  return choices[random.Below(std::size(choices))];
}

std::string Digits(size_t count, base::Random& random) {
  std::string digits(1, static_cast<char>('1' + random.Below(9)));
  while (digits.size() < count) digits += static_cast<char>('0' + random.Below(10));
  return digits;
}

std::string Hex(size_t count, base::Random& random) {
  std::string text;
  while (text.size() < count) text += "0123456789abcdef"[random.Below(16)];
  return text;
}

std::string Clock(base::Random& random) {
  char text[32];
  std::snprintf(text, sizeof text, "2026-%02d-%02d %02d:%02d:%02d",
                static_cast<int>(1 + random.Below(12)), static_cast<int>(1 + random.Below(28)),
                static_cast<int>(random.Below(24)), static_cast<int>(random.Below(60)),
                static_cast<int>(random.Below(60)));
  return text;
}

// What a service prints into the first lines.
struct Head {
  size_t style = 0;  // of the session
  std::string clock, session, name, remark, order, state, code;
  bool entitled = true;

  void NewClock(base::Random& random) {
    clock = Clock(random);
    session = style == 0 ? Digits(6, random) : style == 1 ? Hex(12, random) : Digits(9, random);
  }
  std::string Text() const {
    return "Current time: " + clock + ". Session " + session + ".\nCustomer: " + name + ". " +
           remark + "\nOrder " + order + " is " + state + ". The security code is " + code +
           ". The customer is" + (entitled ? "" : " not") + " entitled to a refund.";
  }
  // Up to the fact that an edit of `kind` changes.
  std::string Before(PairKind kind) const {
    const std::string text = Text(), words = kind == PairKind::kCode    ? "The security code is"
                                             : kind == PairKind::kState ? "Order " + order + " is"
                                                                        : "The customer is";
    return text.substr(0, text.rfind(words) + words.size());
  }
};

Head NewHead(base::Random& random) {
  Head head;
  head.style = random.Below(3);
  head.NewClock(random);
  head.name = Choose(kNames, random);
  head.remark = Choose(kRemarks, random);
  head.order = Digits(5, random);
  head.state = Choose(kStates, random);
  head.code = Digits(4, random);
  head.entitled = random.OneIn(2);
  return head;
}

struct Slot {
  size_t begin = 0, end = 0;  // of "{name:one|other}"
  std::string name;
  std::vector<std::string> values;
};

std::vector<Slot> SlotsOf(const std::string& text) {
  std::vector<Slot> slots;
  for (size_t at = text.find('{'); at != std::string::npos; at = text.find('{', at + 1)) {
    const size_t colon = text.find(':', at), end = text.find('}', at);
    if (colon == std::string::npos || end == std::string::npos || colon > end) continue;
    Slot slot{at, end + 1, text.substr(at + 1, colon - at - 1), {}};
    std::istringstream values(text.substr(colon + 1, end - colon - 1));
    for (std::string value; std::getline(values, value, '|');) slot.values.push_back(value);
    slots.push_back(std::move(slot));
  }
  return slots;
}

// Another one of the values; the same if there is no other.
std::string Other(const std::vector<std::string>& values, const std::string& value,
                  base::Random& random) {
  std::vector<std::string> others;
  std::ranges::copy_if(values, std::back_inserter(others),
                       [&](const std::string& other) { return other != value; });
  return others.empty() ? value : Choose(others, random);
}

// The text with `value(slot)` in place of every slot.
template <typename ValueOf>
std::string WithValues(const std::string& text, ValueOf value) {
  std::string filled;
  size_t from = 0;
  for (const Slot& slot : SlotsOf(text)) {
    filled += text.substr(from, slot.begin - from) + value(slot);
    from = slot.end;
  }
  return filled + text.substr(from);
}

// The last `count` words of a text, or all of it; without the blank at its end.
std::string LastWords(const std::string& text, size_t count) {
  const size_t end = text.find_last_not_of(" \n") + 1;
  size_t from = end;
  for (size_t words = 0; from > 0; --from) {
    const bool is_start = text[from - 1] == ' ' || text[from - 1] == '\n';
    if (is_start && ++words == count) break;
  }
  return text.substr(from, end - from);
}

size_t CountWords(const std::string& text) {
  return text.empty() ? 0 : 1 + static_cast<size_t>(std::ranges::count(text, ' '));
}

bool IsWordByte(char byte) { return std::isalnum(static_cast<unsigned char>(byte)) != 0; }

}  // namespace

const char* PairKindName(PairKind kind) {
  constexpr std::array kNamesOfKinds = {"clock", "name",     "passage", "many",     "code",
                                        "state", "negation", "field",   "own head", "own next"};
  static_assert(kNamesOfKinds.size() == static_cast<size_t>(PairKind::kCount));
  return kNamesOfKinds[static_cast<size_t>(kind)];
}

const char* EditPlaceName(EditPlace place) {
  return place == EditPlace::kEarly ? "early" : place == EditPlace::kMiddle ? "middle" : "late";
}

bool Holds(const std::string& text, const Fact& fact) {
  return std::ranges::any_of(fact.signs, [&](const std::string& sign) {
    for (size_t at = text.find(sign); at != std::string::npos; at = text.find(sign, at + 1)) {
      const size_t end = at + sign.size();
      if ((at == 0 || !IsWordByte(text[at - 1])) && (end == text.size() || !IsWordByte(text[end])))
        return true;
    }
    return false;
  });
}

std::string CalibrationPair::Said(const std::string& answer) const {
  const size_t blank = start.rfind(' ');
  return (blank == std::string::npos ? start : start.substr(blank + 1)) + answer;
}

// One chat in the making.
class Corpus::Draft {
 public:
  Draft(const Domain& domain, std::vector<std::string> sections, size_t head_at, Head head,
        base::Random& random)
      : domain_(domain), sections_(std::move(sections)), head_at_(head_at), head_(std::move(head)) {
    for (const Slot& slot : AllSlots()) values_[slot.name] = Choose(slot.values, random);
    question_ = Choose(domain.others, random).text;
  }

  std::vector<model::ChatMessage> Messages() const {
    std::string system = domain_.introduction;
    if (head_at_ == 0) system = head_.Text() + "\n\n" + system;
    for (size_t i = 0; i < sections_.size(); ++i) {
      if (i == head_at_ && i > 0) system += "\n\n" + head_.Text();
      system += "\n\n" + Filled(sections_[i]);
    }
    return {{"system", system, ""}, {"user", question_, ""}};
  }

  // From now on questions that decide come with the start of their answers.
  void GiveStarts() { gives_starts_ = true; }
  const std::string& start() const { return start_; }

  void NewClock(base::Random& random) { head_.NewClock(random); }

  // Chooses the value that edits of kind kField change from now on, in the first half of the rules:
  // behind a later one there is little to reuse. False: there is none.
  bool ChooseField(base::Random& random) {
    std::vector<Slot> choices;
    for (Slot& slot : AllSlots()) {
      if (CountWords(StartOf(slot.name)) >= kFewestStartWords) choices.push_back(std::move(slot));
    }
    if (choices.empty()) return false;
    choices.resize((choices.size() + 1) / 2);
    field_ = Choose(choices, random);
    return true;
  }

  // Asks for what an edit of `kind` decides, and gives the start of the answer.
  void Ask(PairKind kind) {
    const bool is_field = kind == PairKind::kField;
    question_ = kind == PairKind::kCode ? "What is the security code? Read the record aloud."
                : kind == PairKind::kState
                    ? "What is the state of the order? Read the record aloud."
                : is_field ? "What does this rule say? Read it aloud."
                           : "Am I entitled to a refund? Read the record aloud.";
    start_ = is_field ? StartOf(field_.name) : LastWords(head_.Before(kind), kStartWords);
  }

  // The edit of `kind` at `place`; the facts go into `pair`. False: this text has nothing to edit
  // in this way.
  bool Edit(PairKind kind, EditPlace place, const std::vector<std::string>& passages,
            base::Random& random, CalibrationPair* pair) {
    if (!Decides(kind) && random.OneIn(2)) question_ = Choose(domain_.others, random).text;
    switch (kind) {
      case PairKind::kClock:
        if (random.OneIn(2)) head_.style = random.Below(3);
        head_.NewClock(random);
        return true;
      case PairKind::kName:
        if (random.OneIn(2)) head_.name = Choose(kNames, random);
        head_.remark = Choose(kRemarks, random);
        return true;
      case PairKind::kPassage:
        EditPassage(place, passages, random);
        return true;
      case PairKind::kMany:
        return EditMany(random);
      case PairKind::kCode:
        question_ = "What is the security code?";
        pair->donor_fact.signs = {head_.code};
        head_.code = Digits(4, random);
        pair->fact.signs = {head_.code};
        return true;
      case PairKind::kState:
        question_ = "What is the state of order " + head_.order + "?";
        pair->donor_fact.signs = {head_.state};
        head_.state = Other({std::begin(kStates), std::end(kStates)}, head_.state, random);
        pair->fact.signs = {head_.state};
        return true;
      case PairKind::kNegation:
        question_ = "Am I entitled to a refund? Answer yes or no.";
        pair->donor_fact = Right();
        head_.entitled = !head_.entitled;
        pair->fact = Right();
        return true;
      case PairKind::kField:
        return EditField(random, pair);
      default:
        return false;
    }
  }

 private:
  std::vector<Slot> AllSlots() const {
    std::vector<Slot> all;
    for (const std::string& section : sections_) {
      for (Slot& slot : SlotsOf(section)) all.push_back(std::move(slot));
    }
    return all;
  }

  // The words before a value of the rules.
  std::string StartOf(const std::string& name) const {
    for (const std::string& section : sections_) {
      for (const Slot& slot : SlotsOf(section)) {
        if (slot.name == name) {
          return LastWords(Filled(section.substr(0, slot.begin)), kStartWords);
        }
      }
    }
    return "";
  }

  std::string Filled(const std::string& section) const {
    return WithValues(section, [&](const Slot& slot) { return values_.at(slot.name); });
  }

  Fact Right() const {
    if (gives_starts_) return {{head_.entitled ? "is entitled" : "is not entitled"}};
    if (head_.entitled) return {{"Yes", "yes", "are entitled", "is entitled"}};
    return {{"No", "no", "not entitled", "aren't entitled", "isn't entitled"}};
  }

  void EditPassage(EditPlace place, const std::vector<std::string>& passages,
                   base::Random& random) {
    const size_t at = static_cast<size_t>(place) * (sections_.size() - 1) / 3;
    const auto where = sections_.begin() + static_cast<std::ptrdiff_t>(at);
    const uint64_t way = random.Below(3);
    if (way == 0) {
      sections_.insert(where, Choose(passages, random));
      head_at_ += head_at_ > at ? 1 : 0;
    } else if (way == 1) {
      sections_.erase(where);
      head_at_ -= head_at_ > at ? 1 : 0;
    } else {
      *where = Choose(passages, random);
    }
  }

  bool EditMany(base::Random& random) {
    std::vector<Slot> slots = AllSlots();
    if (slots.size() < kManyEdits) return false;
    std::ranges::shuffle(slots, random);
    for (size_t i = 0; i < kManyEdits; ++i) {
      std::string& value = values_[slots[i].name];
      value = Other(slots[i].values, value, random);
    }
    return true;
  }

  void Exchange(const Slot& slot, base::Random& random, CalibrationPair* pair) {
    std::string& value = values_[slot.name];
    pair->donor_fact.signs = {value};
    value = Other(slot.values, value, random);
    pair->fact.signs = {value};
  }

  bool EditField(base::Random& random, CalibrationPair* pair) {
    if (!field_.name.empty()) {
      Exchange(field_, random, pair);
      return true;
    }
    std::vector<std::pair<Slot, std::string>> choices;
    for (Slot& slot : AllSlots()) {
      for (const Question& question : domain_.deciding) {
        if (question.slot == slot.name) choices.push_back({slot, question.text});
      }
    }
    if (choices.empty()) return false;
    const auto [slot, question] = Choose(choices, random);
    question_ = question;
    Exchange(slot, random, pair);
    return true;
  }

  const Domain& domain_;
  std::vector<std::string> sections_;
  size_t head_at_;
  Head head_;
  std::map<std::string, std::string> values_;
  std::string question_, start_;
  Slot field_;  // that decides, once chosen
  bool gives_starts_ = false;
};

CalibrationGroup Corpus::Next() {
  const size_t number = num_groups_++;
  const Domain& domain = domains_[number % domains_.size()];
  const size_t length = number / domains_.size() % 3;
  const auto place = static_cast<EditPlace>((number + number / 3) % 3);

  std::vector<std::string> sections = domain.sections;
  if (length > 0) sections.insert(sections.end(), passages_.begin(), passages_.end());
  if (length > 1) {
    const Domain& more = domains_[(number + 1) % domains_.size()];
    sections.insert(sections.end(), more.sections.begin(), more.sections.end());
  }
  const size_t head_at = static_cast<size_t>(place) * sections.size() * 3 / 8;
  const Draft draft(domain, std::move(sections), head_at, NewHead(random_), random_);

  CalibrationGroup group{draft.Messages(), {}};
  constexpr PairKind kKinds[] = {
      PairKind::kClock,    PairKind::kName,  PairKind::kPassage, PairKind::kMany, PairKind::kCode,
      PairKind::kClock,    PairKind::kState, PairKind::kPassage, PairKind::kMany, PairKind::kField,
      PairKind::kNegation, PairKind::kName,  PairKind::kPassage};
  size_t edits = 0;
  for (const PairKind kind : kKinds) {
    CalibrationPair pair;
    pair.kind = kind;
    // A passage changes wherever the head stands.
    pair.place = kind == PairKind::kPassage ? static_cast<EditPlace>(edits++ % 3) : place;
    Draft other = draft;
    if (!other.Edit(kind, pair.place, passages_, random_, &pair)) continue;
    pair.messages = other.Messages();
    // No edit by chance, or the one of another pair: the same trial twice would count twice.
    const auto same = [&](const std::vector<model::ChatMessage>& messages) {
      return messages.front().content == pair.messages.front().content;
    };
    const bool is_there = std::ranges::any_of(
        group.pairs, [&](const CalibrationPair& before) { return same(before.messages); });
    if (same(group.donor) || is_there) continue;
    group.pairs.push_back(std::move(pair));
  }
  return group;
}

CalibrationGroup Corpus::NextDecisive() {
  const size_t number = num_decisive_++;
  constexpr PairKind kKinds[] = {PairKind::kCode, PairKind::kState, PairKind::kNegation,
                                 PairKind::kField};
  const PairKind kind = kKinds[number % std::size(kKinds)];
  const size_t round = number / std::size(kKinds);
  const Domain& domain = domains_[round % domains_.size()];
  const size_t length = number % 3;
  const auto place = length == 0 ? EditPlace::kEarly : static_cast<EditPlace>(round % 3);
  std::vector<std::string> sections = domain.sections;
  if (length == 0) sections.resize(std::min(sections.size(), kShortSections));
  if (length == 2) sections.insert(sections.end(), passages_.begin(), passages_.end());
  const size_t head_at = static_cast<size_t>(place) * sections.size() * 3 / 8;
  Draft draft(domain, std::move(sections), head_at, NewHead(random_), random_);
  draft.GiveStarts();
  if (!draft.ChooseField(random_) && kind == PairKind::kField) return {draft.Messages(), {}, ""};
  if (round % 2 == 0) draft.Ask(kind);  // else the donor was asked something else

  CalibrationGroup group{draft.Messages(), {}, draft.start()};
  for (int i = 0; i < kDecisivePairs; ++i) {
    CalibrationPair pair;
    pair.kind = kind;
    pair.place = place;
    Draft other = draft;
    // In a short text two edits near the head change what everything saw.
    if (i % 2 == 1 && length != 0) other.NewClock(random_);
    if (!other.Edit(kind, place, passages_, random_, &pair)) continue;
    other.Ask(kind);
    pair.messages = other.Messages();
    pair.start = other.start();
    const auto same = [&](const std::vector<model::ChatMessage>& messages) {
      return messages.front().content == pair.messages.front().content;
    };
    const bool is_there = std::ranges::any_of(
        group.pairs, [&](const CalibrationPair& before) { return same(before.messages); });
    if (same(group.donor) || is_there || pair.fact.signs == pair.donor_fact.signs) continue;
    group.pairs.push_back(std::move(pair));
  }
  return group;
}

std::vector<std::string> Corpus::Texts() const {
  std::vector<std::string> texts = passages_;
  for (const Domain& domain : domains_) {
    texts.insert(texts.end(), domain.sections.begin(), domain.sections.end());
  }
  for (std::string& text : texts) {
    text = WithValues(text, [](const Slot& slot) {
      return slot.values.empty() ? std::string() : slot.values.front();
    });
  }
  return texts;
}

std::vector<CalibrationGroup> GroupsOf(const Workload& prompts, uint64_t seed) {
  base::Random random(seed);
  std::vector<CalibrationGroup> groups;
  const auto& all = prompts.conversations;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].turns.empty() || all[i].turns.front().messages.empty()) continue;
    const auto behind_clock = [&] {
      std::vector<model::ChatMessage> messages = all[i].turns.front().messages;
      messages.front().content = "Current time: " + Clock(random) + ". Session " + Hex(12, random) +
                                 ".\n\n" + messages.front().content;
      return messages;
    };
    CalibrationGroup head{behind_clock(), {}};
    head.pairs.push_back({PairKind::kOwnHead, EditPlace::kEarly, behind_clock(), {}, {}});
    groups.push_back(std::move(head));
    if (i + 1 == all.size() || all[i + 1].turns.empty()) continue;
    CalibrationGroup next{all[i].turns.front().messages, {}};
    next.pairs.push_back(
        {PairKind::kOwnNext, EditPlace::kEarly, all[i + 1].turns.front().messages, {}, {}});
    groups.push_back(std::move(next));
  }
  return groups;
}

}  // namespace kvlink::cli
