#include "tier/tier_store.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "tier/tier_lane.h"

namespace kvlink::tier {
namespace {

// Of memory kept between copies, and its share of the queue's.
constexpr uint64_t kMostSpareBytes = uint64_t{64} << 20, kSpareShare = 4;

class TierStack final : public TierStore, private LaneOwner {
  using Origin = TierLane::Origin;

 public:
  TierStack(TierStoreOptions options, std::vector<std::unique_ptr<BlockTier>> tiers)
      : options_(std::move(options)),
        model_(base::Hash128(options_.model_fingerprint)),
        spare_(std::make_shared<SpareBuffers>(
            std::min(kMostSpareBytes, options_.queue_bytes / kSpareShare))) {
    KVLINK_CHECK(tiers.size() <= 32) << tiers.size() << " tiers";
    LaneOwner& owner = *this;
    for (std::unique_ptr<BlockTier>& tier : tiers) {
      const uint32_t index = static_cast<uint32_t>(lanes_.size());
      lanes_.push_back(std::make_unique<TierLane>(index, std::move(tier), options_, owner));
    }
    for (const auto& lane : lanes_) lane->Start();
  }
  ~TierStack() override {
    // All before the first goes: lanes hand work to one another.
    for (const auto& lane : lanes_) lane->Stop();
  }

  bool Put(const PutBlock& block) override {
    std::vector<TierLane*> takers;
    const size_t bytes = PendingBlock::SizeOf(block);
    for (const auto& lane : lanes_) {
      if (lane->Reserve(block.name.key, bytes, Origin::kPut)) takers.push_back(lane.get());
    }
    if (takers.empty()) return false;
    const auto copy = std::make_shared<PendingBlock>(block, model_, options_.compression, spare_);
    for (TierLane* lane : takers) lane->Put(copy, Origin::kPut);
    return true;
  }

  void Remove(std::span<const BlockKey> keys) override {
    for (const auto& lane : lanes_) lane->Remove({keys.begin(), keys.end()});
  }

  Where Find(const BlockKey& key) const override {
    Where where;
    for (uint32_t t = 0; t < lanes_.size(); ++t) {
      const std::optional<bool> known = lanes_[t]->Find(key);
      if (!known.has_value()) where.unknown |= 1u << t;
      if (known.value_or(false)) where.present |= 1u << t;
    }
    return where;
  }

  void Probe(std::span<const BlockKey> keys, std::function<void()> done) override {
    const std::shared_ptr<void> until_done(nullptr, [done = std::move(done)](void*) {
      if (done) done();
    });
    for (const auto& lane : lanes_) {
      std::vector<BlockKey> unknown;
      for (const BlockKey& key : keys) {
        if (!lane->Find(key).has_value()) unknown.push_back(key);
      }
      if (!unknown.empty()) lane->Probe(std::move(unknown), until_done);
    }
  }

  std::shared_ptr<LoadTicket> Load(std::span<const Want> wants, TimePoint deadline,
                                   std::function<void()> done) override {
    auto ticket = std::make_shared<LoadTicket>(wants, deadline, std::move(done));
    if (wants.empty()) ticket->FinishIfDone();
    std::vector<size_t> all(wants.size());
    std::iota(all.begin(), all.end(), size_t{0});
    Route(ticket, all, 0);
    return ticket;
  }

  double LoadCostUs(uint32_t tier, uint32_t blocks, uint64_t bytes) const override {
    return lane(tier).LoadCostUs(blocks, bytes);
  }

  bool Drain(TimePoint deadline) override {
    bool drained = true;
    for (const auto& lane : lanes_) drained &= lane->Drain(deadline);
    return drained;
  }

  uint32_t num_tiers() const override { return static_cast<uint32_t>(lanes_.size()); }
  TierStats Stats(uint32_t tier) const override { return lane(tier).Stats(); }
  BlockTier& tier(uint32_t tier) override { return lane(tier).tier(); }

 private:
  TierLane& lane(uint32_t tier) const {
    KVLINK_CHECK(tier < lanes_.size()) << "tier " << tier << " of " << lanes_.size();
    return *lanes_[tier];
  }

  // Hands each want to the first tier from `from` on that has or may have it.
  void Route(const std::shared_ptr<LoadTicket>& ticket, std::span<const size_t> wants,
             uint32_t from) {
    std::vector<std::vector<size_t>> jobs(lanes_.size());
    std::vector<PassedWant> nowhere;
    for (const size_t want : wants) {
      bool cut_off = false;
      uint32_t t = from;
      while (t < lanes_.size() && !lanes_[t]->Find(ticket->name(want).key).value_or(true)) {
        cut_off |= lanes_[t]->cut_off();
        ++t;
      }
      if (t < lanes_.size()) {
        jobs[t].push_back(want);
      } else {
        nowhere.push_back({want, cut_off ? Outcome::kError : Outcome::kMiss,
                           cut_off ? ErrorReason::kBreaker : ErrorReason::kNone});
      }
    }
    for (uint32_t t = 0; t < lanes_.size(); ++t) {
      if (!jobs[t].empty()) lanes_[t]->Load(ticket, std::move(jobs[t]));
    }
    // At the end: it may run the callback.
    const uint32_t last = lanes_.empty() ? 0 : num_tiers() - 1;
    for (const PassedWant& passed : nowhere) {
      ticket->Fail(passed.want, last, passed.outcome, passed.reason);
    }
  }

  void Passed(const std::shared_ptr<LoadTicket>& ticket, uint32_t tier,
              std::span<const PassedWant> passed) override {
    const bool late = ticket->deadline() <= options_.clock();
    std::vector<size_t> wants;
    for (const PassedWant& want : passed) {
      if (late) {
        ticket->Fail(want.want, tier, want.outcome, want.reason);
        continue;
      }
      if (want.outcome == Outcome::kError) ticket->NoteError(want.want, tier, want.reason);
      wants.push_back(want.want);
    }
    if (!wants.empty() && !ticket->Done()) Route(ticket, wants, tier + 1);
  }

  void Loaded(uint32_t tier, const BlockHeader& header, std::string bytes) override {
    const auto origin = [tier](uint32_t t) {
      return t < tier ? Origin::kPromoted : Origin::kOffered;
    };
    std::vector<uint32_t> takers;
    for (uint32_t t = 0; options_.promote && t < num_tiers(); ++t) {
      if (t != tier && lanes_[t]->Reserve(header.key, bytes.size(), origin(t))) takers.push_back(t);
    }
    if (takers.empty()) return;
    const auto block = std::make_shared<PendingBlock>(header, std::move(bytes));
    for (const uint32_t t : takers) lanes_[t]->Put(block, origin(t));
  }

  const TierStoreOptions options_;
  const BlockKey model_;
  const std::shared_ptr<SpareBuffers> spare_;
  std::vector<std::unique_ptr<TierLane>> lanes_;
};

}  // namespace

std::unique_ptr<TierStore> TierStore::Create(TierStoreOptions options,
                                             std::vector<std::unique_ptr<BlockTier>> tiers) {
  return std::make_unique<TierStack>(std::move(options), std::move(tiers));
}

uint64_t TierStats::num_errors() const {
  uint64_t sum = 0;
  for (const auto& of_op : errors) {
    for (const uint64_t count : of_op) sum += count;
  }
  return sum;
}

const char* TierOpName(TierOp op) {
  switch (op) {
    case TierOp::kPut:
      return "put";
    case TierOp::kGet:
      return "get";
    case TierOp::kContains:
      return "contains";
    case TierOp::kRemove:
      return "remove";
    case TierOp::kCount:
      break;
  }
  return "unknown";
}

}  // namespace kvlink::tier
