#include "grammar/automaton.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/hash.h"

namespace kvlink::grammar {
namespace {

constexpr StateId kUnknown = 0xffffffff;
constexpr uint32_t kBottom = 0;  // the frame below `root`

uint64_t HashOf(std::span<const uint64_t> threads, bool accepting) {
  const std::string_view bytes(reinterpret_cast<const char*>(threads.data()),
                               threads.size() * sizeof(uint64_t));
  return base::Hash64(bytes) + (accepting ? 1 : 0);
}

}  // namespace

Automaton::Automaton(Program program, const Limits& limits)
    : program_(std::move(program)), limits_(limits) {
  MakeByteClasses();
  frames_.push_back({Program::kReturnNode, kBottom});
  KVLINK_CHECK(Intern({}, false) == kDead);
  start_ = Follow({Make(program_.start, kBottom)});
}

void Automaton::MakeByteClasses() {
  std::array<bool, 257> begins{};
  begins[0] = true;
  for (const Node& node : program_.nodes) {
    if (node.kind != Node::Kind::kByte || node.low > node.high) continue;
    begins[node.low] = true;
    begins[size_t{node.high} + 1] = true;
  }
  uint32_t current = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte] && byte > 0) ++current;
    class_of_[byte] = static_cast<uint8_t>(current);
  }
  num_classes_ = current + 1;
}

void Automaton::Exceed(const char* what, size_t limit) {
  if (!status_.ok()) return;
  status_ = Status(StatusCode::kInvalidArgument,
                   std::string("grammar: too ambiguous or too large: more than ") +
                       std::to_string(limit) + " " + what);
}

uint32_t Automaton::Push(uint32_t node, uint32_t parent) {
  const auto [at, added] =
      frame_ids_.try_emplace(uint64_t{node} << 32 | parent, static_cast<uint32_t>(frames_.size()));
  if (added) {
    if (frames_.size() >= limits_.frames) Exceed("open rules", limits_.frames);
    frames_.push_back({node, parent});
  }
  return at->second;
}

// The state of these places after everything that takes no byte was followed.
StateId Automaton::Follow(const std::vector<Thread>& from) {
  std::vector<Thread> threads;
  bool accepting = false;
  seen_.clear();
  todo_ = from;
  while (!todo_.empty() && status_.ok()) {
    const Thread thread = todo_.back();
    todo_.pop_back();
    if (++work_ > limits_.work) Exceed("steps", limits_.work);
    const auto node_id = static_cast<uint32_t>(thread >> 32);
    const auto frame = static_cast<uint32_t>(thread);
    const Node& node = program_.nodes[node_id];
    if (!seen_.insert(thread).second) continue;
    switch (node.kind) {
      case Node::Kind::kByte:
        threads.push_back(thread);
        if (threads.size() > limits_.threads_per_state)
          Exceed("readings of one text", limits_.threads_per_state);
        break;
      case Node::Kind::kSplit:
        todo_.push_back(Make(node.next, frame));
        if (node.other != node.next) todo_.push_back(Make(node.other, frame));
        break;
      case Node::Kind::kCall: {
        const bool tail = node.next == Program::kReturnNode;
        todo_.push_back(Make(node.other, tail ? frame : Push(node.next, frame)));
        break;
      }
      case Node::Kind::kReturn:
        if (frame == kBottom) {
          accepting = true;
        } else {
          todo_.push_back(Make(frames_[frame].node, frames_[frame].parent));
        }
        break;
    }
  }
  if (!status_.ok()) return kDead;
  std::sort(threads.begin(), threads.end());
  return Intern(std::move(threads), accepting);
}

StateId Automaton::Intern(std::vector<Thread> threads, bool accepting) {
  const uint64_t hash = HashOf(threads, accepting);
  const auto [begin, end] = state_ids_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const State& state = states_[at->second];
    const auto first = threads_.begin() + state.first_thread;
    if (state.accepting == accepting && state.num_threads == threads.size() &&
        std::equal(threads.begin(), threads.end(), first)) {
      return at->second;
    }
  }
  if (states_.size() >= limits_.states) Exceed("states", limits_.states);
  if (threads_.size() + threads.size() > limits_.threads)
    Exceed("readings of all texts", limits_.threads);
  if (!status_.ok()) return kDead;
  const auto id = static_cast<StateId>(states_.size());
  State state;
  state.first_thread = static_cast<uint32_t>(threads_.size());
  state.num_threads = static_cast<uint32_t>(threads.size());
  state.accepting = accepting;
  states_.push_back(state);
  threads_.insert(threads_.end(), threads.begin(), threads.end());
  next_.insert(next_.end(), num_classes_, threads.empty() ? kDead : kUnknown);
  state_ids_.emplace(hash, id);
  return id;
}

StateId Automaton::Step(StateId state, uint8_t byte) {
  std::vector<Thread> moved;
  const State from = states_[state];
  work_ += from.num_threads;
  for (uint32_t i = 0; i < from.num_threads; ++i) {
    const Thread thread = threads_[from.first_thread + i];
    const Node& node = program_.nodes[thread >> 32];
    if (byte < node.low || byte > node.high) continue;
    moved.push_back(Make(node.next, static_cast<uint32_t>(thread)));
  }
  const StateId next = moved.empty() ? kDead : Follow(moved);
  if (status_.ok()) next_[size_t{state} * num_classes_ + class_of_[byte]] = next;
  return next;
}

StateId Automaton::Next(StateId state, uint8_t byte) {
  const StateId known = next_[size_t{state} * num_classes_ + class_of_[byte]];
  if (known != kUnknown) return known;
  return status_.ok() ? Step(state, byte) : kDead;
}

StateId Automaton::Next(StateId state, std::string_view bytes) {
  for (const char byte : bytes) {
    state = Next(state, static_cast<uint8_t>(byte));
    if (state == kDead) return kDead;
  }
  return state;
}

void Automaton::FillMask(StateId state, const TokenTrie& trie, TokenMask* mask) {
  mask->assign((trie.vocab_size() + 63) / 64, 0);
  path_.assign(trie.max_depth() + 1, kDead);
  path_[0] = state;
  for (size_t node = 1; node < trie.size();) {
    const size_t depth = trie.depth(node);
    const StateId next = Next(path_[depth - 1], trie.byte(node));
    if (next == kDead) {
      node = trie.skip(node);
      continue;
    }
    path_[depth] = next;
    for (const TokenId token : trie.tokens(node)) {
      (*mask)[static_cast<size_t>(token) / 64] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
    }
    ++node;
  }
}

const TokenMask& Automaton::Mask(StateId state, const TokenTrie& trie) {
  if (states_[state].mask != 0) return masks_[states_[state].mask - 1];
  FillMask(state, trie, &scratch_mask_);
  const size_t each = scratch_mask_.size() * sizeof(uint64_t);
  if (!status_.ok() || (masks_.size() + 1) * each > limits_.mask_bytes) return scratch_mask_;
  masks_.push_back(scratch_mask_);
  states_[state].mask = static_cast<uint32_t>(masks_.size());
  return masks_.back();
}

bool Automaton::half_used() const {
  return !status_.ok() || states_.size() > limits_.states / 2 ||
         frames_.size() > limits_.frames / 2 || threads_.size() > limits_.threads / 2 ||
         work_ > limits_.work / 2;
}

size_t Automaton::bytes() const {
  // A hash table's entry costs about 48 bytes.
  return program_.nodes.size() * sizeof(Node) + frames_.size() * (sizeof(Frame) + 48) +
         states_.size() * (sizeof(State) + 48) + threads_.size() * sizeof(Thread) +
         next_.size() * sizeof(StateId) +
         (masks_.empty() ? 0 : masks_.size() * masks_[0].size() * sizeof(uint64_t));
}

}  // namespace kvlink::grammar
