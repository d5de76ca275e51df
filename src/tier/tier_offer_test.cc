// Blocks that come from a faster tier and are offered to the peer behind it, which others use.
#include <gtest/gtest.h>

#include <functional>

#include "tier/memory_tier.h"
#include "tier/testing/fault_tier.h"
#include "tier/testing/tier_world.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kBlocks = 12;

// A store of RAM, a disk and a peer ("net", which can fail) in which nothing lies yet.
class OfferTest : public ::testing::Test {
 protected:
  void Open(uint64_t ram_bytes = 1 << 24) {
    std::vector<std::unique_ptr<BlockTier>> tiers;
    auto ram = std::make_unique<MemoryTier>(ram_bytes, "ram");
    auto disk = std::make_unique<MemoryTier>(1 << 24, "disk");
    auto net = std::make_unique<FaultTier>(std::make_unique<MemoryTier>(1 << 24));
    ram_ = ram.get();
    disk_ = disk.get();
    net_ = net.get();
    tiers.push_back(std::move(ram));
    tiers.push_back(std::move(disk));
    tiers.push_back(std::move(net));
    store_ = TierStore::Create(options_, std::move(tiers));
  }
  // Blocks [0, count), past the store: as an earlier process did.
  static void Leave(BlockTier& tier, uint64_t count = kBlocks) {
    for (uint64_t n = 0; n < count; ++n) {
      const NumberedBlock block(n);
      PutOne(tier, block.put.name.key, block.Encoded(), block.put.name.parent);
    }
  }
  void LoadAll() {
    std::vector<std::unique_ptr<NumberedBlock>> blocks;
    std::vector<Want> wants;
    for (uint64_t n = 0; n < kBlocks; ++n) {
      blocks.push_back(std::make_unique<NumberedBlock>(n));
      wants.push_back({blocks.back()->put.name, {}});
    }
    const auto ticket = store_->Load(wants, Soon(), {});
    ASSERT_TRUE(ticket->WaitUntil(Soon()));
    for (uint64_t n = 0; n < kBlocks; ++n) {
      ASSERT_EQ(ticket->TakeResult(n).payload, blocks[n]->payload) << n;
    }
  }
  // Offers follow the end of a load; when `condition` holds, and nothing is queued any more.
  bool Settles(const std::function<bool()>& condition) {
    return Eventually([&] { return store_->Drain(Soon()) && condition(); });
  }
  bool SettlesWithStored(uint64_t blocks) {
    return Settles([&] { return store_->Stats(kNet).stored == blocks; });
  }
  uint64_t Errors(TierOp op, ErrorReason reason) {
    return store_->Stats(kNet).errors[static_cast<size_t>(op)][static_cast<size_t>(reason)];
  }

  static constexpr uint32_t kRam = 0, kDisk = 1, kNet = 2;
  TierStoreOptions options_{.model_fingerprint = "model"};
  MemoryTier *ram_ = nullptr, *disk_ = nullptr;  // of the store
  FaultTier* net_ = nullptr;                     // likewise
  std::unique_ptr<TierStore> store_;
};

TEST_F(OfferTest, WhatComesFromDiskAndThePeerLacksIsWrittenThere) {
  Open();
  Leave(*disk_);
  LoadAll();
  ASSERT_TRUE(SettlesWithStored(kBlocks));
  EXPECT_EQ(store_->Stats(kNet).promoted, 0u);
  EXPECT_EQ(store_->Stats(kRam).promoted, kBlocks);
  EXPECT_EQ(store_->Stats(kNet).queued_bytes, 0u);
  for (uint64_t n = 0; n < kBlocks; ++n) {
    EXPECT_EQ(GetOne(*net_, NumberedKey(n)).bytes, NumberedBlock(n).Encoded());
    EXPECT_EQ(store_->Find(NumberedKey(n)).present, 7u);
  }
}

TEST_F(OfferTest, WhatThePeerHasIsAskedForOnceAndNotWritten) {
  Open(/*ram_bytes=*/0);
  Leave(*disk_);
  Leave(*net_, kBlocks / 2);
  LoadAll();
  ASSERT_TRUE(SettlesWithStored(kBlocks / 2));
  EXPECT_EQ(net_->Usage().blocks, kBlocks);
  const uint64_t calls = net_->num_calls();
  LoadAll();
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(net_->num_calls(), calls) << "what is known is not asked";
  EXPECT_EQ(store_->Stats(kDisk).hits, 2 * kBlocks);
}

TEST_F(OfferTest, WhatATierOfOurOwnLetGoOfIsNotWrittenThereAgain) {
  Open();
  Leave(*ram_);
  LoadAll();
  ASSERT_TRUE(SettlesWithStored(kBlocks));
  EXPECT_EQ(store_->Stats(kDisk).stored, 0u);
}

TEST_F(OfferTest, APeerThatDoesNotSayWhetherItHasTheBlockIsLeftAlone) {
  options_.breaker.failures = 1000;
  Open(/*ram_bytes=*/0);
  Leave(*disk_);
  net_->Set(Fault::kIo);
  LoadAll();
  ASSERT_TRUE(Settles([&] { return Errors(TierOp::kContains, ErrorReason::kIo) == kBlocks; }));
  EXPECT_EQ(Errors(TierOp::kPut, ErrorReason::kIo), 0u);
  EXPECT_EQ(store_->Stats(kNet).queued_bytes, 0u);
  EXPECT_EQ(store_->Stats(kNet).queued_blocks, 0u);
  net_->Set(Fault::kNone);
  LoadAll();
  EXPECT_TRUE(SettlesWithStored(kBlocks)) << "the next load offers it again";
}

TEST_F(OfferTest, OffersStayWithinTheQueueAndNeverHoldUpALoad) {
  options_.queue_bytes = 3 * 1200;
  options_.ping_timeout = milliseconds(2000);
  Open(/*ram_bytes=*/0);
  Leave(*disk_);
  net_->Set(Fault::kSlow, 0, milliseconds(200));
  LoadAll();
  const TierStats stats = store_->Stats(kNet);
  EXPECT_LE(stats.queued_bytes, options_.queue_bytes);
  EXPECT_GT(stats.queue_drops, 0u);
  net_->Set(Fault::kNone);
  EXPECT_TRUE(Settles([&] {
    const TierStats now = store_->Stats(kNet);
    return now.stored + now.queue_drops == kBlocks;
  }));
}

TEST_F(OfferTest, WithoutPromotionNothingIsOffered) {
  options_.promote = false;
  Open();
  Leave(*disk_);
  LoadAll();
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(net_->num_calls(), 0u);
  EXPECT_EQ(store_->Stats(kRam).stored, 0u);
}

}  // namespace
}  // namespace kvlink::tier
