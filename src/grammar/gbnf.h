// Gbnf: reads grammars in the notation of llama.cpp (GBNF).
//
//   root   ::= "[" ws (number ("," ws number)*)? "]"   # comment
//   number ::= "-"? [0-9]{1,8} ws
//   ws     ::= [ \t\n]*
//
// Literals and classes hold Unicode characters, with the escapes \" \\ \[ \] \- \n \r \t \xHH
// \uHHHH \UHHHHHHHH; `.` is any character; x* x+ x? x{m} x{m,} x{m,n}; a later definition of a rule
// takes the place of an earlier one. Token references (<[id]>, <text>) are refused by name.
//
// Bounded for hostile input: text, rules, nesting, elements and counts have limits (below).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/utf8_ranges.h"
#include "kvlink/status.h"

namespace kvlink::grammar {

inline constexpr size_t kMaxTextBytes = 512 << 10;
inline constexpr size_t kMaxRules = 8192;
inline constexpr size_t kMaxElements = 200000;
inline constexpr int kMaxNesting = 64;
inline constexpr uint32_t kMaxRepetitions = 10000;
inline constexpr uint32_t kUnbounded = 0xffffffff;

struct Expression {
  enum class Kind : uint8_t {
    kCharacter,  // one character of `ranges`
    kRule,       // `rule`
    kSequence,   // `children`, in order; none: the empty text
    kChoice,     // one of `children`
    kRepeat,     // children[0], `least` to `most` times
  };
  Kind kind = Kind::kSequence;
  std::vector<CodeRange> ranges;
  uint32_t rule = 0;
  uint32_t least = 1, most = 1;
  std::vector<Expression> children;
};

struct Rules {
  std::vector<std::string> names;       // [rule]
  std::vector<Expression> definitions;  // [rule]
  uint32_t root = 0;
};

// kInvalidArgument: "LINE:COLUMN: what is wrong".
Result<Rules> ParseGbnf(std::string_view text);

}  // namespace kvlink::grammar
