#include "replay.h"

#include <algorithm>

namespace kvlink::simulate {

void Served::Add(const Served& other) {
  ram += other.ram;
  cold += other.cold;
  remote += other.remote;
  cold_written += other.cold_written;
  remote_written += other.remote_written;
}

Served Tiers::Find(std::span<const NodeId> path) const {
  Served found;
  found.ram = PrefixHits(*ram_, path);
  const uint64_t cold = cold_ ? PrefixHits(*cold_, path) : 0;
  const uint64_t remote = remote_ != nullptr ? PrefixHits(*remote_, path) : 0;
  found.cold = cold > found.ram ? cold - found.ram : 0;
  const uint64_t local = found.ram + found.cold;
  found.remote = remote > local ? remote - local : 0;
  return found;
}

Served Tiers::Serve(std::span<const NodeId> path, uint32_t now) {
  Served served = Find(path);
  ram_->Use(path, now);
  if (cold_) served.cold_written = cold_->Use(path, now);
  if (remote_ != nullptr) served.remote_written = remote_->Use(path, now);
  return served;
}

double Machine::PrefillSeconds(uint64_t from, uint64_t to) const {
  const auto rows = static_cast<double>(to - from);
  const double position = static_cast<double>(from + to) / 2;
  return rows / prefill_rate * (1 + position / dear_position);
}

double Machine::LoadSeconds(const Served& served, uint32_t block_tokens) const {
  const double block_bytes = kv_bytes_per_token * block_tokens;
  return static_cast<double>(served.cold) * block_bytes / disk_bytes_per_s +
         static_cast<double>(served.remote) * block_bytes / network_bytes_per_s;
}

ReplayResult Replay(const Trace& trace, Policy policy, const TierSizes& sizes,
                    const Machine& machine) {
  const auto make = [&](uint64_t size) {
    return size == 0 ? nullptr : MakeCache(policy, trace, size);
  };
  const std::unique_ptr<BlockCache> remote = make(sizes.remote);
  Tiers tiers(make(sizes.ram), make(sizes.cold), remote.get());
  ReplayResult result;
  uint32_t now = 0;
  for (const TraceRequest& request : trace.requests()) {
    const Served served = tiers.Serve(trace.PathOf(request), now++);
    const uint64_t hit_tokens = served.hits() * trace.block_tokens();
    result.blocks.Add(served);
    result.input_tokens += request.input_tokens;
    result.hit_tokens += hit_tokens;
    // The last token's row always runs: its logits are the answer's first.
    const uint64_t from = std::min<uint64_t>(hit_tokens, request.input_tokens - 1);
    result.prefill_s += machine.PrefillSeconds(from, request.input_tokens);
    result.cold_prefill_s += machine.PrefillSeconds(0, request.input_tokens);
  }
  return result;
}

}  // namespace kvlink::simulate
