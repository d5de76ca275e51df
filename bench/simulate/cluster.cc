#include "cluster.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"

namespace kvlink::simulate {
namespace {

// Nearest rank.
double Percentile(std::vector<double> values, double share) {
  const auto rank = static_cast<size_t>(share * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<ptrdiff_t>(std::min(rank, values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

class Cluster {
 public:
  Cluster(const Trace& trace, const ClusterOptions& options)
      : trace_(trace), options_(options), free_at_(options.machines, 0) {
    const TierSizes& sizes = options.sizes;
    if (options.routing == Routing::kSharedRemote && sizes.remote > 0) {
      remote_ = MakeCache(options.policy, trace, sizes.remote);
    }
    if (sizes.ram == 0) return;
    // Only one who sees all requests knows a block's next use.
    const Policy local = options.policy == Policy::kBelady ? Policy::kLru : options.policy;
    for (uint32_t i = 0; i < options.machines; ++i) {
      tiers_.emplace_back(MakeCache(local, trace, sizes.ram),
                          sizes.cold == 0 ? nullptr : MakeCache(local, trace, sizes.cold),
                          remote_.get());
    }
  }

  ClusterResult Run() {
    std::vector<double> ttft_s;
    for (uint32_t i = 0; i < trace_.requests().size(); ++i) ttft_s.push_back(Serve(i));
    ClusterResult result;
    result.p50_ttft_s = Percentile(ttft_s, 0.5);
    result.p95_ttft_s = Percentile(std::move(ttft_s), 0.95);
    const double end = *std::max_element(free_at_.begin(), free_at_.end());
    result.utilisation = busy_s_ / (end * options_.machines);
    result.token_hit_rate = static_cast<double>(total_.hits() * trace_.block_tokens()) /
                            static_cast<double>(trace_.input_tokens());
    result.network_bytes = static_cast<double>(total_.remote + total_.remote_written) *
                           trace_.block_tokens() * options_.machine.kv_bytes_per_token;
    return result;
  }

 private:
  struct Cost {
    double wait_s = 0, load_s = 0, prefill_s = 0;
    double ttft_s() const { return std::max(wait_s, load_s) + prefill_s; }
  };

  Cost CostOn(uint32_t machine, const TraceRequest& request, double now_s,
              const Served& found) const {
    const uint64_t hit_tokens = found.hits() * trace_.block_tokens();
    const uint64_t from = std::min<uint64_t>(hit_tokens, request.input_tokens - 1);
    return {.wait_s = std::max(0.0, free_at_[machine] - now_s),
            .load_s = options_.machine.LoadSeconds(found, trace_.block_tokens()),
            .prefill_s = options_.machine.PrefillSeconds(from, request.input_tokens)};
  }

  // Of equals the one that comes next in turn, so that the first is not everybody's favourite.
  template <typename Score>
  uint32_t Least(uint32_t turn, Score score) const {
    uint32_t best = 0;
    double best_score = 0;
    for (uint32_t i = 0; i < options_.machines; ++i) {
      const uint32_t machine = (turn + i) % options_.machines;
      const double value = score(machine);
      if (i == 0 || value < best_score) {
        best = machine;
        best_score = value;
      }
    }
    return best;
  }

  uint32_t Route(uint32_t number, const TraceRequest& request, double now_s) const {
    switch (options_.routing) {
      case Routing::kRoundRobin:
        return number % options_.machines;
      case Routing::kPrefixAware:
        if (tiers_.empty()) break;
        return Least(number, [&](uint32_t machine) {
          const Served found = tiers_[machine].Find(trace_.PathOf(request));
          return CostOn(machine, request, now_s, found).ttft_s();
        });
      case Routing::kLeastWait:
      case Routing::kSharedRemote:
        break;
    }
    return Least(number,
                 [&](uint32_t machine) { return std::max(0.0, free_at_[machine] - now_s); });
  }

  double Serve(uint32_t number) {
    const TraceRequest& request = trace_.requests()[number];
    const double now_s = request.arrival_s * options_.time_scale;
    const uint32_t machine = Route(number, request, now_s);
    Served served;
    if (!tiers_.empty()) served = tiers_[machine].Serve(trace_.PathOf(request), number);
    total_.Add(served);
    const Cost cost = CostOn(machine, request, now_s, served);
    const double busy_s = cost.prefill_s + request.output_tokens / options_.machine.decode_rate;
    busy_s_ += busy_s;
    free_at_[machine] = now_s + std::max(cost.wait_s, cost.load_s) + busy_s;
    return cost.ttft_s();
  }

  const Trace& trace_;
  const ClusterOptions& options_;
  std::unique_ptr<BlockCache> remote_;
  std::vector<Tiers> tiers_;  // by machine; empty: nothing is reused
  std::vector<double> free_at_;
  Served total_;
  double busy_s_ = 0;
};

}  // namespace

const char* RoutingName(Routing routing) {
  switch (routing) {
    case Routing::kRoundRobin:
      return "round robin";
    case Routing::kLeastWait:
      return "least wait";
    case Routing::kPrefixAware:
      return "prefix-aware";
    case Routing::kSharedRemote:
      return "shared remote tier";
  }
  return "unknown";
}

ClusterResult RunCluster(const Trace& trace, const ClusterOptions& options) {
  KVLINK_CHECK(options.machines > 0 && !trace.requests().empty());
  return Cluster(trace, options).Run();
}

double ColdSeconds(const Trace& trace, const Machine& machine) {
  double seconds = 0;
  for (const TraceRequest& request : trace.requests()) {
    seconds += machine.PrefillSeconds(0, request.input_tokens) +
               request.output_tokens / machine.decode_rate;
  }
  return seconds;
}

uint32_t MachinesNeeded(const Trace& trace, ClusterOptions options, double p95_s, uint32_t most) {
  uint32_t low = 1, high = most + 1;  // the answer is in [low, high]
  while (low < high) {
    options.machines = low + (high - low) / 2;
    if (RunCluster(trace, options).p95_ttft_s <= p95_s) {
      high = options.machines;
    } else {
      low = options.machines + 1;
    }
  }
  return low;
}

}  // namespace kvlink::simulate
