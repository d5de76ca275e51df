// A cache on tiers that keep their blocks in memory, fail on command, and outlive the cache, for
// the tests of link.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "link/cache_harness.h"
#include "link/cache_state.h"
#include "tier/memory_tier.h"
#include "tier/tier_store.h"

namespace kvlink::link {

// What a tier does to those who use it; shared with the test.
struct Faults {
  std::atomic<int> get_errors{0};   // so many blocks are kIo next
  std::atomic<int> bit_flips{0};    // so many loaded blocks have one bit turned
  std::atomic<int> short_reads{0};  // so many come cut off
  std::atomic<int> losses{0};       // so many are not found although they are there
  std::atomic<int> put_errors{0};
  std::atomic<bool> hangs{false};      // no call answers before its deadline, or the end of this
  std::atomic<bool> asks_peer{false};  // only Contains knows what is there
  std::atomic<uint64_t> gets{0}, puts{0};

  static bool Take(std::atomic<int>& count) {
    int left = count.load();
    while (left > 0 && !count.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  }
};

class FaultyTier final : public tier::BlockTier {
 public:
  FaultyTier(std::shared_ptr<tier::MemoryTier> blocks, std::shared_ptr<Faults> faults)
      : blocks_(std::move(blocks)), faults_(std::move(faults)) {}

  std::string_view name() const override { return blocks_->name(); }
  std::vector<tier::TierAnswer> Put(std::span<const tier::TierPut> items,
                                    tier::TimePoint deadline) override {
    if (Hang(deadline)) return Late(items.size());
    std::vector<tier::TierAnswer> answers;
    for (const tier::TierPut& item : items) {
      if (Faults::Take(faults_->put_errors)) {
        answers.push_back(tier::TierAnswer::Error(tier::ErrorReason::kFull));
        continue;
      }
      ++faults_->puts;
      answers.push_back(blocks_->Put({&item, 1}, deadline).front());
    }
    return answers;
  }
  std::vector<tier::TierAnswer> Get(std::span<const tier::BlockKey> keys,
                                    tier::TimePoint deadline) override {
    if (Hang(deadline)) return Late(keys.size());
    std::vector<tier::TierAnswer> answers = blocks_->Get(keys, deadline);
    for (tier::TierAnswer& answer : answers) {
      ++faults_->gets;
      if (answer.outcome != tier::Outcome::kOk) continue;
      if (Faults::Take(faults_->get_errors)) {
        answer = tier::TierAnswer::Error(tier::ErrorReason::kIo);
      } else if (Faults::Take(faults_->losses)) {
        answer = tier::TierAnswer::Miss();
      } else if (Faults::Take(faults_->bit_flips)) {
        answer.bytes[(answer.bytes.size() * 7) / 11] ^= 0x10;
      } else if (Faults::Take(faults_->short_reads)) {
        answer.bytes.resize(answer.bytes.size() / 2);
      }
    }
    return answers;
  }
  std::vector<tier::TierAnswer> Contains(std::span<const tier::BlockKey> keys,
                                         tier::TimePoint deadline) override {
    return Hang(deadline) ? Late(keys.size()) : blocks_->Contains(keys, deadline);
  }
  std::vector<tier::TierAnswer> Remove(std::span<const tier::BlockKey> keys,
                                       tier::TimePoint deadline) override {
    return blocks_->Remove(keys, deadline);
  }
  std::optional<bool> ContainsNow(const tier::BlockKey& key) const override {
    return faults_->asks_peer ? std::nullopt : blocks_->ContainsNow(key);
  }
  Status Ping(tier::TimePoint deadline) override {
    return Hang(deadline) ? Status(StatusCode::kDeadlineExceeded, "it hangs") : Status::Ok();
  }
  Status Flush(tier::TimePoint) override { return Status::Ok(); }
  tier::TierUsage Usage() const override { return blocks_->Usage(); }
  Status List(const std::function<bool(const tier::TierEntry&)>& visit) const override {
    return blocks_->List(visit);
  }
  std::string LastError() const override { return ""; }

 private:
  bool Hang(tier::TimePoint deadline) const {
    while (faults_->hangs && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return faults_->hangs;
  }
  static std::vector<tier::TierAnswer> Late(size_t count) {
    return std::vector<tier::TierAnswer>(count,
                                         tier::TierAnswer::Error(tier::ErrorReason::kTimeout));
  }

  const std::shared_ptr<tier::MemoryTier> blocks_;
  const std::shared_ptr<Faults> faults_;
};

// The tiers outlive the cache: Create again is a restart.
class TierHarness : public CacheHarness {
 public:
  TierHarness(uint32_t tokens_per_block, uint64_t pages, KvType type = KvType::kF16,
              std::vector<std::string> names = {"cold"})
      : CacheHarness(tokens_per_block, pages, type) {
    for (std::string& name : names) {
      blocks.push_back(std::make_shared<tier::MemoryTier>(uint64_t{1} << 30, std::move(name)));
      faults.push_back(std::make_shared<Faults>());
    }
    // A load is late when a second has passed, and pays.
    options.similar_model.prefill_us_per_row = 100'000;
  }

  void Create() {
    cache.reset();
    std::vector<std::unique_ptr<tier::BlockTier>> tiers;
    for (size_t i = 0; i < blocks.size(); ++i) {
      tiers.push_back(std::make_unique<FaultyTier>(blocks[i], faults[i]));
    }
    auto store = tier::TierStore::Create(
        {.model_fingerprint = options.model_fingerprint, .breaker = {.failures = 1000}},
        std::move(tiers));
    auto created = CreateCacheOnTiers(options, std::move(store));
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    cache = std::move(created).value();
  }

  void DrainAll() { EXPECT_TRUE(cache->Drain(std::chrono::seconds(20))); }
  // Everything that is resident goes; the tiers have it.
  void MoveAllDown() {
    DrainAll();
    cache->Clear();
  }

  // As an engine does: polls until the load is over.
  static void Finish(Load& load) {
    while (!load.Poll()) std::this_thread::yield();
  }
  // A request that loads what its plan says. Gives the rows that the load brought.
  Result<Branch> TryBeginLoaded(const LookupRequest& request, uint32_t* loaded = nullptr) {
    std::unique_ptr<Load> load;
    const Plan plan = cache->Lookup(request);
    if (plan.loadable_tokens > 0) {
      auto started = cache->StartLoad(request, plan);
      if (started.ok()) {
        load = std::move(started).value();
        Finish(*load);
        for (const LoadedRows& rows : load->loaded()) {
          if (loaded != nullptr) *loaded += rows.num_rows;
        }
      }
    }
    return TryBegin(request);
  }
  // A whole request; gives the rows that were there, loaded ones included.
  uint32_t ServeLoaded(const Tokens& prompt, const Namespace& ns = {}) {
    auto begun = TryBeginLoaded(RequestOf(prompt, ns));
    EXPECT_TRUE(begun.ok()) << begun.status().ToString();
    const uint32_t ready = begun->ready();
    begun->ComputePrompt();
    EXPECT_EQ(begun->WrongRows(), 0u);
    return ready;
  }
  uint64_t BlocksIn(size_t tier) const { return blocks[tier]->Usage().blocks; }

  std::vector<std::shared_ptr<tier::MemoryTier>> blocks;
  std::vector<std::shared_ptr<Faults>> faults;
};

// One tier, and a prompt.
class TiersTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBlock = 8;
  static constexpr size_t kPrompt = 8 * kBlock + 3;  // eight whole blocks and a rest

  TiersTest() { harness_.Create(); }

  uint64_t Misses(MissReason reason) {
    return harness_.cache->Stats().misses[static_cast<size_t>(reason)];
  }
  std::unique_ptr<Load> StartLoad(const Tokens& prompt) {
    const LookupRequest request = harness_.RequestOf(prompt);
    auto load = harness_.cache->StartLoad(request, harness_.cache->Lookup(request));
    EXPECT_TRUE(load.ok()) << load.status().ToString();
    return load.ok() ? std::move(load).value() : nullptr;
  }

  TierHarness harness_{kBlock, 64};
  Faults& faults_ = *harness_.faults[0];
  const Tokens prompt_ = RandomTokens(1, kPrompt);
};

}  // namespace kvlink::link
