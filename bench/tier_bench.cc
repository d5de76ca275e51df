// What storing and loading blocks costs, per tier: CPU time of this process and elapsed time.
//
//   tier_bench cold DIRECTORY|remote URL [BLOCK_BYTES [BLOCKS [ROUNDS]]]
//
// Each round puts BLOCKS new blocks (default 100 of 720 KiB, random bytes) through a TierStore and
// drains it, then loads them all; prints a Markdown row with the medians of the rounds, and what
// the store expects a load of one block to take. DIRECTORY must be new or a cold store; what was
// put is removed at the end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "tier/cold_tier.h"
#include "tier/remote_tier.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TimePoint InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Costs {
  std::vector<double> cpu, wall;  // seconds a round
  void Print(const char* what, double mib, double blocks) const {
    std::printf("| %s | %.2f | %.2f | %.0f |\n", what, Median(cpu) / mib * 1e3,
                Median(wall) / blocks * 1e3, mib / Median(wall) * 1.048576);
  }
};

Result<std::unique_ptr<BlockTier>> Open(const std::string& kind, const std::string& where) {
  if (kind == "cold") return OpenColdTier({.directory = where});
  Result<RemoteTierOptions> options = ParseRemoteUrl(where);
  if (!options.ok()) return options.status();
  return OpenRemoteTier(*options);
}

class Bench {
 public:
  Bench(std::unique_ptr<BlockTier> tier, size_t bytes, size_t blocks)
      : blocks_(blocks), payload_(bytes) {
    base::Random random(1);
    for (std::byte& byte : payload_) byte = static_cast<std::byte>(random.Next());
    std::vector<std::unique_ptr<BlockTier>> tiers;
    tiers.push_back(std::move(tier));
    TierStoreOptions options;
    options.queue_bytes = (bytes + 1000) * blocks;
    store_ = TierStore::Create(options, std::move(tiers));
  }

  bool Round(uint64_t round) {
    std::vector<BlockName> names(blocks_);
    for (size_t i = 0; i < blocks_; ++i) {
      names[i].key = base::Hash128("tier_bench " + std::to_string(round * blocks_ + i));
      keys_.push_back(names[i].key);
    }
    const double cpu = CpuSeconds(), wall = WallSeconds();
    for (const BlockName& name : names) {
      if (!store_->Put({.name = name, .payload = payload_, .cost_us = 50000})) return false;
    }
    if (!store_->Drain(InAMinute())) return false;
    const double cpu_put = CpuSeconds(), wall_put = WallSeconds();
    for (size_t first = 0; first < blocks_; first += 16) {
      std::vector<Want> wants;
      for (size_t i = first; i < std::min(first + 16, blocks_); ++i)
        wants.push_back({names[i], {}});
      const auto ticket = store_->Load(wants, InAMinute(), {});
      if (!ticket->WaitUntil(InAMinute()) || ticket->num_leading() != wants.size()) return false;
    }
    put_.cpu.push_back(cpu_put - cpu);
    put_.wall.push_back(wall_put - wall);
    load_.cpu.push_back(CpuSeconds() - cpu_put);
    load_.wall.push_back(WallSeconds() - wall_put);
    return true;
  }

  void Print() {
    const double mib =
        static_cast<double>(payload_.size()) / 1048576 * static_cast<double>(blocks_);
    std::puts("| | CPU ms a MiB | ms a block | MB/s |\n|---|---|---|---|");
    put_.Print("put", mib, static_cast<double>(blocks_));
    load_.Print("load", mib, static_cast<double>(blocks_));
    std::printf("expected of a load of one block: %.2f ms\n",
                store_->LoadCostUs(0, 1, payload_.size()) / 1e3);
    store_->Remove(keys_);
    (void)store_->Drain(InAMinute());
  }
  std::string LastError() const { return store_->Stats(0).last_error; }

 private:
  const size_t blocks_;
  std::vector<std::byte> payload_;
  std::vector<BlockKey> keys_;
  std::unique_ptr<TierStore> store_;
  Costs put_, load_;
};

int Main(int argc, char** argv) {
  const std::string kind = argc > 2 ? argv[1] : "";
  if (kind != "cold" && kind != "remote") {
    std::fputs("tier_bench cold DIRECTORY|remote URL [BLOCK_BYTES [BLOCKS [ROUNDS]]]\n", stderr);
    return 2;
  }
  const auto number = [&](int i, size_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  Result<std::unique_ptr<BlockTier>> tier = Open(kind, argv[2]);
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.status().ToString().c_str());
    return 1;
  }
  Bench bench(std::move(*tier), number(3, 737280), number(4, 100));
  for (uint64_t round = 0; round < number(5, 5); ++round) {
    if (!bench.Round(round)) {
      std::fprintf(stderr, "round %d: %s\n", static_cast<int>(round), bench.LastError().c_str());
      return 1;
    }
  }
  bench.Print();
  return 0;
}

}  // namespace
}  // namespace kvlink::tier

int main(int argc, char** argv) { return kvlink::tier::Main(argc, argv); }
