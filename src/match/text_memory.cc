#include "match/text_memory.h"

#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/endian.h"
#include "base/hash.h"

namespace kvlink::match {
namespace {

// Texts are listed by length under their first kHeadBytes; shorter ones under the empty head.
constexpr size_t kHeadBytes = 16;

// What goes before the text in its hash. Length-prefixed, so that no namespace runs into a text.
std::string Prefix(std::string_view ns) {
  std::string prefix;
  base::PutLe(prefix, uint64_t{ns.size()});
  return prefix.append(ns);
}

std::string_view HeadOf(std::string_view text) {
  return text.size() < kHeadBytes ? std::string_view() : text.substr(0, kHeadBytes);
}

}  // namespace

TextMemory::TextMemory(size_t budget_bytes, int hash_bits)
    : budget_bytes_(budget_bytes), hash_mask_(~uint64_t{0} >> (64 - hash_bits)) {
  KVLINK_CHECK(hash_bits >= 1 && hash_bits <= 64) << "hash_bits " << hash_bits;
}

uint64_t TextMemory::HashOf(const std::string& prefix, std::string_view text) const {
  base::StreamHash64 hash;
  hash.Append(prefix);
  hash.Append(text);
  return hash.Value() & hash_mask_;
}

void TextMemory::Remember(std::string_view ns, std::string_view text,
                          std::span<const TokenId> tokens) {
  if (text.empty()) return;
  const std::string prefix = Prefix(ns);
  Entry entry;
  entry.hash = HashOf(prefix, text);
  entry.head = HashOf(prefix, HeadOf(text));
  entry.ns = ns;
  entry.text = text;
  entry.tokens.assign(tokens.begin(), tokens.end());
  const size_t cost = CostOf(entry);
  if (cost > budget_bytes_) return;

  const base::MutexLock lock(mutex_);
  // The same text, or by chance another one of the same hash: either way the newer one stays.
  const auto old = by_hash_.find(entry.hash);
  if (old != by_hash_.end()) Drop(old->second);
  while (used_bytes_ + cost > budget_bytes_) Drop(std::prev(entries_.end()));
  entries_.push_front(std::move(entry));
  const Entry& added = entries_.front();
  by_hash_[added.hash] = entries_.begin();
  ++lengths_[added.head][added.text.size()];
  used_bytes_ += cost;
}

std::optional<std::vector<TokenId>> TextMemory::Recall(std::string_view ns,
                                                       std::string_view text) const {
  const uint64_t hash = HashOf(Prefix(ns), text);
  const base::MutexLock lock(mutex_);
  const auto entry = FindText(hash, ns, text);
  if (entry == entries_.end()) return std::nullopt;
  Touch(entry);
  return entry->tokens;
}

std::optional<Cache::Recalled> TextMemory::RecallPrefix(std::string_view ns,
                                                        std::string_view text) const {
  const std::string prefix = Prefix(ns);
  const base::MutexLock lock(mutex_);
  const auto try_head = [&](std::string_view head) KVLINK_REQUIRES(mutex_) {
    auto longest = entries_.end();
    const auto lengths = lengths_.find(HashOf(prefix, head));
    if (lengths == lengths_.end()) return longest;
    base::StreamHash64 hash;
    hash.Append(prefix);
    size_t hashed = 0;
    for (const auto& [length, count] : lengths->second) {
      if (length > text.size()) break;
      hash.Append(text.substr(hashed, length - hashed));
      hashed = length;
      const auto entry = FindText(hash.Value() & hash_mask_, ns, text.substr(0, length));
      if (entry != entries_.end()) longest = entry;
    }
    return longest;
  };
  auto entry = entries_.end();
  if (text.size() >= kHeadBytes) entry = try_head(text.substr(0, kHeadBytes));
  if (entry == entries_.end()) entry = try_head({});
  if (entry == entries_.end()) return std::nullopt;
  Touch(entry);
  return Cache::Recalled{entry->text.size(), entry->tokens};
}

size_t TextMemory::num_texts() const {
  const base::MutexLock lock(mutex_);
  return entries_.size();
}

size_t TextMemory::used_bytes() const {
  const base::MutexLock lock(mutex_);
  return used_bytes_;
}

// With the nodes of the list and the maps, at their largest: a length and a head of its own.
size_t TextMemory::CostOf(const Entry& entry) {
  constexpr size_t kBookkeeping = sizeof(Entry) + 32 + 48 + 64 + 112;
  return kBookkeeping + entry.ns.size() + entry.text.size() + entry.tokens.size() * sizeof(TokenId);
}

TextMemory::Entries::iterator TextMemory::FindText(uint64_t hash, std::string_view ns,
                                                   std::string_view text) const {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return entries_.end();
  const Entry& entry = *found->second;
  return entry.ns == ns && entry.text == text ? found->second : entries_.end();
}

void TextMemory::Touch(Entries::iterator entry) const {
  entries_.splice(entries_.begin(), entries_, entry);
}

void TextMemory::Drop(Entries::iterator entry) {
  used_bytes_ -= CostOf(*entry);
  by_hash_.erase(entry->hash);
  const auto lengths = lengths_.find(entry->head);
  const auto length = lengths->second.find(entry->text.size());
  if (--length->second == 0) lengths->second.erase(length);
  if (lengths->second.empty()) lengths_.erase(lengths);
  entries_.erase(entry);
}

}  // namespace kvlink::match
