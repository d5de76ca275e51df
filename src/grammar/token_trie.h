// TokenTrie: the pieces of a vocabulary as a trie over bytes, laid out for one fast walk.
//
//   nodes in preorder:   ""  a  ab  abc  b          depth:  0  1  2  3  1
//   skip[i]: the first node behind i's subtree, where a walk goes on when byte i is refused
//
// Tokens without text (control tokens) and ends of generation are not in it. Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink::grammar {

class TokenTrie {
 public:
  // pieces [vocabulary]: the bytes of each token, empty where it may not appear.
  explicit TokenTrie(std::vector<std::string> pieces);

  size_t size() const { return byte_.size(); }  // nodes, the root included
  uint8_t byte(size_t node) const { return byte_[node]; }
  uint16_t depth(size_t node) const { return depth_[node]; }
  uint32_t skip(size_t node) const { return skip_[node]; }
  // Tokens whose piece ends at this node.
  std::span<const TokenId> tokens(size_t node) const {
    return std::span(token_).subspan(first_token_[node],
                                     first_token_[node + 1] - first_token_[node]);
  }
  size_t max_depth() const { return max_depth_; }

  size_t vocab_size() const { return pieces_.size(); }
  const std::string& piece(TokenId token) const { return pieces_[static_cast<size_t>(token)]; }

 private:
  std::vector<std::string> pieces_;
  std::vector<uint8_t> byte_;
  std::vector<uint16_t> depth_;
  std::vector<uint32_t> skip_;
  std::vector<uint32_t> first_token_;  // [nodes + 1]
  std::vector<TokenId> token_;
  size_t max_depth_ = 0;
};

}  // namespace kvlink::grammar
