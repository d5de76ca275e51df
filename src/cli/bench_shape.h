// Memory at the size users run: a workload replayed on the real cache and allocator with pages of a
// large model's shape, and no weights.
//
// Users work in a closed loop as in RunWorkload, in steps: an idle user's prompt is looked up,
// begun and committed whole, then every branch grows by a token a step, until max_tokens. Answers
// are words drawn from the branch's seed; nothing runs, so no row is ever written: pages are
// reserved address space, and what the cache copies on a fork is given back to the system at once.
// Without sharing a request with n branches holds n sequences, as the engine does, begun one by one
// instead of copied. Deterministic: one thread, no clock.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/workload.h"
#include "kvlink/kv_shape.h"
#include "kvlink/options.h"
#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

struct NamedShape {
  std::string name;
  KvShape shape;
};

// A name such as "llama2-7b", or LAYERSxHEADSxDIM (KV heads). kInvalidArgument with the text and
// the known names.
Result<NamedShape> FindShape(std::string_view text, KvType type, uint32_t tokens_per_block);

struct Scenario {
  std::string name;
  Workload workload;
};

// What the product is for, made of words: `customer_service` (users over one policy, four turns),
// `document_questions` (one long document, short questions), `code_branches` (problems behind one
// preamble, four branches each). Lengths as in public data of each kind.
std::vector<Scenario> BuiltInScenarios();

struct ShapeFigures {
  std::string mode;
  uint64_t requests = 0, prompt_tokens = 0, cached_tokens = 0;
  uint64_t peak_kv_bytes = 0;     // pages referenced by live requests, a shared one once
  uint64_t branches_at_peak = 0;  // alive at that time
  uint64_t kept_bytes = 0;        // cached for later requests at the end
  double tracking_share = 0;      // bytes of all structures over bytes of the KV they track
};

// kResourceExhausted: the system refuses the address space.
Result<ShapeFigures> ReplayShape(const Workload& workload, const model::Tokenizer& tokenizer,
                                 const KvShape& shape, Sharing sharing, uint32_t concurrency);

// One scenario's modes, in the order of --modes.
struct ScenarioFigures {
  std::string scenario;
  std::vector<ShapeFigures> modes;
};
std::string ShapeTable(const NamedShape& shape, const std::vector<ScenarioFigures>& scenarios);
nlohmann::ordered_json ShapeJson(const NamedShape& shape,
                                 const std::vector<ScenarioFigures>& scenarios);

}  // namespace kvlink::cli
