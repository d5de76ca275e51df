// BenchFlags: what the command line of `kvlink bench` says.
//
// Which options go together is checked where they are used: what is measured (--workload,
// --synthetic or --shape) decides which of the others mean anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/tier_setup.h"

namespace CLI {
class App;
}

namespace kvlink::cli {

struct BenchFlags {
  std::string model, workload, json, kv_memory, kv_type = "auto", url, model_name, api_key, tls_ca,
                                                synthetic;
  std::string endpoint = "chat", similar = "on", similar_mode, calibration;
  std::vector<std::string> shapes;
  std::vector<std::string> modes = {"off", "exact"};
  uint32_t concurrency = 10, ctx = 0, chunk = 512, rounds = 7, decode_tokens = 64;
  size_t limit = 0;
  int threads = 0;
  double timeout_s = 600;
  TierFlags tiers;
  bool ignore_eos = false, quiet = false, foreign_calibration = false;
};

void AddBenchOptions(CLI::App& app, BenchFlags& flags);

}  // namespace kvlink::cli
