// ChatSetup: from a parsed chat request to what the engine and the answer's parser need: tools
// shown in the way that the model at hand takes them, calls forced where asked for, and the syntax
// by which the answer is taken apart.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/api_request.h"

namespace kvlink::server {

// Which orders of keys the same tools came in. Tools stand in front of the conversation, so another
// order shares nothing with what is cached; who wonders why is told. Bounded; thread-safe.
class ToolOrders {
 public:
  // Whether these tools came before (same tenant and salt), but never in this order. Notes them.
  bool IsReordered(const Namespace& ns, const std::string& tools_json);

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::unordered_set<uint64_t>> seen_;  // sorted -> as they came
  std::deque<uint64_t> order_;
};

// Tools as the model at hand is shown them; returns whether a message was put in front.
bool ShowTools(const ToolTemplate& tools, std::string* tools_json,
               std::vector<model::ChatMessage>* messages);

// Requires: request->chat, the tenant filled in. `sort_keys`: the server's option.
std::optional<ApiError> SetUpChat(const ToolTemplate& tools, bool sort_keys, ToolOrders* orders,
                                  ApiRequest* request, bool* message_in_front);

}  // namespace kvlink::server
