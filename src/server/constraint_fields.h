// ConstraintFields: the fields of a request that say what its answer must look like: OpenAI's
// response_format, llama-server's grammar and json_schema, vLLM's guided_* and structured_outputs.
// All become one GBNF grammar.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api_request.h"
#include "server/fields.h"

namespace kvlink::server {

// Reads at most one of them into out->generation.sampling.grammar, and switches similar reuse off.
// `ordered`: the same fields with their keys in the client's order.
void ReadConstraint(Fields& fields, const nlohmann::ordered_json& ordered, ApiRequest* out);

}  // namespace kvlink::server
