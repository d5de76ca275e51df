// ToolFields: the fields of a chat request that are about tools: tools, tool_choice,
// parallel_tool_calls, and the calls in earlier messages.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api_request.h"
#include "server/fields.h"

namespace kvlink::server {

// After ReadConstraint. Similar reuse is switched off where tools may be called.
void ReadTools(Fields& fields, const nlohmann::ordered_json& ordered, ApiRequest* out);
// Fails unless `tool_calls` of a message, where given, have names and arguments.
void CheckToolCalls(Fields& message);

}  // namespace kvlink::server
