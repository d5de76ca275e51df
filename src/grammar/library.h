// Library: the compiled grammars of one vocabulary, kept for the next request; and Matcher, one
// text's place in a grammar.
//
//   Library::Get(text) -> Grammar (shared, learns states and masks as it is used)
//   Matcher(grammar)   -> which tokens may come next; Accept(token); a copy is a fork
//
// A grammar that has used half of its limits is compiled afresh for who comes next, so that a
// request finds at least half of them left. All of this may be used from any thread: a grammar has
// a lock, which one engine thread takes without contention. Cost of a step: one look-up where the
// mask of the state is known, else a walk of the vocabulary's trie.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "grammar/automaton.h"
#include "grammar/token_trie.h"
#include "kvlink/status.h"

namespace kvlink::grammar {

// One grammar and what is known of it.
struct Grammar {
  Grammar(Program program, std::shared_ptr<const TokenTrie> vocabulary,
          const AutomatonLimits& limits)
      : trie(std::move(vocabulary)), automaton(std::move(program), limits) {}
  const std::shared_ptr<const TokenTrie> trie;
  mutable base::Mutex mutex;
  Automaton automaton KVLINK_GUARDED_BY(mutex);
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Grammar> grammar);

  // Whether the text may go on with the token's piece. Tokens without text may not.
  bool Allows(TokenId token) const;
  // The same for all tokens.
  void FillMask(TokenMask* mask) const;
  // Whether the text may end here.
  bool accepting() const;
  // False: the token is not allowed; nothing changed.
  bool Accept(TokenId token);
  bool AcceptText(std::string_view text);
  // kInvalidArgument: the grammar grew beyond its limits; then nothing is allowed any more.
  Status status() const;

 private:
  std::shared_ptr<Grammar> grammar_;
  StateId state_ = kDead;
};

class Library {
 public:
  struct Limits {
    size_t grammars = 64;
    size_t bytes = size_t{128} << 20;  // of grammars kept; those in use are their users'
    AutomatonLimits automaton;
  };

  // pieces: asked for once, at the first grammar; [vocabulary], empty for tokens that may not
  // appear (control tokens, ends of generation).
  using Pieces = std::function<std::vector<std::string>()>;
  explicit Library(Pieces pieces, const Limits& limits);
  explicit Library(Pieces pieces) : Library(std::move(pieces), Limits()) {}

  // kInvalidArgument: "grammar: LINE:COLUMN: what", left recursion, a limit, or a grammar that no
  // token can begin.
  Result<std::shared_ptr<Grammar>> Get(const std::string& text);

 private:
  using Order = std::list<std::pair<std::string, std::shared_ptr<Grammar>>>;

  Result<std::shared_ptr<Grammar>> Compile(const std::string& text);
  std::shared_ptr<const TokenTrie> Trie();

  const Pieces pieces_;
  const Limits limits_;
  base::Mutex mutex_;
  std::shared_ptr<const TokenTrie> trie_ KVLINK_GUARDED_BY(mutex_);
  Order order_ KVLINK_GUARDED_BY(mutex_);  // latest used first
  std::unordered_map<std::string, Order::iterator> known_ KVLINK_GUARDED_BY(mutex_);
};

}  // namespace kvlink::grammar
