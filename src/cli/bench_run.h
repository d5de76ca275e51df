// Closed loop: `concurrency` users work through a workload; each takes the next conversation and
// sends its turns in order.
//
// A target is whatever answers a turn: an engine in this process or a server behind a URL. The loop
// knows nothing of either, so that both are measured in the same way. Times are what the user sees:
// from before the prompt is built to the last token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/workload.h"
#include "kvlink/kv_shape.h"

namespace kvlink::cli {

struct TurnRequest {
  std::string tenant;
  std::vector<model::ChatMessage> messages;  // the whole history
  uint32_t max_tokens = 0;
  uint32_t n = 1;
  std::vector<uint64_t> seeds;  // one a branch; empty: greedy
};

struct TurnOutcome {
  std::string error;                         // empty: answered
  std::string answer;                        // of the first branch
  std::vector<std::vector<TokenId>> tokens;  // a branch each; empty where the target does not tell
  uint64_t prompt_tokens = 0, cached_tokens = 0, computed_tokens = 0, generated_tokens = 0;
  double ttft_s = 0, latency_s = 0;
  std::vector<double> itl_s;  // between neighbouring tokens of a branch
};

class BenchTarget {
 public:
  virtual ~BenchTarget() = default;
  // Blocks until the turn is answered. Called from many threads at once.
  virtual TurnOutcome Answer(const TurnRequest& request) = 0;
};

struct WorkloadRun {
  std::vector<std::vector<TurnOutcome>> outcomes;  // [conversation][turn]
  double wall_s = 0;
  double cpu_s = 0;  // of this process
};

// A turn that failed ends its conversation: the turns that could not be sent are errors too.
// `done(finished turns)` is called from the users' threads.
WorkloadRun RunWorkload(const Workload& workload, BenchTarget& target, uint32_t concurrency,
                        const std::function<void(size_t)>& done);

}  // namespace kvlink::cli
