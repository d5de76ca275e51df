#include "grammar/gbnf.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace kvlink::grammar {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '-' || c == '_';
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Rules> Parse() {
    if (text_.size() > kMaxTextBytes) {
      return Status(StatusCode::kInvalidArgument,
                    "the grammar has " + std::to_string(text_.size()) + " bytes, at most " +
                        std::to_string(kMaxTextBytes) + " are taken");
    }
    SkipSpace(/*newlines=*/true);
    while (!failed() && at_ < text_.size()) ParseRule();
    if (!failed()) CheckNames();
    if (failed()) return Status(StatusCode::kInvalidArgument, error_);
    return std::move(rules_);
  }

 private:
  bool failed() const { return !error_.empty(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool AtEnd() const { return at_ >= text_.size(); }

  void Fail(const std::string& what) {
    if (failed()) return;
    const std::string_view before = text_.substr(0, at_);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    error_ = std::to_string(line) + ":" + std::to_string(at_ - line_start + 1) + ": " + what;
  }

  void SkipSpace(bool newlines) {
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '#') {
        while (!AtEnd() && Peek() != '\n' && Peek() != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  uint32_t RuleId(std::string_view name) {
    const auto found = ids_.find(std::string(name));
    if (found != ids_.end()) return found->second;
    const auto id = static_cast<uint32_t>(rules_.names.size());
    if (id >= kMaxRules) Fail("more than " + std::to_string(kMaxRules) + " rules");
    ids_.emplace(name, id);
    rules_.names.emplace_back(name);
    rules_.definitions.emplace_back();
    defined_.push_back(false);
    return id;
  }

  std::string_view ParseName() {
    const size_t begin = at_;
    while (IsNameCharacter(Peek())) ++at_;
    if (at_ == begin) Fail(std::string("a rule's name is expected here") + Found());
    return text_.substr(begin, at_ - begin);
  }

  std::string Found() const {
    if (AtEnd()) return ", found the end";
    return std::string(", found '") + (Peek() >= ' ' && Peek() < '\x7f' ? Peek() : '?') + "'";
  }

  void ParseRule() {
    const std::string_view name = ParseName();
    if (failed()) return;
    const uint32_t id = RuleId(name);
    SkipSpace(false);
    if (text_.substr(at_, 3) != "::=") return Fail("::= is expected here" + Found());
    at_ += 3;
    SkipSpace(true);
    Expression body = ParseChoice(0);
    if (failed()) return;
    if (!AtEnd() && Peek() != '\n' && Peek() != '\r')
      return Fail("the end of the line is expected here" + Found());
    rules_.definitions[id] = std::move(body);
    defined_[id] = true;
    SkipSpace(true);
  }

  // Counts towards the limit of the whole grammar.
  Expression Make(Expression::Kind kind) {
    if (++elements_ > kMaxElements) Fail("more than " + std::to_string(kMaxElements) + " elements");
    Expression expression;
    expression.kind = kind;
    return expression;
  }

  Expression ParseChoice(int depth) {
    Expression choice = Make(Expression::Kind::kChoice);
    if (depth > kMaxNesting) {
      Fail("groups are nested more than " + std::to_string(kMaxNesting) + " deep");
      return choice;
    }
    choice.children.push_back(ParseSequence(depth));
    while (!failed() && Peek() == '|') {
      ++at_;
      SkipSpace(true);
      choice.children.push_back(ParseSequence(depth));
    }
    return choice;
  }

  Expression ParseSequence(int depth) {
    Expression sequence = Make(Expression::Kind::kSequence);
    while (!failed() && !AtEnd()) {
      const char c = Peek();
      if (c == '"') {
        sequence.children.push_back(ParseLiteral());
      } else if (c == '[') {
        sequence.children.push_back(ParseClass());
      } else if (c == '.') {
        ++at_;
        sequence.children.push_back(Make(Expression::Kind::kCharacter));
        sequence.children.back().ranges = Complement({});
      } else if (c == '(') {
        ++at_;
        SkipSpace(true);
        sequence.children.push_back(ParseChoice(depth + 1));
        if (!failed() && Peek() != ')') Fail("')' is expected here" + Found());
        ++at_;
      } else if (IsNameCharacter(c)) {
        const uint32_t id = RuleId(ParseName());
        sequence.children.push_back(Make(Expression::Kind::kRule));
        sequence.children.back().rule = id;
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        ParseRepetition(&sequence);
      } else if (c == '<' || c == '!') {
        Fail("references to tokens (<...>) are not supported; write the token's text as a literal");
      } else {
        return sequence;
      }
      SkipSpace(/*newlines=*/depth > 0);
    }
    return sequence;
  }

  void ParseRepetition(Expression* sequence) {
    if (sequence->children.empty())
      return Fail(std::string("nothing to repeat before '") + Peek() + "'");
    // Without end they would nest without end.
    if (sequence->children.back().kind == Expression::Kind::kRepeat)
      return Fail("two repetitions in a row; put the first in parentheses");
    uint32_t least = 0, most = kUnbounded;
    const char c = text_[at_++];
    if (c == '+') least = 1;
    if (c == '?') most = 1;
    if (c == '{') {
      SkipSpace(true);
      least = ParseCount();
      most = least;
      SkipSpace(true);
      if (Peek() == ',') {
        ++at_;
        SkipSpace(true);
        most = IsDigit(Peek()) ? ParseCount() : kUnbounded;
        SkipSpace(true);
      }
      if (!failed() && Peek() != '}') Fail("'}' is expected here" + Found());
      ++at_;
      if (most < least) Fail("a repetition's upper bound is below its lower bound");
    }
    Expression repeat = Make(Expression::Kind::kRepeat);
    repeat.least = least;
    repeat.most = most;
    repeat.children.push_back(std::move(sequence->children.back()));
    sequence->children.back() = std::move(repeat);
  }

  uint32_t ParseCount() {
    uint32_t count = 0;
    if (!IsDigit(Peek())) Fail("a number is expected here" + Found());
    while (!failed() && IsDigit(Peek())) {
      count = count * 10 + static_cast<uint32_t>(Peek() - '0');
      ++at_;
      if (count > kMaxRepetitions)
        Fail("at most " + std::to_string(kMaxRepetitions) + " repetitions are taken");
    }
    return count;
  }

  Expression ParseLiteral() {
    ++at_;
    Expression literal = Make(Expression::Kind::kSequence);
    while (!failed() && Peek() != '"') {
      if (AtEnd()) {
        Fail("a literal has no end");
        break;
      }
      const uint32_t code = ParseCharacter();
      literal.children.push_back(Make(Expression::Kind::kCharacter));
      literal.children.back().ranges = {{code, code}};
    }
    ++at_;
    return literal;
  }

  Expression ParseClass() {
    ++at_;
    Expression result = Make(Expression::Kind::kCharacter);
    const bool negated = Peek() == '^';
    if (negated) ++at_;
    std::vector<CodeRange> ranges;
    while (!failed() && Peek() != ']') {
      if (AtEnd()) {
        Fail("a character class has no end");
        break;
      }
      CodeRange range;
      range.first = range.last = ParseCharacter();
      if (Peek() == '-' && Peek(1) != ']') {
        ++at_;
        range.last = ParseCharacter();
        if (range.last < range.first) Fail("a range in a character class runs backwards");
      }
      ranges.push_back(range);
      if (++elements_ > kMaxElements)
        Fail("more than " + std::to_string(kMaxElements) + " elements");
    }
    ++at_;
    result.ranges = negated ? Complement(ranges) : Normalized(std::move(ranges));
    return result;
  }

  uint32_t ParseCharacter() {
    if (Peek() != '\\') return ParseUtf8();
    const char escape = Peek(1);
    at_ += 2;
    switch (escape) {
      case 'x':
        return ParseHex(2);
      case 'u':
        return ParseHex(4);
      case 'U':
        return ParseHex(8);
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
        return static_cast<unsigned char>(escape);
      default:
        at_ -= 2;
        Fail("an unknown escape");
        return 0;
    }
  }

  uint32_t ParseHex(int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const int digit = HexDigit(Peek());
      if (digit < 0) {
        Fail(std::to_string(digits) + " hexadecimal digits are expected here" + Found());
        return 0;
      }
      code = code * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    if (code > kLastCodePoint) Fail("a code point above U+10FFFF");
    return code;
  }

  uint32_t ParseUtf8() {
    const auto lead = static_cast<unsigned char>(Peek());
    const int length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    bool good = length > 0 && lead < 0xF5;
    for (int i = 1; good && i < length; ++i) {
      const auto byte = static_cast<unsigned char>(Peek(static_cast<size_t>(i)));
      good = (byte & 0xC0) == 0x80;
      code = code << 6 | (byte & 0x3Fu);
    }
    if (!good) {
      Fail("not valid UTF-8");
      return 0;
    }
    at_ += static_cast<size_t>(length);
    return code;
  }

  void CheckNames() {
    const auto root = ids_.find("root");
    for (size_t i = 0; i < defined_.size(); ++i) {
      if (!defined_[i])
        return Fail("the rule \"" + rules_.names[i].substr(0, 80) + "\" is not defined");
    }
    if (root == ids_.end()) return Fail("there is no rule \"root\"");
    rules_.root = root->second;
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t elements_ = 0;
  Rules rules_;
  std::vector<bool> defined_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::string error_;
};

}  // namespace

Result<Rules> ParseGbnf(std::string_view text) { return Parser(text).Parse(); }

}  // namespace kvlink::grammar
