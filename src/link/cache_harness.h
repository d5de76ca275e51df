// A pretended engine for the tests of link: it "computes" rows by writing a hash of the token
// prefix into every K and V element through the sequence's views, so that every row that a sequence
// reads can be compared with what a cold computation would have written.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"

namespace kvlink::link {

using Tokens = std::vector<TokenId>;

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t state = a * 0x9e3779b97f4a7c15u + b;
  return base::SplitMix64(state);
}

// Calls visit(two bytes, their index in the row) for all of row `position`: K, V and scales of
// every layer and head, in the page or in a difference cell.
template <typename Visit>
void ForRow(const KvShape& shape, const SpanTable& table, uint32_t position, Visit visit) {
  const BlockView& block = table.blocks[position / shape.tokens_per_block];
  const uint32_t row = position % shape.tokens_per_block;
  uint64_t index = 0;
  const auto visit_all = [&](std::byte* at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 2) visit(at + i, index++);
  };
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      const auto at = KvRowOf(shape, block, layer, head, row);
      for (uint32_t group = 0; group < shape.head_dim / shape.k_group(); ++group)
        visit_all(at.k + group * at.k_stride, shape.k_group() * shape.element_bytes());
      visit_all(at.v, shape.vector_bytes());
      visit_all(at.k_scale, shape.scale_bytes());
      visit_all(at.v_scale, shape.scale_bytes());
    }
  }
}

// A sequence with the tokens it holds.
class Branch {
 public:
  Branch(std::unique_ptr<Sequence> sequence, Namespace ns, Tokens tokens, KvShape shape)
      : sequence_(std::move(sequence)),
        ns_(std::move(ns)),
        tokens_(std::move(tokens)),
        shape_(shape) {}

  Sequence& operator*() { return *sequence_; }
  Sequence* operator->() { return sequence_.get(); }
  const Sequence* operator->() const { return sequence_.get(); }
  const Tokens& tokens() const { return tokens_; }  // prompt, and what was generated
  const Namespace& ns() const { return ns_; }
  uint32_t ready() const { return sequence_->num_ready(); }

  // Computes the next `count` rows of the tokens that are known; needs capacity.
  void Compute(uint32_t count) {
    const uint32_t from = ready();
    for (uint32_t p = from; p < from + count; ++p) {
      const uint64_t hash = PrefixHash(p);
      ForRow(shape_, sequence_->table(), p, [&](std::byte* at, uint64_t i) {
        const auto value = static_cast<uint16_t>(Mix(hash, i));
        std::memcpy(at, &value, 2);
      });
    }
    sequence_->Commit(std::span(tokens_).subspan(from, count));
  }
  void ComputePrompt() { Compute(static_cast<uint32_t>(tokens_.size()) - ready()); }
  // One decode step.
  Status Generate(TokenId token) {
    const Status reserved = sequence_->Reserve(ready() + 1);
    if (!reserved.ok()) return reserved;
    tokens_.push_back(token);
    Compute(1);
    return Status::Ok();
  }
  // The number of ready rows that do not hold what a cold run would have written.
  uint32_t WrongRows() const {
    uint32_t wrong = 0;
    for (uint32_t p = 0; p < ready(); ++p) {
      const uint64_t hash = PrefixHash(p);
      bool right = true;
      ForRow(shape_, sequence_->table(), p, [&](std::byte* at, uint64_t i) {
        uint16_t value;
        std::memcpy(&value, at, 2);
        right = right && value == static_cast<uint16_t>(Mix(hash, i));
      });
      wrong += right ? 0 : 1;
    }
    return wrong;
  }
  Result<Branch> Fork(uint32_t num_tokens, uint32_t max_new_tokens) {
    auto forked = sequence_->Fork(num_tokens, max_new_tokens);
    if (!forked.ok()) return forked.status();
    return Branch(std::move(forked).value(), ns_,
                  Tokens(tokens_.begin(), tokens_.begin() + num_tokens), shape_);
  }
  void Release() { sequence_.reset(); }

 private:
  // Of tokens [0, position] in this namespace; K and V of a row depend on all of them.
  uint64_t PrefixHash(uint32_t position) const {
    while (hashes_.size() <= position) {
      const uint64_t before =
          hashes_.empty() ? std::hash<std::string>()(ns_.tenant + "/" + ns_.salt) : hashes_.back();
      hashes_.push_back(Mix(before, static_cast<uint64_t>(tokens_[hashes_.size()])));
    }
    return hashes_[position];
  }

  std::unique_ptr<Sequence> sequence_;
  Namespace ns_;
  Tokens tokens_;
  KvShape shape_;
  mutable std::vector<uint64_t> hashes_;
};

class CacheHarness {
 public:
  static KvShape Shape(uint32_t tokens_per_block, KvType type = KvType::kF16) {
    return {.num_layers = 2,
            .num_kv_heads = 2,
            .head_dim = 4,
            .tokens_per_block = tokens_per_block,
            .type = type};
  }
  CacheHarness(uint32_t tokens_per_block, uint64_t pages, KvType type = KvType::kF16) {
    options.shape = Shape(tokens_per_block, type);
    options.budget_bytes = pages * options.shape.page_bytes();
    options.model_fingerprint = "test";
    options.poison = true;
    options.clock = clock.clock();
  }
  void Create() {
    auto created = CreateCache(options);
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    cache = std::move(created).value();
  }

  LookupRequest RequestOf(const Tokens& tokens, const Namespace& ns = {},
                          uint32_t max_new_tokens = 8) const {
    LookupRequest request;
    request.tokens = tokens;
    request.ns = ns;
    request.max_new_tokens = max_new_tokens;
    return request;
  }
  Plan Lookup(const Tokens& tokens, const Namespace& ns = {}) const {
    return cache->Lookup(RequestOf(tokens, ns));
  }
  Result<Branch> TryBegin(const LookupRequest& request) {
    auto sequence = cache->Begin(request, cache->Lookup(request));
    if (!sequence.ok()) return sequence.status();
    return Branch(std::move(sequence).value(), request.ns,
                  Tokens(request.tokens.begin(), request.tokens.end()), options.shape);
  }
  Branch Begin(const Tokens& tokens, const Namespace& ns = {}, uint32_t max_new_tokens = 8) {
    auto begun = TryBegin(RequestOf(tokens, ns, max_new_tokens));
    EXPECT_TRUE(begun.ok()) << begun.status().ToString();
    return std::move(begun).value();
  }
  // A whole request: the prompt, then the answer. Returns the rows that were there.
  uint32_t Serve(const Tokens& prompt, const Tokens& answer = {}, const Namespace& ns = {}) {
    Branch branch = Begin(prompt, ns, static_cast<uint32_t>(answer.size()));
    const uint32_t ready = branch.ready();
    branch.ComputePrompt();
    for (const TokenId token : answer) {
      const Status generated = branch.Generate(token);
      EXPECT_TRUE(generated.ok()) << generated.ToString();
    }
    EXPECT_EQ(branch.WrongRows(), 0u);
    return ready;
  }
  void ExpectConserved() const {
    const CacheStats s = cache->Stats();
    ASSERT_EQ(s.free_pages + s.cached_pages + s.in_use_pages, s.total_pages);
    ASSERT_LE(s.total_pages * s.page_bytes, s.budget_bytes);
  }

  base::FakeClock clock;
  CacheOptions options;
  std::unique_ptr<Cache> cache;
};

// `count` tokens that depend on `seed` only; different seeds share nothing.
inline Tokens RandomTokens(uint64_t seed, size_t count, TokenId vocabulary = 50000) {
  base::Random random(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tokens FirstOf(const Tokens& tokens, size_t count) {
  return Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace kvlink::link
