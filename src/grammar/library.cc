#include "grammar/library.h"

#include <algorithm>
#include <utility>

#include "grammar/gbnf.h"

namespace kvlink::grammar {

Matcher::Matcher(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {
  const base::MutexLock lock(grammar_->mutex);
  state_ = grammar_->automaton.start();
}

bool Matcher::Allows(TokenId token) const {
  Matcher next = *this;
  return next.Accept(token);
}

void Matcher::FillMask(TokenMask* mask) const {
  const base::MutexLock lock(grammar_->mutex);
  *mask = grammar_->automaton.Mask(state_, *grammar_->trie);
}

bool Matcher::accepting() const {
  const base::MutexLock lock(grammar_->mutex);
  return grammar_->automaton.accepting(state_);
}

bool Matcher::Accept(TokenId token) {
  if (token < 0 || static_cast<size_t>(token) >= grammar_->trie->vocab_size()) return false;
  const std::string& piece = grammar_->trie->piece(token);
  return !piece.empty() && AcceptText(piece);
}

bool Matcher::AcceptText(std::string_view text) {
  const base::MutexLock lock(grammar_->mutex);
  const StateId next = grammar_->automaton.Next(state_, text);
  if (next == kDead) return false;
  state_ = next;
  return true;
}

Status Matcher::status() const {
  const base::MutexLock lock(grammar_->mutex);
  return grammar_->automaton.status();
}

Library::Library(Pieces pieces, const Limits& limits)
    : pieces_(std::move(pieces)), limits_(limits) {}

std::shared_ptr<const TokenTrie> Library::Trie() {
  const base::MutexLock lock(mutex_);
  if (trie_ == nullptr) trie_ = std::make_shared<const TokenTrie>(pieces_());
  return trie_;
}

Result<std::shared_ptr<Grammar>> Library::Compile(const std::string& text) {
  const auto refused = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "grammar: " + what);
  };
  Result<Rules> rules = ParseGbnf(text);
  if (!rules.ok()) return refused(rules.status().message());
  Result<Program> program = Program::Create(*rules);
  if (!program.ok()) return refused(program.status().message());
  auto grammar = std::make_shared<Grammar>(*std::move(program), Trie(), limits_.automaton);
  // The first mask shows here, and not on the engine's thread, whether the grammar explodes.
  const base::MutexLock lock(grammar->mutex);
  Automaton& automaton = grammar->automaton;
  const TokenMask& mask = automaton.Mask(automaton.start(), *grammar->trie);
  if (!automaton.status().ok()) return automaton.status();
  const bool begins = automaton.accepting(automaton.start()) ||
                      std::any_of(mask.begin(), mask.end(), [](uint64_t w) { return w != 0; });
  if (!begins) return refused("no token of this vocabulary can begin it");
  return grammar;
}

Result<std::shared_ptr<Grammar>> Library::Get(const std::string& text) {
  {
    const base::MutexLock lock(mutex_);
    const auto found = known_.find(text);
    if (found != known_.end()) {
      std::shared_ptr<Grammar> grammar = found->second->second;
      const base::MutexLock grammar_lock(grammar->mutex);
      if (!grammar->automaton.half_used()) {
        order_.splice(order_.begin(), order_, found->second);
        return grammar;
      }
      order_.erase(found->second);
      known_.erase(found);
    }
  }
  Result<std::shared_ptr<Grammar>> compiled = Compile(text);
  if (!compiled.ok()) return compiled;
  const base::MutexLock lock(mutex_);
  const auto found = known_.find(text);  // somebody may have been faster
  if (found != known_.end()) return found->second->second;
  order_.emplace_front(text, *compiled);
  known_[text] = order_.begin();
  size_t bytes = 0, kept = 0;
  for (auto at = order_.begin(); at != order_.end();) {
    {
      const base::MutexLock grammar_lock(at->second->mutex);
      bytes += at->second->automaton.bytes() + 2 * at->first.size();
    }
    ++kept;
    if (kept == 1 || (kept <= limits_.grammars && bytes <= limits_.bytes)) {
      ++at;
      continue;
    }
    known_.erase(at->first);
    at = order_.erase(at);
  }
  return compiled;
}

}  // namespace kvlink::grammar
