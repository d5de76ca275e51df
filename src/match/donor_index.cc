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
  std::vector<KeyPlace> OfAnchors(std::span<const Anchor> anchors) const {
    std::vector<KeyPlace> keys;
    keys.reserve(anchors.size());
    for (const Anchor& anchor : anchors) {
      keys.push_back({Cut(anchor.hash ^ salt_), anchor.position & 0xffffffu, anchor.tag});
    }
    return keys;
  }
  std::array<uint32_t, kBands> OfBands(
      const std::array<uint16_t, kSignatureBins>& signature) const {
    std::array<uint32_t, kBands> keys;
    std::ranges::transform(BandHashes(signature), keys.begin(),
                           [&](uint64_t hash) { return Cut(hash ^ salt_ ^ kBandTag); });
    return keys;
  }

 private:
  static uint32_t Cut(uint64_t value) { return static_cast<uint32_t>(Mix(value) >> 32); }
  uint64_t salt_;
};

// Every key of a donor once: anchors repeat, and keys may be equal by chance.
std::vector<uint32_t> UniqueKeys(std::span<const KeyPlace> anchors,
                                 std::span<const uint32_t> bands) {
  std::vector<uint32_t> keys(bands.begin(), bands.end());
  keys.reserve(anchors.size() + bands.size());
  for (const KeyPlace& anchor : anchors) keys.push_back(anchor.key);
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace

// What is asked of the index.
class DonorIndex::Query {
 public:
  Query(const Keys& keys, const Sketch& sketch, uint32_t exact_tokens)
      : keys_(keys),
        sketch_(sketch),
        exact_tokens_(exact_tokens),
        anchors_(keys.OfAnchors(sketch.anchors)) {}

  // Keys of the anchors behind the exact hit.
  std::vector<uint32_t> AnchorKeys() const { return anchors_.KeysBehind(exact_tokens_); }
  // Where most of the prompt is there already there are none: all who share its start would have
  // them in common.
  std::vector<uint32_t> BandKeys() const {
    if (2 * uint64_t{exact_tokens_} > sketch_.num_tokens) return {};
    const auto bands = keys_.OfBands(sketch_.signature);
    return {bands.begin(), bands.end()};
  }

  uint32_t SharedRows(const Donor& donor, uint32_t min_rows) {
    if (donor.window <= sketch_.window) {
      return anchors_.SharedRows(donor.anchors, exact_tokens_, min_rows);
    }
    if (!coarser_ || coarser_window_ != donor.window) {
      coarser_.emplace(keys_.OfAnchors(Coarsen(sketch_.anchors, sketch_.num_tokens, donor.window)));
      coarser_window_ = donor.window;
    }
    return coarser_->SharedRows(donor.anchors, exact_tokens_, min_rows);
  }

 private:
  const Keys& keys_;
  const Sketch& sketch_;
  const uint32_t exact_tokens_;
  const PromptAnchors anchors_;
  std::optional<PromptAnchors> coarser_;  // as the donors with this wider window have them
  uint32_t coarser_window_ = 0;
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
           .anchors = {},
           .bands = {}};
  const Keys keys(donor.space);
  donor.anchors = keys.OfAnchors(sketch.anchors);
  std::ranges::sort(donor.anchors);
  donor.bands = keys.OfBands(sketch.signature);
  const std::vector<uint32_t> unique = UniqueKeys(donor.anchors, donor.bands);
  for (const uint32_t key : unique) postings_.Prefetch(key);
  for (const uint32_t key : unique) postings_.Add(key, number);
  num_postings_ += unique.size();
  anchor_bytes_ += donor.anchors.capacity() * sizeof(KeyPlace);
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
  const std::vector<uint32_t> unique = UniqueKeys(donor.anchors, donor.bands);
  for (const uint32_t key : unique) postings_.Remove(key, number);
  num_postings_ -= unique.size();
  anchor_bytes_ -= donor.anchors.capacity() * sizeof(KeyPlace);
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
  Query query(keys, sketch, exact_tokens);
  VoteTally tally;
  Vote(query, space->second, &tally);
  const Donor* best = nullptr;
  uint32_t best_rows = 0;
  for (const uint32_t number : Shortlist(tally)) {
    const Donor& donor = donors_[number];
    const uint32_t rows = query.SharedRows(donor, options_.min_run / 2);
    const bool is_newer = best == nullptr || donor.age > best->age;
    if (rows < best_rows || (rows == best_rows && !is_newer)) continue;
    best = &donor;
    best_rows = rows;
  }
  // Runs that seem as short as alignment may drop are a handful of words that many texts share.
  // Estimates are low by the ends of the runs.
  if (best == nullptr ||
      4 * query.SharedRows(*best, options_.min_run) < 3 * options_.min_reused_rows) {
    return std::nullopt;
  }
  return DonorMatch{
      .donor = best->id, .donor_tokens = best->num_tokens, .estimated_rows = best_rows};
}

void DonorIndex::Vote(const Query& query, const Space& space, VoteTally* tally) const {
  std::vector<uint32_t> probes = query.AnchorKeys();
  const size_t num_anchors = probes.size();
  const std::vector<uint32_t> bands = query.BandKeys();
  probes.insert(probes.end(), bands.begin(), bands.end());
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
      VoteTally::Entry& entry = tally->Of(bucket.donors[j]);
      if (is_template) {
        ++entry.template_hits;
      } else {
        entry.votes += vote;
      }
    }
  }
}

std::vector<uint32_t> DonorIndex::Shortlist(const VoteTally& tally) const {
  std::vector<VoteTally::Entry> all = tally.All();
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
  const auto newer = [&](const VoteTally::Entry& a, const VoteTally::Entry& b) {
    return donors_[a.donor].age > donors_[b.donor].age;
  };
  take([&](const VoteTally::Entry& a, const VoteTally::Entry& b) {
    return a.votes != b.votes ? a.votes > b.votes : newer(a, b);
  });
  take([&](const VoteTally::Entry& a, const VoteTally::Entry& b) {
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
                 free_numbers_.capacity() * sizeof(uint32_t) + anchor_bytes_ +
                 numbers_.size() * (kNode + kMalloc) +
                 (numbers_.bucket_count() + spaces_.bucket_count()) * sizeof(void*) +
                 free_spaces_.capacity() * sizeof(uint32_t);
  for (const auto& [extras, space] : spaces_) bytes += kNode + 2 * kMalloc + extras.capacity();
  return bytes;
}

}  // namespace kvlink::match
