// The scenarios of `kvlink bench --shape`, and its figures as a table and as JSON.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "cli/bench_shape.h"
#include "cli/byte_size.h"
#include "cli/kv_budget.h"

namespace kvlink::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWords[] = {
    "account", "answer",  "before", "bring",  "card",   "change", "city",   "count",  "customer",
    "date",    "deliver", "detail", "each",   "file",   "first",  "group",  "home",   "index",
    "item",    "later",   "letter", "line",   "list",   "money",  "month",  "name",   "number",
    "order",   "paper",   "plan",   "policy", "price",  "reason", "record", "report", "return",
    "second",  "shop",    "state",  "system", "ticket", "value",  "week",   "write",  "year"};

// About so many tokens: these words are one each in most vocabularies.
std::string Words(std::mt19937& random, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += kWords[random() % std::size(kWords)];
    text += i % 15 == 14 ? ".\n" : " ";
  }
  return text;
}

Turn Ask(std::vector<model::ChatMessage> messages, uint32_t max_tokens, uint32_t n = 1) {
  Turn turn;
  turn.messages = std::move(messages);
  turn.max_tokens = max_tokens;
  turn.n = n;
  return turn;
}

Workload CustomerService(std::mt19937& random) {
  constexpr size_t kUsers = 20, kTurns = 4, kPolicy = 2150, kQuestion = 12;
  const std::string policy = Words(random, kPolicy);
  Workload workload;
  for (size_t user = 0; user < kUsers; ++user) {
    Conversation conversation{"cs_" + std::to_string(user), "shop", {}};
    for (size_t i = 0; i < kTurns; ++i) {
      std::vector<model::ChatMessage> messages;
      if (i == 0) messages.push_back({"system", policy, ""});
      messages.push_back({"user", Words(random, kQuestion), ""});
      conversation.turns.push_back(Ask(std::move(messages), 48));
    }
    workload.conversations.push_back(std::move(conversation));
  }
  return workload;
}

// Requests that begin with one text and go on with one of their own.
struct OneText {
  std::string name, tenant;
  size_t count, shared_words, own_words;
  uint32_t max_tokens, n = 1;
};

Workload QuestionsOn(const OneText& of, std::mt19937& random) {
  const std::string text = Words(random, of.shared_words);
  Workload workload;
  for (size_t i = 0; i < of.count; ++i) {
    workload.conversations.push_back(
        {of.name + "_" + std::to_string(i),
         of.tenant,
         {Ask({{"user", text + "\n\n" + Words(random, of.own_words), ""}}, of.max_tokens, of.n)}});
  }
  return workload;
}

std::string Row(const ScenarioFigures& scenario) {
  const ShapeFigures& first = scenario.modes.front();
  char text[256];
  std::snprintf(text, sizeof text, "%-22s%10s%16s%10s", scenario.scenario.c_str(),
                Grouped(first.requests).c_str(), Grouped(first.prompt_tokens).c_str(),
                Grouped(first.branches_at_peak).c_str());
  std::string row = text;
  for (const ShapeFigures& mode : scenario.modes) {
    std::snprintf(text, sizeof text, "%14s", FormatByteSize(mode.peak_kv_bytes).c_str());
    row += text;
  }
  if (scenario.modes.size() > 1 && first.peak_kv_bytes > 0) {
    const double left = static_cast<double>(scenario.modes.back().peak_kv_bytes) /
                        static_cast<double>(first.peak_kv_bytes);
    std::snprintf(text, sizeof text, "%9.1f %%", 100 * (left - 1));
    row += text;
  }
  std::snprintf(text, sizeof text, "%14s",
                FormatByteSize(scenario.modes.back().kept_bytes).c_str());
  return row + text + "\n";
}

}  // namespace

std::vector<Scenario> BuiltInScenarios() {
  std::mt19937 random(1);
  std::vector<Scenario> scenarios;
  scenarios.push_back({"customer_service", CustomerService(random)});
  const OneText document{.name = "dq",
                         .tenant = "office",
                         .count = 10,
                         .shared_words = 5000,
                         .own_words = 20,
                         .max_tokens = 64};
  scenarios.push_back({"document_questions", QuestionsOn(document, random)});
  const OneText code{.name = "cb",
                     .tenant = "ide",
                     .count = 10,
                     .shared_words = 1950,
                     .own_words = 150,
                     .max_tokens = 64,
                     .n = 4};
  scenarios.push_back({"code_branches", QuestionsOn(code, random)});
  return scenarios;
}

std::string ShapeTable(const NamedShape& named, const std::vector<ScenarioFigures>& scenarios) {
  const KvShape& shape = named.shape;
  char text[256];
  std::snprintf(text, sizeof text,
                "%s: %u layers, %u KV heads of %u, %s: %s a token, %s a block of %u tokens\n",
                named.name.c_str(), shape.num_layers, shape.num_kv_heads, shape.head_dim,
                KvTypeName(shape.type), FormatByteSize(shape.token_bytes()).c_str(),
                FormatByteSize(shape.page_bytes()).c_str(), shape.tokens_per_block);
  std::string table = text;
  if (scenarios.empty()) return table;
  std::snprintf(text, sizeof text, "%-22s%10s%16s%10s", "peak KV of live users", "requests",
                "prompt tokens", "branches");
  table += text;
  for (const ShapeFigures& mode : scenarios.front().modes) {
    std::snprintf(text, sizeof text, "%14s", mode.mode.c_str());
    table += text;
  }
  if (scenarios.front().modes.size() > 1) table += "      change";
  table += "   kept at end\n";
  for (const ScenarioFigures& scenario : scenarios) table += Row(scenario);
  return table;
}

ordered_json ShapeJson(const NamedShape& named, const std::vector<ScenarioFigures>& scenarios) {
  const KvShape& shape = named.shape;
  ordered_json json = {{"layers", shape.num_layers},
                       {"kv_heads", shape.num_kv_heads},
                       {"head_dim", shape.head_dim},
                       {"kv_type", KvTypeName(shape.type)},
                       {"tokens_per_block", shape.tokens_per_block},
                       {"page_bytes", shape.page_bytes()},
                       {"scenarios", ordered_json::object()}};
  for (const ScenarioFigures& scenario : scenarios) {
    ordered_json& modes = json["scenarios"][scenario.scenario];
    for (const ShapeFigures& mode : scenario.modes) {
      modes[mode.mode] = {{"requests", mode.requests},
                          {"prompt_tokens", mode.prompt_tokens},
                          {"cached_tokens", mode.cached_tokens},
                          {"peak_kv_bytes", mode.peak_kv_bytes},
                          {"branches_at_peak", mode.branches_at_peak},
                          {"cached_bytes", mode.kept_bytes},
                          {"tracking_share", mode.tracking_share}};
    }
  }
  return json;
}

}  // namespace kvlink::cli
