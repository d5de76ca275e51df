// Raw figures of the engine's operations, through Runner and Cache alone: what llama-bench and
// llama-batched-bench measure.
//
//     prefill:N     N prompt tokens into an empty context (llama-bench -p N -n 0)
//     decode:N      one sequence after N tokens (llama-bench -p 0 -n T -d N)
//     shared:BxN    B sequences at once over one context of N tokens (llama-batched-bench -pps)
//     distinct:BxN  B sequences at once, each with a copy of it (llama-batched-bench)
//
// Random tokens, no sampling, as those tools do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

struct OpSpec {
  enum class Kind { kPrefill, kDecode, kShared, kDistinct } kind = Kind::kPrefill;
  uint32_t sequences = 1;
  uint32_t context = 0;  // tokens in place before decoding; for kPrefill the tokens computed
  std::string name;      // as written
};

// "prefill:512,shared:10x2048". kInvalidArgument names the part that cannot be read.
Result<std::vector<OpSpec>> ParseOps(std::string_view list);

struct OpsOptions {
  int threads = 1;
  uint32_t chunk = 512;         // rows of a prefill step
  uint32_t decode_tokens = 64;  // per sequence and round
  uint32_t rounds = 7;
};

struct OpFigures {
  std::string name;
  std::vector<double> tok_per_s;  // a round each, of wall time
  std::vector<double> cpu_us_per_tok;
};

// `done(rounds finished of all)` after each round.
Result<std::vector<OpFigures>> MeasureOps(const model::Model& model, const std::vector<OpSpec>& ops,
                                          const OpsOptions& options,
                                          const std::function<void(size_t)>& done);

}  // namespace kvlink::cli
