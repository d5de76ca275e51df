// What the tests of random operations have in common: branches that compute a little at a time, the
// account of what they refer to, and threads that look on meanwhile.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "link/cache_harness.h"

namespace kvlink::link {

// What sequences refer to, counted by looking at their tables: a page or difference block once,
// however many have it.
class Referenced {
 public:
  void Add(const Sequence& sequence) {
    for (const BlockView& block : sequence.table().blocks) {
      pages_.insert(block.page);
      if (block.difference != nullptr) cells_.insert(block.difference->cells);
    }
  }
  uint64_t pages() const { return pages_.size(); }
  uint64_t BytesBy(const CacheOptions& options) const {
    const KvShape& shape = options.shape;
    const auto rows =
        static_cast<uint32_t>(options.cow_copy_threshold * shape.tokens_per_block + 1e-9);
    return pages_.size() * shape.page_bytes() +
           cells_.size() * DifferenceView::CellsBytes(shape, rows);
  }

 private:
  std::set<const void*> pages_, cells_;
};

struct LiveBranch {
  Branch branch;
  bool store = true;
  uint32_t max_length = 0;  // it generates up to here

  // Some of the prompt's rows, or else a token of the answer, while there is anything to do.
  template <typename Random>
  Status Advance(Random& random) {
    const auto known = static_cast<uint32_t>(branch.tokens().size());
    if (branch.ready() < known) {
      branch.Compute(1 + static_cast<uint32_t>(random.Below(known - branch.ready())));
    } else if (known < max_length) {
      return branch.Generate(static_cast<TokenId>(random.Below(3)));
    }
    return Status::Ok();
  }
  template <typename Random>
  Result<LiveBranch> Fork(Random& random) {
    const auto at =
        static_cast<uint32_t>(random.OneIn(2) ? branch.ready() : random.Below(branch.ready() + 1));
    const auto max_new = static_cast<uint32_t>(random.Below(12));
    auto forked = branch.Fork(at, max_new);
    if (!forked.ok()) return forked.status();
    EXPECT_EQ(forked->ready(), at);
    return LiveBranch{std::move(forked).value(), store, at + max_new};
  }
};

// Threads that look on, each with choices of its own, again and again until this object goes.
class Onlookers {
 public:
  template <typename Look>
  Onlookers(uint64_t threads, const Look& look) {
    for (uint64_t seed = 0; seed < threads; ++seed) {
      threads_.emplace_back([this, seed, look] {
        base::Random random(seed);
        while (!stop_) {
          look(random);
          std::this_thread::yield();  // or they could keep the writer out for long
        }
      });
    }
  }
  ~Onlookers() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Onlookers(const Onlookers&) = delete;
  Onlookers& operator=(const Onlookers&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Names of tests whose parameter is a tuple of a setting and a seed.
inline constexpr auto kSettingAndSeed = [](const auto& test) {
  return std::string(std::get<0>(test.param).name) + std::to_string(std::get<1>(test.param));
};

}  // namespace kvlink::link
