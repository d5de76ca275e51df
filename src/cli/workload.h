// Workload: conversations to replay against an engine or a server, one JSON object a line:
//
//     {"id": "cs_0", "tenant": "shop", "turns": [{"messages": [{"role": "user", "content": "..."}],
//      "max_tokens": 48, "n": 4, "assistant": "..."}]}
//
// A client sends the turns of a line in order. Before the next turn it appends `assistant` where
// present, else the answer. docs/bench.md has the meaning of every field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

struct Turn {
  std::vector<model::ChatMessage> messages;
  uint32_t max_tokens = 0;
  uint32_t n = 1;
  std::optional<std::string> assistant;
};

struct Conversation {
  std::string id, tenant;
  std::vector<Turn> turns;
};

struct Workload {
  std::vector<Conversation> conversations;
  size_t num_turns() const;
  uint32_t max_n() const;
};

// The first `limit` lines; 0: all. Errors name `source`, the line and the field.
Result<Workload> ReadWorkload(std::istream& in, const std::string& source, size_t limit);
Result<Workload> ReadWorkloadFile(const std::string& path, size_t limit);

// Seed of a sampled branch: 64-bit FNV-1a over id, turn and branch. The same in every run and on
// every machine.
uint64_t BranchSeed(std::string_view id, size_t turn, uint32_t branch);

}  // namespace kvlink::cli
