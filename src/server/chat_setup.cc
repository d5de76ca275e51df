#include "server/chat_setup.h"

#include "base/hash.h"

namespace kvlink::server {
namespace {

constexpr size_t kMostToolSets = 1024, kMostOrders = 16;

}  // namespace

bool ToolOrders::IsReordered(const Namespace& ns, const std::string& tools_json) {
  const std::string owner = ns.tenant + '\0' + ns.salt + '\0';
  const uint64_t tools = base::Hash64(owner + WithSortedKeys(tools_json));
  const uint64_t order = base::Hash64(tools_json);
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = seen_.try_emplace(tools);
  if (is_new) {
    order_.push_back(tools);
    if (order_.size() > kMostToolSets) {
      if (order_.front() != tools) seen_.erase(order_.front());
      order_.pop_front();
    }
  }
  auto& orders = seen_[tools];
  if (orders.contains(order)) return false;
  const bool reordered = !orders.empty();
  if (orders.size() < kMostOrders) orders.insert(order);
  return reordered;
}

bool ShowTools(const ToolTemplate& tools, std::string* tools_json,
               std::vector<model::ChatMessage>* messages) {
  if (tools.native) return false;
  const bool in_front = WriteOutTools(*tools_json, messages);
  tools_json->clear();
  return in_front;
}

std::optional<ApiError> SetUpChat(const ToolTemplate& tools, bool sort_keys, ToolOrders* orders,
                                  ApiRequest* request, bool* message_in_front) {
  request->syntax.reasoning = request->split_reasoning;
  if (!request->tools_json.empty()) {
    if (request->sort_tool_keys.value_or(sort_keys)) {
      request->tools_json = WithSortedKeys(request->tools_json);
    } else {
      request->tool_keys_reordered =
          orders->IsReordered(request->generation.ns, request->tools_json);
    }
    request->syntax.tools = tools.syntax;
    if (request->tool_choice.mode == ToolChoice::Mode::kRequired) {
      Result<std::string> grammar = ToolGrammar(tools.syntax, request->tools_json,
                                                request->tool_choice, request->parallel_tool_calls);
      if (!grammar.ok()) return ApiError{400, grammar.status().message(), "tools", ""};
      request->generation.sampling.grammar = *std::move(grammar);
    }
  }
  *message_in_front = ShowTools(tools, &request->tools_json, &request->messages);
  return std::nullopt;
}

}  // namespace kvlink::server
