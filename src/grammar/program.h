// Program: a grammar as a graph over bytes, with calls.
//
//   kByte    takes a byte in [low, high], goes on at `next`
//   kSplit   goes on at `next` and at `other`
//   kCall    runs the rule whose first node is `other`, then goes on at `next`
//   kReturn  ends the rule; one node serves all rules
//
// Characters are UTF-8, so a text that the program accepts is valid UTF-8. A call whose `next` is
// kReturn is a tail call: nothing is remembered for it, so that repetition written as recursion
// needs no depth.
//
// Invariant: no rule can come to itself again without taking a byte (left recursion is refused), so
// following nodes without bytes always ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grammar/gbnf.h"
#include "kvlink/status.h"

namespace kvlink::grammar {

struct Node {
  enum class Kind : uint8_t { kByte, kSplit, kCall, kReturn };
  Kind kind = Kind::kReturn;
  uint8_t low = 0, high = 0;
  uint32_t next = 0, other = 0;
};

struct Program {
  static constexpr uint32_t kReturnNode = 0;
  static constexpr size_t kMaxNodes = 200000;

  std::vector<Node> nodes;
  uint32_t start = 0;  // first node of the rule `root`

  // kInvalidArgument: left recursion (names the rule), or more than kMaxNodes once repetitions are
  // written out.
  static Result<Program> Create(const Rules& rules);
};

}  // namespace kvlink::grammar
