// The cold tier on a disk that is well. See cold_fault_test.cc for kills, damage and full disks.
#include "tier/cold_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tier/testing/tier_world.h"
#include "tier/tier_files.h"

namespace kvlink::tier {
namespace {

using ::testing::HasSubstr;

ColdTierOptions OptionsOf(const std::string& directory, uint64_t budget = uint64_t{256} << 20) {
  ColdTierOptions options;
  options.directory = directory;
  options.budget_bytes = budget;
  options.min_free_bytes = 0;
  return options;
}

std::unique_ptr<BlockTier> Open(const ColdTierOptions& options) {
  Result<std::unique_ptr<BlockTier>> tier = OpenColdTier(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return std::move(*tier);
}

uint64_t FileBytes(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    std::error_code gone;
    const uint64_t size = file.file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

TEST(ColdTier, AgreesWithANaiveMapOverRandomOperationsAndRestarts) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const TempDirectory directory;
    const ColdTierOptions options = OptionsOf(directory / "store");
    std::unique_ptr<BlockTier> tier = Open(options);
    CompareWithNaiveMap(tier, seed, 600, 50000, [&] {
      tier.reset();
      tier = Open(options);
    });
  }
}

TEST(ColdTier, ARestartFindsWhatWasThereWithItsParentAndUses) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  {
    const auto tier = Open(options);
    PutOne(*tier, NumberedKey(0), "root", {}, 100);
    PutOne(*tier, NumberedKey(1), "child", NumberedKey(0), 200);
    GetOne(*tier, NumberedKey(1));
    GetOne(*tier, NumberedKey(1));
  }
  const auto tier = Open(options);
  EXPECT_EQ(tier->ContainsNow(NumberedKey(1)), true);
  EXPECT_EQ(tier->ContainsNow(NumberedKey(2)), false);
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).bytes, "child");
  ASSERT_TRUE(tier->List([](const TierEntry& entry) {
                    if (entry.key == NumberedKey(1)) {
                      EXPECT_EQ(entry.parent, NumberedKey(0));
                      EXPECT_EQ(entry.uses, 4u);
                      EXPECT_EQ(entry.bytes, 5u);
                    }
                    return true;
                  })
                  .ok());
  const TierUsage usage = tier->Usage();
  EXPECT_EQ(usage.blocks, 2u);
  EXPECT_EQ(usage.bytes, 9u);
  EXPECT_EQ(usage.unreachable, 0u);
}

// Four times the budget goes in, in chains that branch; after every block the directory is within
// the budget.
TEST(ColdTier, TheBudgetIsHardOnTheDeviceAndAcrossRestarts) {
  const TempDirectory directory;
  constexpr uint64_t kBudget = uint64_t{40} << 20;
  ColdTierOptions options = OptionsOf(directory / "store", kBudget);
  auto tier = Open(options);
  uint64_t most = 0, stored = 0;
  const auto fill = [&](uint64_t first, uint64_t count, uint64_t budget) {
    for (uint64_t n = first; n < first + count; ++n) {
      const std::string bytes = RandomBytes(n, 100'000 + n % 7 * 30'000);
      const BlockKey parent = n % 10 == 0 ? BlockKey{} : NumberedKey(n - 1 - n % 3 % (n % 10));
      const TierAnswer answer = PutOne(*tier, NumberedKey(n), bytes, parent, 1000)[0];
      ASSERT_EQ(answer.outcome, Outcome::kOk)
          << n << ": " << ErrorReasonName(answer.reason) << " " << tier->LastError();
      stored += bytes.size();
      most = std::max(most, FileBytes(options.directory));
      ASSERT_LE(FileBytes(options.directory), budget) << "block " << n;
      ASSERT_EQ(GetOne(*tier, NumberedKey(n)).bytes, bytes);
    }
  };
  fill(0, 900, kBudget);
  EXPECT_GT(stored, 4 * kBudget);
  EXPECT_GT(most, kBudget / 2) << "the budget is used";
  EXPECT_GT(tier->Usage().bytes, kBudget / 2);
  EXPECT_GT(tier->Usage().evictions, 100u);

  tier.reset();
  tier = Open(options);
  EXPECT_GT(tier->Usage().bytes, kBudget / 2);
  EXPECT_LE(FileBytes(options.directory), kBudget);
  fill(900, 100, kBudget);

  tier.reset();
  options.budget_bytes = kMinColdBudget;  // smaller than before
  tier = Open(options);
  EXPECT_LE(FileBytes(options.directory), kMinColdBudget);
  EXPECT_GT(tier->Usage().blocks, 0u);
  fill(1000, 100, kMinColdBudget);
}

// As a repair does, which does not know what the server was given.
TEST(ColdTier, WhoLooksAfterAStoreEvictsNothingAndMakesNone) {
  const TempDirectory directory;
  ColdTierOptions options = OptionsOf(directory / "store", uint64_t{128} << 20);
  auto tier = Open(options);
  for (uint64_t n = 0; n < 60; ++n) PutOne(*tier, NumberedKey(n), RandomBytes(n, 1'000'000));
  ASSERT_EQ(tier->Usage().blocks, 60u);
  tier.reset();
  options.budget_bytes = kAnyColdSize;
  options.must_exist = true;
  tier = Open(options);
  EXPECT_EQ(tier->Usage().blocks, 60u);
  const BlockKey damaged = NumberedKey(3);
  EXPECT_EQ(tier->Remove({&damaged, 1}, Soon())[0].outcome, Outcome::kOk);
  EXPECT_EQ(GetOne(*tier, NumberedKey(4)).bytes, RandomBytes(4, 1'000'000));
  tier.reset();
  options.directory = directory / "none";
  EXPECT_EQ(OpenColdTier(options).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(options.directory));
}

TEST(ColdTier, WhatIsUsedAndDearOutlivesAFloodOfOneOffBlocks) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store", uint64_t{33} << 20);
  auto tier = Open(options);
  const std::string hot = RandomBytes(0, 500'000);
  PutOne(*tier, NumberedKey(0), hot, {}, 1000);
  for (int i = 0; i < 20; ++i) GetOne(*tier, NumberedKey(0));
  for (uint64_t n = 1; n < 150; ++n) {
    PutOne(*tier, NumberedKey(n), RandomBytes(n, 500'000), {}, 1000);
    if (n == 75) {
      tier.reset();
      tier = Open(options);
    }
  }
  EXPECT_EQ(GetOne(*tier, NumberedKey(0)).bytes, hot);
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).outcome, Outcome::kMiss);
}

TEST(ColdTier, ABlockLargerThanTheBudgetIsFullAndEvictsNothing) {
  const TempDirectory directory;
  const auto tier = Open(OptionsOf(directory / "store", kMinColdBudget));
  PutOne(*tier, NumberedKey(0), "x");
  EXPECT_EQ(PutOne(*tier, NumberedKey(1), std::string(kMinColdBudget, 'x'))[0].reason,
            ErrorReason::kFull);
  EXPECT_EQ(GetOne(*tier, NumberedKey(0)).bytes, "x");
}

TEST(ColdTier, ADirectoryBelongsToOneAtATime) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  auto tier = Open(options);
  const auto second = OpenColdTier(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("is in use by another process"));
  EXPECT_THAT(second.status().message(), HasSubstr(options.directory));
  EXPECT_EQ(PutOne(*tier, NumberedKey(0), "x")[0].outcome, Outcome::kOk);
  tier.reset();
  EXPECT_TRUE(OpenColdTier(options).ok());
}

TEST(ColdTier, OptionsThatCannotBeUsedAreErrors) {
  const TempDirectory directory;
  const auto message = [](const ColdTierOptions& options) {
    const auto tier = OpenColdTier(options);
    EXPECT_FALSE(tier.ok());
    return tier.status().ToString();
  };
  EXPECT_THAT(message(OptionsOf("")), HasSubstr("no directory"));
  EXPECT_THAT(message(OptionsOf(directory / "a", 1000)), HasSubstr("a budget of 1000 bytes"));
  std::ofstream(directory / "file") << "x";
  EXPECT_THAT(message(OptionsOf(directory / "file")), HasSubstr("file"));
  EXPECT_THAT(message(OptionsOf(directory.path())), HasSubstr("neither empty nor a cold store"));
  ColdTierOptions reading = OptionsOf(directory / "none");
  reading.read_only = true;
  EXPECT_THAT(message(reading), HasSubstr("none"));
  EXPECT_FALSE(std::filesystem::exists(directory / "none"));
  std::filesystem::create_directory(directory / "newer");
  std::ofstream(directory / "newer/COLD_STORE") << "kvlink cold store, format 3\n";
  EXPECT_THAT(message(OptionsOf(directory / "newer")), HasSubstr("another format"));
}

// Format 1 kept the bytes in RocksDB, too. All of it can be computed again.
TEST(ColdTier, AStoreOfTheEarlierFormatIsEmptiedButNotByReading) {
  const TempDirectory directory;
  ColdTierOptions options = OptionsOf(directory / "store");
  std::filesystem::create_directory(options.directory);
  std::ofstream(options.directory + "/COLD_STORE") << "kvlink cold store, format 1\n";
  std::ofstream(options.directory + "/000007.blob") << "what it held";
  options.read_only = true;
  EXPECT_EQ(OpenColdTier(options).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(std::filesystem::exists(options.directory + "/000007.blob"));
  options.read_only = false;
  auto tier = Open(options);
  EXPECT_FALSE(std::filesystem::exists(options.directory + "/000007.blob"));
  EXPECT_EQ(PutOne(*tier, NumberedKey(0), "x")[0].outcome, Outcome::kOk);
  tier.reset();
  EXPECT_EQ(GetOne(*Open(options), NumberedKey(0)).bytes, "x");
}

TEST(ColdTier, ABatchIsThereWhole) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  auto tier = Open(options);
  std::vector<std::string> bytes;
  std::vector<TierPut> items;
  for (uint64_t n = 0; n < 50; ++n) bytes.push_back(RandomBytes(n, n % 5 * 200'000));
  for (uint64_t n = 0; n < 50; ++n) {
    items.push_back({NumberedKey(n), n > 0 ? NumberedKey(n - 1) : BlockKey{}, 1, bytes[n]});
  }
  for (const TierAnswer& answer : tier->Put(items, Soon())) {
    EXPECT_EQ(answer.outcome, Outcome::kOk);
  }
  tier.reset();
  tier = Open(options);
  for (uint64_t n = 0; n < 50; ++n) EXPECT_EQ(GetOne(*tier, NumberedKey(n)).bytes, bytes[n]);
  EXPECT_EQ(tier->Usage().unreachable, 0u);
}

// Space is given back all the time while others read: a block is whole or a miss.
TEST(ColdTier, WhoReadsWhileBlocksAreMovedAndEvictedSeesWholeBlocks) {
  const TempDirectory directory;
  const auto tier = Open(OptionsOf(directory / "store", kMinColdBudget));
  constexpr uint64_t kKeys = 120;
  const auto bytes_of = [](uint64_t n) { return RandomBytes(n, 200'000 + n * 1000); };
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> hits{0}, wrong{0};
  std::thread reader([&] {
    base::Random random(3);
    while (!stop) {
      const uint64_t n = random.Below(kKeys);
      const TierAnswer answer = GetOne(*tier, NumberedKey(n));
      if (answer.outcome == Outcome::kError) ++wrong;
      if (answer.outcome != Outcome::kOk) continue;
      ++hits;
      if (answer.bytes != bytes_of(n)) ++wrong;
    }
  });
  base::Random random(4);
  const auto put = [&] {
    const uint64_t n = random.Below(kKeys);
    EXPECT_EQ(PutOne(*tier, NumberedKey(n), bytes_of(n), {}, 1000)[0].outcome, Outcome::kOk);
  };
  for (int i = 0; i < 400; ++i) put();
  EXPECT_TRUE(Eventually([&] {
    put();
    return hits > 20;
  }));
  stop = true;
  reader.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(tier->Usage().evictions, 0u);
}

TEST(ColdTier, ReadOnlyListsVerifiesAndExportsAndChangesNothing) {
  const TempDirectory directory;
  ColdTierOptions options = OptionsOf(directory / "store");
  {
    const auto tier = Open(options);
    for (uint64_t n = 0; n < 5; ++n) {
      const NumberedBlock block(n);
      PutOne(*tier, block.put.name.key, block.Encoded(), block.put.name.parent, 1000);
    }
  }
  options.read_only = true;
  const auto tier = Open(options);
  EXPECT_NE(PutOne(*tier, NumberedKey(9), "x")[0].outcome, Outcome::kOk);
  const BlockKey key = NumberedKey(1);
  EXPECT_NE(tier->Remove({&key, 1}, Soon())[0].outcome, Outcome::kOk);
  const Result<VerifyReport> report = VerifyTier(*tier, false);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->blocks, 5u);
  EXPECT_EQ(report->damaged + report->missing + report->unreachable, 0u);
  EXPECT_EQ(*ExportTier(*tier, directory / "out"), 5u);
}

}  // namespace
}  // namespace kvlink::tier
