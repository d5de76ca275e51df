// What the tests of tiers share: blocks that follow from a number, tiers against a naive map, and a
// directory that goes away.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tier/block_codec.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

inline TimePoint In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}
inline TimePoint Soon() { return In(std::chrono::seconds(20)); }

inline BlockKey NumberedKey(uint64_t n) { return base::Hash128("block " + std::to_string(n)); }

// Bytes that follow from the seed.
inline std::string RandomBytes(uint64_t seed, size_t size) {
  base::Random random(seed);
  std::string bytes(size, '\0');
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size - at));
  }
  return bytes;
}

// A sound block number n of `size` bytes of payload, child of number n - 1 (n > 0), as a tier keeps
// it. Owns what its BlockName shows.
struct NumberedBlock {
  explicit NumberedBlock(uint64_t n, size_t size = 1000)
      : tokens{static_cast<TokenId>(n), 7, -1}, payload(RandomBytes(n, size)) {
    put.name.key = NumberedKey(n);
    if (n > 0) put.name.parent = NumberedKey(n - 1);
    put.name.identity[0] = static_cast<std::byte>(n);
    put.name.tokens = tokens;
    put.valid_rows = 3;
    put.payload = std::as_bytes(std::span(payload));
    put.cost_us = 1000;
  }
  NumberedBlock(const NumberedBlock&) = delete;
  NumberedBlock& operator=(const NumberedBlock&) = delete;
  std::string Encoded(std::string_view model = "model") const {
    return EncodeBlock(put, base::Hash128(model), Compression::kNone);
  }
  std::vector<TokenId> tokens;
  std::string payload;
  PutBlock put;
};

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvlink-tier-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<TierAnswer> PutOne(BlockTier& tier, const BlockKey& key, std::string_view bytes,
                                      const BlockKey& parent = {}, double cost_us = 0) {
  const TierPut put{key, parent, cost_us, bytes};
  return tier.Put({&put, 1}, Soon());
}
inline TierAnswer GetOne(BlockTier& tier, const BlockKey& key) {
  return std::move(tier.Get({&key, 1}, Soon())[0]);
}

// Until `condition` holds; false when it did not within 20 s.
inline bool Eventually(const std::function<bool()>& condition) {
  for (const TimePoint end = Soon(); std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

// Random Puts, Gets, Contains and Removes, in batches, against a map. The tier must not evict.
// `restart`, when given, replaces the tier now and then by one that holds the same.
inline void CompareWithNaiveMap(std::unique_ptr<BlockTier>& tier, uint64_t seed, int steps,
                                size_t max_bytes, const std::function<void()>& restart = {}) {
  constexpr uint64_t kKeys = 40;
  base::Random random(seed);
  std::map<BlockKey, std::string> naive;
  for (int step = 0; step < steps; ++step) {
    std::vector<BlockKey> keys;
    for (uint64_t i = random.Below(6); i <= 5; ++i) {
      const BlockKey key = NumberedKey(random.Below(kKeys));
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
    const uint64_t what = random.Below(restart ? 41 : 40);
    std::vector<TierAnswer> answers;
    if (what < 15) {
      std::vector<TierPut> items;
      for (const BlockKey& key : keys) {
        naive[key] = RandomBytes(random.Next(), random.Below(max_bytes));
        items.push_back({key, {}, 1, naive[key]});
      }
      answers = tier->Put(items, Soon());
      ASSERT_EQ(answers.size(), keys.size());
      for (const TierAnswer& answer : answers) ASSERT_EQ(answer.outcome, Outcome::kOk);
    } else if (what < 35) {
      answers = what < 30 ? tier->Get(keys, Soon()) : tier->Contains(keys, Soon());
      ASSERT_EQ(answers.size(), keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto found = naive.find(keys[i]);
        ASSERT_EQ(answers[i].outcome, found == naive.end() ? Outcome::kMiss : Outcome::kOk)
            << "step " << step << ", " << tier->LastError();
        if (what < 30 && found != naive.end()) {
          ASSERT_EQ(answers[i].bytes, found->second);
        }
      }
    } else if (what < 40) {
      answers = tier->Remove(keys, Soon());
      ASSERT_EQ(answers.size(), keys.size());
      for (const BlockKey& key : keys) naive.erase(key);
    } else {
      restart();
    }
  }
  std::map<BlockKey, uint64_t> listed;
  ASSERT_TRUE(tier->List([&listed](const TierEntry& entry) {
                    listed[entry.key] = entry.bytes;
                    return true;
                  })
                  .ok());
  ASSERT_EQ(listed.size(), naive.size());
  for (const auto& [key, bytes] : naive) ASSERT_EQ(listed[key], bytes.size());
}

}  // namespace kvlink::tier
