// What Python holds of a cache and of its sequences. The library aborts on misuse that only a
// broken engine can commit; Python code is no such engine, so every precondition is checked here
// first.
//
// Invariants
//   1. A cache is closed only when no sequence of it is open.
//   2. A sequence changes (reserve, commit, check, close) only when no view of it is alive: views
//      are NumPy arrays over its pages.
// Threads: the GIL makes one thread at a time use a cache's sequences, as the library asks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert.h"
#include "kvlink/cache.h"

namespace kvlink::python {

class CacheHandle {
 public:
  explicit CacheHandle(std::unique_ptr<Cache> cache) : cache_(std::move(cache)) {}
  Cache& get() const {
    if (cache_ == nullptr) Throw(StatusCode::kFailedPrecondition, "the cache is closed");
    return *cache_;
  }
  // For a call without the GIL: it stays, whoever closes the cache meanwhile.
  std::shared_ptr<Cache> share() const {
    get();
    return cache_;
  }
  void Close() {
    if (open_sequences_ > 0) {
      Throw(StatusCode::kFailedPrecondition,
            "the cache has " + std::to_string(open_sequences_) + " open sequences");
    }
    cache_.reset();
  }
  bool is_closed() const { return cache_ == nullptr; }
  void CountSequence(int change) { open_sequences_ += change; }

 private:
  std::shared_ptr<Cache> cache_;
  int open_sequences_ = 0;
};

// A request that owns its tokens.
struct RequestHandle {
  std::vector<TokenId> tokens;
  LookupRequest request;
};

class SequenceHandle {
 public:
  SequenceHandle(std::shared_ptr<CacheHandle> owner, std::unique_ptr<Sequence> sequence,
                 uint32_t prompt_tokens)
      : owner_(std::move(owner)),
        shape_(owner_->get().shape()),
        sequence_(std::move(sequence)),
        prompt_tokens_(prompt_tokens),
        unchecked_(!sequence_->computed_rows().empty()) {
    owner_->CountSequence(1);
  }
  ~SequenceHandle() { Release(); }
  SequenceHandle(const SequenceHandle&) = delete;
  SequenceHandle& operator=(const SequenceHandle&) = delete;

  Sequence& get() const {
    if (sequence_ == nullptr) Throw(StatusCode::kFailedPrecondition, "the sequence is closed");
    return *sequence_;
  }
  // get(), to change it.
  Sequence& change(const char* what) const;
  void Close();
  bool is_closed() const { return sequence_ == nullptr; }

  void Commit(const std::vector<TokenId>& tokens);
  Verdict CheckFirstToken(std::span<const float> logits);
  std::shared_ptr<SequenceHandle> Fork(uint32_t num_tokens, uint32_t max_new_tokens);

  const KvShape& shape() const { return shape_; }
  void CountView(int change) { views_ += change; }

 private:
  void Release() {
    if (sequence_ != nullptr) owner_->CountSequence(-1);
    sequence_.reset();
  }

  std::shared_ptr<CacheHandle> owner_;
  KvShape shape_;
  std::unique_ptr<Sequence> sequence_;
  uint32_t prompt_tokens_;
  bool unchecked_;  // it borrows rows, and has no verdict yet
  int views_ = 0;
};

}  // namespace kvlink::python
