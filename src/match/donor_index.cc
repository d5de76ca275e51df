#include "match/donor_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace kvlink::match {
namespace {

constexpr size_t kShortlisted = 4;       // by votes, and again by template
constexpr uint32_t kTemplateVotes = 64;  // template n-grams whose buckets are read
constexpr uint64_t kBandTag = 0xba9d5u;  // keeps bands and anchors apart
constexpr float kBandVote = kBandRows;   // a band stands for so many agreements

uint64_t Mix(uint64_t value) { return base::SplitMix64(value); }

// Keys of one namespace: two namespaces have no key in common, except by chance.
class Keys {
 public:
  explicit Keys(uint32_t space) : salt_(Mix(space)) {}
  uint32_t OfAnchor(const Anchor& anchor) const { return Cut(anchor.hash ^ salt_); }
  uint32_t OfBand(uint64_t hash) const { return Cut(hash ^ salt_ ^ kBandTag); }

 private:
  static uint32_t Cut(uint64_t value) { return static_cast<uint32_t>(Mix(value) >> 32); }
  uint64_t salt_;
};

void SortUnique(std::vector<uint32_t>* keys) {
  std::ranges::sort(*keys);
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  keys->shrink_to_fit();
}

}  // namespace

// What is asked of the index: a prompt's anchors behind the exact hit, and its bands.
class DonorIndex::Query {
 public:
  Query(const Keys& keys, const Sketch& sketch, uint32_t exact_tokens)
      : keys_(keys), sketch_(sketch), exact_tokens_(exact_tokens) {
    Take(sketch.anchors);
  }
  uint32_t window() const { return window_; }

  // The same prompt, sketched with a wider window.
  Query Coarser(uint32_t window) const {
    Query query(*this);
    query.Take(Coarsen(sketch_.anchors, sketch_.num_tokens, window));
    query.window_ = window;
    return query;
  }

  // Every anchor's key once.
  std::vector<uint32_t> AnchorKeys() const {
    std::vector<uint32_t> unique;
    unique.reserve(by_key_.size() + kBands);
    for (const auto& [key, place] : by_key_) {
      if (unique.empty() || unique.back() != key) unique.push_back(key);
    }
    return unique;
  }
  // Where most of the prompt is there already there are none: all who share its start would have
  // them in common.
  void AppendBandKeys(std::vector<uint32_t>* out) const {
    if (2 * uint64_t{exact_tokens_} > sketch_.num_tokens) return;
    for (const uint64_t band : BandHashes(sketch_.signature)) out->push_back(keys_.OfBand(band));
  }

  // Rows that a donor with these keys seems to have: those between neighbouring anchors of which it
  // has both, so that n-grams it has by chance count little.
  uint32_t RowsCoveredBy(std::span<const uint32_t> keys) const {
    std::vector<bool> covered(positions_.size());
    size_t next = 0;
    for (const auto& [key, place] : by_key_) {
      while (next < keys.size() && keys[next] < key) ++next;
      if (next == keys.size()) break;
      covered[place] = keys[next] == key;
    }
    uint32_t rows = 0;
    for (size_t i = 0; i < covered.size(); ++i) {
      if (!covered[i]) continue;
      rows += i > 0 && covered[i - 1] ? positions_[i] - positions_[i - 1] : kGram;
    }
    return rows;
  }

 private:
  void Take(std::span<const Anchor> anchors) {
    positions_.clear();
    by_key_.clear();
    for (const Anchor& anchor : anchors) {
      if (anchor.position < exact_tokens_) continue;
      by_key_.push_back({keys_.OfAnchor(anchor), static_cast<uint32_t>(positions_.size())});
      positions_.push_back(anchor.position);
    }
    std::ranges::sort(by_key_);
  }

  const Keys& keys_;
  const Sketch& sketch_;
  const uint32_t exact_tokens_;
  uint32_t window_ = sketch_.window;
  std::vector<uint32_t> positions_;
  std::vector<std::pair<uint32_t, uint32_t>> by_key_;  // {key, index into positions_}
};

// Votes per donor: open addressing, by donor number.
class DonorIndex::Tally {
 public:
  struct Entry {
    uint32_t donor = kNobody;
    uint32_t template_hits = 0;
    float votes = 0;
  };
  static constexpr uint32_t kNobody = 0xffffffffu;

  Tally() : entries_(256) {}
  Entry& Of(uint32_t donor) {
    if (2 * (size_ + 1) > entries_.size()) Grow();
    Entry& entry = entries_[SlotOf(donor)];
    if (entry.donor == kNobody) {
      entry.donor = donor;
      ++size_;
    }
    return entry;
  }
  std::vector<Entry> All() const {
    std::vector<Entry> all;
    std::ranges::copy_if(entries_, std::back_inserter(all),
                         [](const Entry& entry) { return entry.donor != kNobody; });
    return all;
  }

 private:
  size_t SlotOf(uint32_t donor) const {
    size_t at = (donor * 0x9e3779b1u) & (entries_.size() - 1);
    while (entries_[at].donor != kNobody && entries_[at].donor != donor) {
      at = (at + 1) & (entries_.size() - 1);
    }
    return at;
  }
  void Grow() {
    const std::vector<Entry> all = All();
    entries_.assign(entries_.size() * 2, Entry{});
    for (const Entry& entry : all) entries_[SlotOf(entry.donor)] = entry;
  }
  std::vector<Entry> entries_;  // a power of two, at most half used
  size_t size_ = 0;
};

DonorIndex::DonorIndex(const SimilarOptions& options) : options_(options) {}

bool DonorIndex::Add(DonorId id, const Root& root, const Sketch& sketch) {
  Erase(id);
  if (sketch.num_tokens < options_.min_reused_rows || sketch.anchors.empty()) return false;
  if (free_numbers_.empty()) {
    free_numbers_.push_back(static_cast<uint32_t>(donors_.size()));
    donors_.emplace_back();
  }
  const uint32_t number = free_numbers_.back();
  free_numbers_.pop_back();
  numbers_[id] = number;

  Donor& donor = donors_[number];
  donor = {.id = id,
           .age = ++last_age_,
           .space = EnterSpace(root),
           .num_tokens = sketch.num_tokens,
           .sketched_tokens = sketch.num_tokens,
           .window = sketch.window,
           .keys = {}};
  const Keys keys(donor.space);
  donor.keys.reserve(sketch.anchors.size() + kBands);
  for (const Anchor& anchor : sketch.anchors) donor.keys.push_back(keys.OfAnchor(anchor));
  for (const uint64_t band : BandHashes(sketch.signature)) {
    donor.keys.push_back(keys.OfBand(band));
  }
  SortUnique(&donor.keys);
  for (const uint32_t key : donor.keys) postings_.Prefetch(key);
  for (const uint32_t key : donor.keys) postings_.Add(key, number);
  num_postings_ += donor.keys.size();
  key_bytes_ += donor.keys.capacity() * sizeof(uint32_t);
  return true;
}

void DonorIndex::Move(DonorId from, DonorId to, uint32_t num_tokens) {
  const auto found = numbers_.find(from);
  if (found == numbers_.end()) return;
  Donor& donor = donors_[found->second];
  KVLINK_CHECK(num_tokens <= donor.num_tokens) << "donor " << from << " of " << donor.num_tokens;
  if (2 * uint64_t{num_tokens} < donor.sketched_tokens || Contains(to)) {
    Erase(from);
    return;
  }
  donor.id = to;
  donor.num_tokens = num_tokens;
  numbers_[to] = found->second;
  numbers_.erase(from);
}

void DonorIndex::Erase(DonorId id) {
  const auto found = numbers_.find(id);
  if (found == numbers_.end()) return;
  const uint32_t number = found->second;
  Donor& donor = donors_[number];
  for (const uint32_t key : donor.keys) postings_.Remove(key, number);
  num_postings_ -= donor.keys.size();
  key_bytes_ -= donor.keys.capacity() * sizeof(uint32_t);
  LeaveSpace(donor.space);
  donor = Donor{};
  free_numbers_.push_back(number);
  numbers_.erase(found);
}

uint32_t DonorIndex::EnterSpace(const Root& root) {
  const auto [known, is_new] = spaces_.try_emplace(root.extras);
  if (is_new) {
    if (free_spaces_.empty()) {
      free_spaces_.push_back(static_cast<uint32_t>(space_numbers_.size()));
      space_numbers_.push_back(nullptr);
    }
    known->second.number = free_spaces_.back();
    free_spaces_.pop_back();
    space_numbers_[known->second.number] = &*known;
  }
  ++known->second.num_donors;
  return known->second.number;
}

void DonorIndex::LeaveSpace(uint32_t number) {
  Spaces::pointer& entry = space_numbers_[number];
  if (--entry->second.num_donors > 0) return;
  free_spaces_.push_back(number);
  spaces_.erase(spaces_.find(entry->first));
  entry = nullptr;
}

void DonorIndex::Clear() {
  std::vector<DonorId> all;
  for (const auto& [id, number] : numbers_) all.push_back(id);
  for (const DonorId id : all) Erase(id);
}

std::optional<DonorMatch> DonorIndex::Find(const Root& root, const Sketch& sketch,
                                           uint32_t exact_tokens) const {
  const auto space = spaces_.find(root.extras);
  if (space == spaces_.end()) return std::nullopt;
  if (sketch.num_tokens < exact_tokens + options_.min_reused_rows) return std::nullopt;
  const Keys keys(space->second.number);
  const Query query(keys, sketch, exact_tokens);
  Tally tally;
  Vote(query, space->second, &tally);

  DonorMatch best;
  uint64_t best_age = 0;
  std::optional<Query> coarser;  // for the donors with the wider window seen last
  for (const uint32_t number : Shortlist(tally)) {
    const Donor& donor = donors_[number];
    const bool is_wider = donor.window > sketch.window;
    if (is_wider && (!coarser || coarser->window() != donor.window)) {
      coarser.emplace(query.Coarser(donor.window));
    }
    const uint32_t rows = (is_wider ? *coarser : query).RowsCoveredBy(donor.keys);
    if (rows < best.estimated_rows || (rows == best.estimated_rows && donor.age < best_age))
      continue;
    best = {.donor = donor.id, .donor_tokens = donor.num_tokens, .estimated_rows = rows};
    best_age = donor.age;
  }
  if (2 * best.estimated_rows < options_.min_reused_rows) return std::nullopt;
  return best;
}

void DonorIndex::Vote(const Query& query, const Space& space, Tally* tally) const {
  std::vector<uint32_t> probes = query.AnchorKeys();
  const size_t num_anchors = probes.size();
  query.AppendBandKeys(&probes);
  for (const uint32_t key : probes) postings_.Prefetch(key);
  const double frequent =
      std::max<double>(PostingTable::kBucketSize, options_.frequent_share * space.num_donors);
  const size_t stride = num_anchors / kTemplateVotes + 1;
  size_t templates = 0;
  for (size_t i = 0; i < probes.size(); ++i) {
    const PostingTable::Bucket bucket = postings_.Find(probes[i]);
    if (bucket.frequency == 0) continue;
    const bool is_template = bucket.frequency > frequent;
    if (is_template && templates++ % stride != 0) continue;
    const float vote = (i < num_anchors ? 1.0f : kBandVote) / static_cast<float>(bucket.frequency);
    for (uint32_t j = 0; j < bucket.size; ++j) {
      // Keys of other namespaces are equal by chance.
      if (donors_[bucket.donors[j]].space != space.number) continue;
      Tally::Entry& entry = tally->Of(bucket.donors[j]);
      if (is_template) {
        ++entry.template_hits;
      } else {
        entry.votes += vote;
      }
    }
  }
}

std::vector<uint32_t> DonorIndex::Shortlist(const Tally& tally) const {
  std::vector<Tally::Entry> all = tally.All();
  std::vector<uint32_t> shortlist;
  const auto take = [&](auto better) {
    const size_t count = std::min(kShortlisted, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                      better);
    for (size_t i = 0; i < count; ++i) {
      if (std::ranges::find(shortlist, all[i].donor) == shortlist.end()) {
        shortlist.push_back(all[i].donor);
      }
    }
  };
  const auto newer = [&](const Tally::Entry& a, const Tally::Entry& b) {
    return donors_[a.donor].age > donors_[b.donor].age;
  };
  take([&](const Tally::Entry& a, const Tally::Entry& b) {
    return a.votes != b.votes ? a.votes > b.votes : newer(a, b);
  });
  take([&](const Tally::Entry& a, const Tally::Entry& b) {
    return a.template_hits != b.template_hits ? a.template_hits > b.template_hits : newer(a, b);
  });
  return shortlist;
}

uint32_t DonorIndex::RowsOf(DonorId id) const {
  const auto found = numbers_.find(id);
  return found == numbers_.end() ? 0 : donors_[found->second].num_tokens;
}

size_t DonorIndex::tracking_bytes() const {
  constexpr size_t kNode = 40, kMalloc = 16;
  size_t bytes = sizeof(*this) + postings_.tracking_bytes() + donors_.capacity() * sizeof(Donor) +
                 free_numbers_.capacity() * sizeof(uint32_t) + key_bytes_ +
                 numbers_.size() * (kNode + kMalloc) +
                 (numbers_.bucket_count() + spaces_.bucket_count()) * sizeof(void*) +
                 free_spaces_.capacity() * sizeof(uint32_t);
  for (const auto& [extras, space] : spaces_) bytes += kNode + 2 * kMalloc + extras.capacity();
  return bytes;
}

}  // namespace kvlink::match
