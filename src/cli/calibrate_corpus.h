// Corpus of calibration: pairs of chats of which the second differs from the first by one edit.
//
//   donor   system: [head][section 1]...[section n]   user: a question
//   other   the same with one edit, and a question of its own or the same
//
// The head holds a clock, a session, a customer, an order's state, a code and a right; it stands
// at the start, in the middle or three quarters down. An edit that decides changes a fact that the
// second chat asks for, so that its answer shows whose fact the model saw. A small model seldom
// answers with the fact by itself: decisive groups give the start of the answer, the words before
// the fact as they stand in the prompt, behind which it goes on with the fact it sees. Same seed,
// same pairs. Texts: calibrate_text.cc, or the user's own prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "cli/workload.h"
#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

enum class PairKind : uint8_t {
  kClock,     // another time and session
  kName,      // another customer, or another remark on them
  kPassage,   // a passage was put in, taken out or replaced
  kMany,      // nine values or more, all over the text
  kCode,      // decides: the security code that is asked for
  kState,     // decides: the state of the order
  kNegation,  // decides: is, or is not, entitled to a refund
  kField,     // decides: a value in one of the rules
  kOwnHead,   // the user's prompt behind another clock
  kOwnNext,   // two neighbouring prompts of the user's
  kCount,
};
const char* PairKindName(PairKind kind);
inline bool Decides(PairKind kind) { return kind >= PairKind::kCode && kind <= PairKind::kField; }

enum class EditPlace : uint8_t { kEarly, kMiddle, kLate, kCount };
const char* EditPlaceName(EditPlace place);

// Texts of which any shows that the answer holds the fact.
struct Fact {
  std::vector<std::string> signs;
};

struct CalibrationPair {
  PairKind kind = PairKind::kClock;
  EditPlace place = EditPlace::kEarly;
  std::vector<model::ChatMessage> messages;
  Fact fact, donor_fact;  // when the edit decides
  std::string start;      // of the answer, given to the model; empty: it begins by itself

  // `answer` as it is looked at: behind the last word of what it was given to start with, for a
  // fact may lie across ("is" "not entitled").
  std::string Said(const std::string& answer) const;
};

// A donor and the chats that are derived from it.
struct CalibrationGroup {
  std::vector<model::ChatMessage> donor;
  std::vector<CalibrationPair> pairs;
  std::string start;  // of the donor's answer
};

// Does `text` hold the fact, as words of their own?
bool Holds(const std::string& text, const Fact& fact);

class Corpus {
 public:
  // `templates`: as calibrate_text.cc explains. kInvalidArgument names the line.
  static Result<Corpus> Parse(const std::string& templates, uint64_t seed);

  // The next group: domains, lengths and places take turns.
  CalibrationGroup Next();
  // A group of edits of one kind that decide, with the starts of the answers given: kinds, short
  // and long texts take turns. Every second round the donor was asked the same with the same start,
  // so that its last rows hold the old answer; every second pair of a long text has another clock
  // as well.
  CalibrationGroup NextDecisive();
  size_t num_domains() const { return domains_.size(); }
  // All sections and passages, with the first of each slot's values.
  std::vector<std::string> Texts() const;

 private:
  struct Question {
    std::string slot, text;  // slot empty: nothing decides
  };
  struct Domain {
    std::string name, introduction;
    std::vector<std::string> sections;
    std::vector<Question> deciding, others;
  };
  class Draft;

  std::vector<Domain> domains_;
  std::vector<std::string> passages_;
  base::Random random_{0};
  size_t num_groups_ = 0, num_decisive_ = 0;
};

// Groups of a user's first turns: each prompt is the donor of itself behind another clock, and of
// the next one.
std::vector<CalibrationGroup> GroupsOf(const Workload& prompts, uint64_t seed);

const char* CalibrationTemplates();

}  // namespace kvlink::cli
