// Options of `simulate`: parsed, checked, with the defaults that docs/scaling.md uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvlink/status.h"
#include "replay.h"

namespace kvlink::simulate {

struct Options {
  std::string trace, json, markdown;
  uint32_t max_input = 0;  // tokens; longer requests are left out; 0: none are
  std::vector<uint64_t> sizes = {1000, 3000, 10000, 30000, 100000};    // blocks
  std::vector<uint64_t> machine_sizes = {250, 500, 1000, 2000, 4000};  // blocks a machine
  uint64_t cold_factor = 4, remote_factor = 16;                        // of the RAM size
  uint32_t baseline_machines = 48;
  double baseline_load = 0.8;
  bool run_machines = true;
  Machine machine;
};

extern const char* const kUsage;

// kInvalidArgument names the option and the value.
Result<Options> ParseOptions(const std::vector<std::string>& arguments);

}  // namespace kvlink::simulate
