// Cluster: a trace through several machines behind a router, as queues.
//
// Each machine does one thing at a time, first come, first served: a request's prefill, then its
// answer, at the rates of Machine. Loading from disk or network goes on while the request waits.
//   TTFT = max(wait, load) + prefill
// Real machines batch; the decode rate is therefore that of many sequences together, and an answer
// takes the machine as long as its tokens are of that rate. The model is for comparing
// configurations of the same machines, not for predicting seconds.
#pragma once

#include <cstdint>

#include "replay.h"

namespace kvlink::simulate {

enum class Routing : uint8_t {
  kRoundRobin,
  kLeastWait,     // the machine that is free first
  kPrefixAware,   // the least wait + load + prefill: what a router knows from KV events and loads
  kSharedRemote,  // least wait, and one remote tier for all machines
};
const char* RoutingName(Routing routing);

struct ClusterOptions {
  Routing routing = Routing::kLeastWait;
  Policy policy = Policy::kKvlink;  // an online one, but for the remote tier
  uint32_t machines = 1;
  TierSizes sizes;        // of each machine; ram 0: nothing is reused. `remote`: of all together
  double time_scale = 1;  // arrival times are multiplied by it
  Machine machine;
};

struct ClusterResult {
  double p50_ttft_s = 0, p95_ttft_s = 0;
  double utilisation = 0;  // busy time of the machines until the last one is done
  double token_hit_rate = 0;
  double network_bytes = 0;  // loads and stores
};

ClusterResult RunCluster(const Trace& trace, const ClusterOptions& options);

// Busy seconds that the whole trace takes one machine that reuses nothing.
double ColdSeconds(const Trace& trace, const Machine& machine);

// The fewest machines, at most `most`, whose 95th percentile of TTFT is at most `p95_s`, by
// bisection (more machines are taken to be no slower). `most` + 1: not even `most` are enough.
uint32_t MachinesNeeded(const Trace& trace, ClusterOptions options, double p95_s, uint32_t most);

}  // namespace kvlink::simulate
