#include "grammar/program.h"

#include <algorithm>
#include <utility>

namespace kvlink::grammar {
namespace {

// Repeating nothing many times makes no nodes but takes time.
constexpr size_t kMaxSteps = 2000000;

class Builder {
 public:
  explicit Builder(const Rules& rules) : rules_(rules) {}

  Result<Program> Build() {
    program_.nodes.emplace_back();  // kReturnNode
    for (size_t i = 0; i < rules_.names.size(); ++i) {
      Add({Node::Kind::kSplit, 0, 0, 0, 0});  // entry of rule i, filled in below
    }
    for (uint32_t rule = 0; rule < rules_.names.size() && !too_large_; ++rule) {
      const uint32_t body = Emit(rules_.definitions[rule], Program::kReturnNode);
      program_.nodes[Entry(rule)].next = program_.nodes[Entry(rule)].other = body;
    }
    if (too_large_) {
      return Status(StatusCode::kInvalidArgument, "the grammar is too large: more than " +
                                                      std::to_string(Program::kMaxNodes) +
                                                      " parts once repetitions are written out");
    }
    program_.start = Entry(rules_.root);
    return std::move(program_);
  }

  static uint32_t Entry(uint32_t rule) { return rule + 1; }

 private:
  uint32_t Add(Node node) {
    if (program_.nodes.size() >= Program::kMaxNodes) {
      too_large_ = true;
      return Program::kReturnNode;
    }
    program_.nodes.push_back(node);
    return static_cast<uint32_t>(program_.nodes.size() - 1);
  }

  // The first node of `expression` that goes on at `next`.
  uint32_t Emit(const Expression& expression, uint32_t next) {
    if (++steps_ > kMaxSteps) too_large_ = true;
    if (too_large_) return Program::kReturnNode;
    switch (expression.kind) {
      case Expression::Kind::kCharacter:
        return EmitCharacter(expression, next);
      case Expression::Kind::kRule:
        return Add({Node::Kind::kCall, 0, 0, next, Entry(expression.rule)});
      case Expression::Kind::kSequence:
        for (size_t i = expression.children.size(); i-- > 0;) {
          next = Emit(expression.children[i], next);
        }
        return next;
      case Expression::Kind::kChoice: {
        uint32_t first = Emit(expression.children.back(), next);
        for (size_t i = expression.children.size() - 1; i-- > 0;) {
          const uint32_t way = Emit(expression.children[i], next);
          first = Add({Node::Kind::kSplit, 0, 0, way, first});
        }
        return first;
      }
      case Expression::Kind::kRepeat:
        return EmitRepeat(expression, next);
    }
    return next;
  }

  uint32_t EmitCharacter(const Expression& expression, uint32_t next) {
    bool any = false;
    uint32_t first = 0;
    for (const CodeRange& range : expression.ranges) {
      for (const ByteSequence& sequence : Utf8Sequences(range)) {
        uint32_t way = next;
        for (size_t i = sequence.size(); i-- > 0;) {
          way = Add({Node::Kind::kByte, sequence[i].first, sequence[i].last, way, 0});
        }
        first = any ? Add({Node::Kind::kSplit, 0, 0, way, first}) : way;
        any = true;
      }
    }
    // No character at all ([], surrogates): a byte that cannot be.
    return any ? first : Add({Node::Kind::kByte, 1, 0, next, 0});
  }

  //   x{2,}:   x x L      L: split(x L, next)
  //   x{1,3}:  x (x (x)?)?
  uint32_t EmitRepeat(const Expression& expression, uint32_t next) {
    const Expression& child = expression.children[0];
    uint32_t first = next;
    if (expression.most == kUnbounded) {
      const uint32_t loop = Add({Node::Kind::kSplit, 0, 0, next, next});
      const uint32_t body = Emit(child, loop);
      if (!too_large_) program_.nodes[loop].next = body;
      first = loop;
    } else {
      for (uint32_t i = expression.least; i < expression.most && !too_large_; ++i) {
        first = Add({Node::Kind::kSplit, 0, 0, Emit(child, first), next});
      }
    }
    for (uint32_t i = 0; i < expression.least && !too_large_; ++i) first = Emit(child, first);
    return first;
  }

  const Rules& rules_;
  Program program_;
  size_t steps_ = 0;
  bool too_large_ = false;
};

// Which rules can a rule call before it has taken a byte? Nodes are followed once each; a call is
// passed over when its rule turns out to match the empty text. O(nodes).
class LeftCalls {
 public:
  LeftCalls(const Program& program, size_t num_rules)
      : program_(program),
        calls_(num_rules),
        waiting_(num_rules),
        empty_(num_rules),
        reached_(program.nodes.size()) {
    for (uint32_t rule = 0; rule < num_rules; ++rule) {
      work_.emplace_back(Builder::Entry(rule), rule);
      Run();
    }
  }

  // A rule that calls itself, directly or through others; none: num_rules.
  size_t FindCycle() const {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> state(calls_.size(), kNew);
    for (size_t root = 0; root < calls_.size(); ++root) {
      std::vector<std::pair<uint32_t, size_t>> path;  // rule, next of its calls
      if (state[root] == kNew) path.emplace_back(static_cast<uint32_t>(root), 0);
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        state[rule] = kOpen;
        if (next == calls_[rule].size()) {
          state[rule] = kDone;
          path.pop_back();
          continue;
        }
        const uint32_t callee = calls_[rule][next++];
        if (state[callee] == kOpen) return callee;
        if (state[callee] == kNew) path.emplace_back(callee, 0);
      }
    }
    return calls_.size();
  }

 private:
  using Place = std::pair<uint32_t, uint32_t>;  // node, the rule that it belongs to

  void Run() {
    while (!work_.empty()) {
      const auto [node_id, rule] = work_.back();
      work_.pop_back();
      if (node_id == Program::kReturnNode) {
        if (empty_[rule]) continue;
        empty_[rule] = true;
        for (const Place& call : waiting_[rule])
          work_.emplace_back(program_.nodes[call.first].next, call.second);
        continue;
      }
      if (reached_[node_id]) continue;
      reached_[node_id] = true;
      const Node& node = program_.nodes[node_id];
      if (node.kind == Node::Kind::kSplit) {
        work_.emplace_back(node.next, rule);
        work_.emplace_back(node.other, rule);
      } else if (node.kind == Node::Kind::kCall) {
        const uint32_t callee = node.other - 1;
        calls_[rule].push_back(callee);
        if (empty_[callee]) {
          work_.emplace_back(node.next, rule);
        } else {
          waiting_[callee].emplace_back(node_id, rule);
        }
      }
    }
  }

  const Program& program_;
  std::vector<std::vector<uint32_t>> calls_;  // [rule]
  std::vector<std::vector<Place>> waiting_;   // [rule]: calls of it that go on if it can be empty
  std::vector<bool> empty_;                   // [rule]: matches the empty text
  std::vector<bool> reached_;                 // [node]
  std::vector<Place> work_;
};

}  // namespace

Result<Program> Program::Create(const Rules& rules) {
  Result<Program> program = Builder(rules).Build();
  if (!program.ok()) return program;
  const size_t rule = LeftCalls(*program, rules.names.size()).FindCycle();
  if (rule < rules.names.size()) {
    return Status(StatusCode::kInvalidArgument,
                  "the rule \"" + rules.names[rule].substr(0, 80) +
                      "\" can come to itself again without any text (left recursion), which is not "
                      "supported");
  }
  return program;
}

}  // namespace kvlink::grammar
