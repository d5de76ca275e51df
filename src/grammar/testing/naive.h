// Naive: what a grammar accepts, found by following its expressions as they stand. No sharing, no
// determinism, no bytes: the reference for the automaton. For small grammars and texts only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "grammar/gbnf.h"

namespace kvlink::grammar::testing {

class Naive {
 public:
  explicit Naive(const Rules& rules) : rules_(rules) {}

  // Whether the whole text is a sentence: every expression maps a set of positions to the positions
  // at which it can end.
  bool Accepts(const std::u32string& text) const {
    return Ends(rules_.definitions[rules_.root], text, {0}).contains(text.size());
  }

  // Whether a sentence may begin with this text, as far as can be told without looking ahead: some
  // reading of it is not stuck. Continuations are written out, one vector for each reading.
  bool CanBegin(const std::u32string& text) const {
    Readings now;
    Expand({&rules_.definitions[rules_.root]}, &now);
    for (const char32_t c : text) {
      Readings next;
      for (const Reading& reading : now) {
        if (reading.empty() || !Contains(*reading.back(), c)) continue;
        Expand(Reading(reading.begin(), reading.end() - 1), &next);
      }
      now = std::move(next);
    }
    return !now.empty();
  }

 private:
  using Positions = std::set<size_t>;
  using Reading = std::vector<const Expression*>;  // what is to come, the next one last
  using Readings = std::set<Reading>;

  static bool Contains(const Expression& character, char32_t c) {
    for (const CodeRange& range : character.ranges) {
      if (c >= range.first && c <= range.last) return true;
    }
    return false;
  }

  Positions Ends(const Expression& e, const std::u32string& text, const Positions& starts) const {
    Positions ends;
    switch (e.kind) {
      case Expression::Kind::kCharacter:
        for (const size_t at : starts) {
          if (at < text.size() && Contains(e, text[at])) ends.insert(at + 1);
        }
        return ends;
      case Expression::Kind::kRule:
        return starts.empty() ? ends : Ends(rules_.definitions[e.rule], text, starts);
      case Expression::Kind::kSequence:
        ends = starts;
        for (const Expression& child : e.children) {
          if (!ends.empty()) ends = Ends(child, text, ends);
        }
        return ends;
      case Expression::Kind::kChoice:
        for (const Expression& child : e.children) ends.merge(Ends(child, text, starts));
        return ends;
      case Expression::Kind::kRepeat: {
        Positions now = starts;
        if (e.least == 0) ends = starts;
        // A round that brings no new position, beyond the least, brings none ever.
        for (uint32_t round = 1; round <= e.most && !now.empty(); ++round) {
          now = Ends(e.children[0], text, now);
          if (round < e.least) continue;
          const size_t before = ends.size();
          ends.insert(now.begin(), now.end());
          if (ends.size() == before && round > e.least + text.size()) break;
        }
        return ends;
      }
    }
    return ends;
  }

  // Follows what takes no character, until each reading begins with a character or is at its end.
  void Expand(Reading first, Readings* out) const {
    std::vector<Reading> todo = {std::move(first)};
    Readings seen;
    while (!todo.empty()) {
      Reading reading = std::move(todo.back());
      todo.pop_back();
      if (!seen.insert(reading).second) continue;
      if (reading.empty() || reading.back()->kind == Expression::Kind::kCharacter) {
        out->insert(reading);
        continue;
      }
      const Expression& e = *reading.back();
      reading.pop_back();
      switch (e.kind) {
        case Expression::Kind::kRule:
          reading.push_back(&rules_.definitions[e.rule]);
          todo.push_back(reading);
          break;
        case Expression::Kind::kSequence:
          for (size_t i = e.children.size(); i-- > 0;) reading.push_back(&e.children[i]);
          todo.push_back(reading);
          break;
        case Expression::Kind::kChoice:
          for (const Expression& child : e.children) {
            Reading one = reading;
            one.push_back(&child);
            todo.push_back(std::move(one));
          }
          break;
        case Expression::Kind::kRepeat:
          // Requires bounds of at most 3, or 0 and none: then the rest is written out.
          if (e.most == kUnbounded) {
            for (uint32_t i = 0; i < e.least; ++i) reading.push_back(&e.children[0]);
            if (e.least > 0) {
              // x{m,} is x ... x x*; the loop itself is e, so only m = 0 stays as it is.
              Reading loop = reading;
              loop.insert(loop.end() - e.least, Star(e));
              todo.push_back(std::move(loop));
            } else {
              todo.push_back(reading);
              reading.push_back(&e);
              reading.push_back(&e.children[0]);
              todo.push_back(reading);
            }
          } else {
            for (uint32_t count = e.least; count <= e.most; ++count) {
              Reading some = reading;
              for (uint32_t i = 0; i < count; ++i) some.push_back(&e.children[0]);
              todo.push_back(std::move(some));
            }
          }
          break;
        case Expression::Kind::kCharacter:
          break;
      }
    }
  }

  // The same expression with least = 0.
  const Expression* Star(const Expression& e) const {
    auto& star = stars_[&e];
    if (star == nullptr) {
      star = std::make_unique<Expression>(e);
      star->least = 0;
    }
    return star.get();
  }

  const Rules& rules_;
  mutable std::map<const Expression*, std::unique_ptr<Expression>> stars_;
};

}  // namespace kvlink::grammar::testing
