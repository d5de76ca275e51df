#include "grammar/token_trie.h"

#include <algorithm>
#include <utility>

namespace kvlink::grammar {
namespace {

// Longer pieces are left out: no vocabulary has words of this length, and depths stay small.
constexpr size_t kMaxPieceBytes = 1024;

}  // namespace

TokenTrie::TokenTrie(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
  std::vector<TokenId> order;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].size() > kMaxPieceBytes) pieces_[i].clear();
    if (!pieces_[i].empty()) order.push_back(static_cast<TokenId>(i));
  }
  std::sort(order.begin(), order.end(), [this](TokenId a, TokenId b) {
    return std::pair(std::string_view(piece(a)), a) < std::pair(std::string_view(piece(b)), b);
  });

  // In this order each piece adds the nodes that it does not share with the one before.
  std::vector<uint32_t> path = {0};  // nodes from the root to the last one added
  const auto close = [&](size_t depth) {
    while (path.size() > depth + 1) {
      skip_[path.back()] = static_cast<uint32_t>(byte_.size());
      path.pop_back();
    }
  };
  const auto add = [&](uint8_t byte, size_t depth) {
    byte_.push_back(byte);
    depth_.push_back(static_cast<uint16_t>(depth));
    skip_.push_back(0);
    first_token_.push_back(static_cast<uint32_t>(token_.size()));
  };
  add(0, 0);
  std::string_view last;
  for (const TokenId token : order) {
    const std::string_view text = piece(token);
    const auto [end, unused] = std::mismatch(text.begin(), text.end(), last.begin(), last.end());
    const auto shared = static_cast<size_t>(end - text.begin());
    close(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(byte_.size()));
      add(static_cast<uint8_t>(text[depth]), depth + 1);
    }
    token_.push_back(token);
    max_depth_ = std::max(max_depth_, text.size());
    last = text;
  }
  close(0);
  skip_[0] = static_cast<uint32_t>(byte_.size());
  first_token_.push_back(static_cast<uint32_t>(token_.size()));
}

}  // namespace kvlink::grammar
