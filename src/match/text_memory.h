// TextMemory: which token ids a text was generated as. Tokenising a generated text again often
// gives other ids (a model need not speak in the tokenizer's merges); splicing the remembered ids
// makes the next turn hit the blocks it left.
//
// Entries belong to a namespace string and are seen only under it. A hash finds an entry, the text
// is compared before it is believed. Bounded in bytes: the least recently remembered or recalled
// goes first. Threads: any. Cost: Recall hashes the text once. RecallPrefix hashes it once too, and
// looks up one hash for every length that was remembered under the same first 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "kvlink/cache.h"

namespace kvlink::match {

class TextMemory {
 public:
  // `hash_bits` in [1, 64]: fewer bits only in tests, to force collisions.
  explicit TextMemory(size_t budget_bytes, int hash_bits = 64);

  // Nothing happens when the text is empty or alone over the budget. The same text again replaces
  // its tokens.
  void Remember(std::string_view ns, std::string_view text, std::span<const TokenId> tokens);
  std::optional<std::vector<TokenId>> Recall(std::string_view ns, std::string_view text) const;
  // The longest remembered text that `text` starts with.
  std::optional<Cache::Recalled> RecallPrefix(std::string_view ns, std::string_view text) const;

  size_t num_texts() const;
  size_t used_bytes() const;  // with the bookkeeping; never over the budget

 private:
  struct Entry {
    uint64_t hash = 0;  // of namespace and text
    uint64_t head = 0;  // of namespace and the text's first bytes: where its length is listed
    std::string ns, text;
    std::vector<TokenId> tokens;
  };
  using Entries = std::list<Entry>;  // most recently used first

  static size_t CostOf(const Entry& entry);
  uint64_t HashOf(const std::string& prefix, std::string_view text) const;
  Entries::iterator FindText(uint64_t hash, std::string_view ns, std::string_view text) const
      KVLINK_REQUIRES(mutex_);
  void Touch(Entries::iterator entry) const KVLINK_REQUIRES(mutex_);
  void Drop(Entries::iterator entry) KVLINK_REQUIRES(mutex_);

  const size_t budget_bytes_;
  const uint64_t hash_mask_;
  mutable base::Mutex mutex_;
  mutable Entries entries_ KVLINK_GUARDED_BY(mutex_);  // recalling moves an entry to the front
  std::unordered_map<uint64_t, Entries::iterator> by_hash_ KVLINK_GUARDED_BY(mutex_);
  // Head -> length -> texts.
  std::unordered_map<uint64_t, std::map<size_t, uint32_t>> lengths_ KVLINK_GUARDED_BY(mutex_);
  size_t used_bytes_ KVLINK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvlink::match
