// Automaton: a grammar's program run over bytes, made deterministic as far as it is used.
//
//   frame   where a call goes on, and the frame below: a stack that shares its lower part
//   thread  (kByte node, frame): one way in which the text so far can be read
//   state   the sorted set of threads after a text, and whether the text may end here
//
//   text  {"a        state 17 = { (string char, f9), (closing quote, f9) }   --"--> state 18
//
// Frames and states are interned, so that states come back: inside a string every character leads
// to the same state. Transitions and the mask of allowed tokens are computed once a state and kept:
// a mask is one walk of the vocabulary's trie, O(nodes of the trie) table look-ups.
//
// Grammars can be ambiguous without bound and are not trusted: threads a state, states, frames and
// the total work have limits. Beyond one, every further question is answered with status() not ok.
// Not thread-safe (see Library).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar/program.h"
#include "grammar/token_trie.h"
#include "kvlink/status.h"

namespace kvlink::grammar {

using StateId = uint32_t;
inline constexpr StateId kDead = 0;  // no text goes on from here

// One bit a token.
using TokenMask = std::vector<uint64_t>;
inline bool IsAllowed(const TokenMask& mask, TokenId token) {
  const auto index = static_cast<size_t>(token);
  return index / 64 < mask.size() && (mask[index / 64] >> (index % 64) & 1) != 0;
}

struct AutomatonLimits {
  size_t threads_per_state = 4096;
  size_t states = 32768;
  size_t frames = 262144;
  size_t threads = size_t{1} << 20;      // of all states
  uint64_t work = 8000000;               // nodes followed, in all: under a second
  size_t mask_bytes = size_t{16} << 20;  // masks that are kept
};

class Automaton {
 public:
  using Limits = AutomatonLimits;

  explicit Automaton(Program program, const Limits& limits = {});

  StateId start() const { return start_; }
  // kDead: the text cannot go on with this byte (or a limit was reached: see status()).
  StateId Next(StateId state, uint8_t byte);
  StateId Next(StateId state, std::string_view bytes);
  bool accepting(StateId state) const { return states_[state].accepting; }

  // The tokens of the trie that can follow; valid until the next call. Always the same trie.
  const TokenMask& Mask(StateId state, const TokenTrie& trie);

  // kInvalidArgument once a limit was reached.
  const Status& status() const { return status_; }
  bool half_used() const;
  size_t num_states() const { return states_.size(); }
  size_t bytes() const;  // roughly

 private:
  struct Frame {
    uint32_t node = 0, parent = 0;
  };
  using Thread = uint64_t;  // node << 32 | frame
  struct State {
    uint32_t first_thread = 0, num_threads = 0;
    bool accepting = false;
    uint32_t mask = 0;  // index in masks_ + 1; 0: none kept
  };
  static Thread Make(uint32_t node, uint32_t frame) { return uint64_t{node} << 32 | frame; }

  void MakeByteClasses();
  StateId Follow(const std::vector<Thread>& from);
  uint32_t Push(uint32_t node, uint32_t parent);
  StateId Intern(std::vector<Thread> threads, bool accepting);
  StateId Step(StateId state, uint8_t byte);
  void Exceed(const char* what, size_t limit);
  void FillMask(StateId state, const TokenTrie& trie, TokenMask* mask);

  Program program_;
  Limits limits_;
  std::array<uint8_t, 256> class_of_{};  // bytes that no node tells apart
  uint32_t num_classes_ = 0;

  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, uint32_t> frame_ids_;
  std::vector<State> states_;
  std::vector<Thread> threads_;                           // of all states
  std::vector<StateId> next_;                             // [states, classes]
  std::unordered_multimap<uint64_t, StateId> state_ids_;  // by hash of the threads
  std::vector<TokenMask> masks_;
  TokenMask scratch_mask_;
  std::vector<StateId> path_;
  std::vector<Thread> todo_;
  std::unordered_set<Thread> seen_;
  StateId start_ = kDead;
  uint64_t work_ = 0;
  Status status_;
};

}  // namespace kvlink::grammar
