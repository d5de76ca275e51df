#include "cli/workload.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvlink::cli {
namespace {

using nlohmann::json;

constexpr uint32_t kMaxBranches = 128;

// Reads one line; the error text names the field.
class LineReader {
 public:
  Result<Conversation> Read(const std::string& line) {
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return Bad("not a JSON object");
    Conversation conversation;
    if (!ReadString(object, "id", conversation.id)) return Bad("\"id\" must be a string");
    if (object.contains("tenant") && !ReadString(object, "tenant", conversation.tenant)) {
      return Bad("\"tenant\" must be a string");
    }
    const auto turns = object.find("turns");
    if (turns == object.end() || !turns->is_array() || turns->empty()) {
      return Bad("\"turns\" must be an array of at least one turn");
    }
    for (const json& element : *turns) {
      auto turn = ReadTurn(element);
      if (!turn.ok()) {
        return Bad("turn " + std::to_string(conversation.turns.size()) + ": " +
                   turn.status().message());
      }
      conversation.turns.push_back(*std::move(turn));
    }
    return conversation;
  }

 private:
  static Status Bad(const std::string& message) {
    return Status(StatusCode::kInvalidArgument, message);
  }

  static bool ReadString(const json& object, const char* key, std::string& out) {
    const auto value = object.find(key);
    if (value == object.end() || !value->is_string()) return false;
    out = value->get<std::string>();
    return true;
  }

  static bool ReadCount(const json& object, const char* key, uint32_t most, uint32_t& out) {
    const auto value = object.find(key);
    if (value == object.end() || !value->is_number_integer()) return false;
    const auto number = value->get<int64_t>();
    if (number < 1 || number > int64_t{most}) return false;
    out = static_cast<uint32_t>(number);
    return true;
  }

  static Result<Turn> ReadTurn(const json& object) {
    if (!object.is_object()) return Bad("not a JSON object");
    Turn turn;
    const auto messages = object.find("messages");
    if (messages == object.end() || !messages->is_array() || messages->empty()) {
      return Bad("\"messages\" must be an array of at least one message");
    }
    for (const json& element : *messages) {
      model::ChatMessage message;
      if (!element.is_object() || !ReadString(element, "role", message.role) ||
          !ReadString(element, "content", message.content)) {
        return Bad("a message needs the strings \"role\" and \"content\"");
      }
      turn.messages.push_back(std::move(message));
    }
    if (!ReadCount(object, "max_tokens", std::numeric_limits<int32_t>::max(), turn.max_tokens)) {
      return Bad("\"max_tokens\" must be a whole number of at least 1");
    }
    if (object.contains("n") && !ReadCount(object, "n", kMaxBranches, turn.n)) {
      return Bad("\"n\" must be a whole number from 1 to " + std::to_string(kMaxBranches));
    }
    if (object.contains("assistant")) {
      std::string text;
      if (!ReadString(object, "assistant", text)) return Bad("\"assistant\" must be a string");
      turn.assistant = std::move(text);
    }
    return turn;
  }
};

}  // namespace

size_t Workload::num_turns() const {
  size_t count = 0;
  for (const Conversation& conversation : conversations) count += conversation.turns.size();
  return count;
}

uint32_t Workload::max_n() const {
  uint32_t most = 1;
  for (const Conversation& conversation : conversations) {
    for (const Turn& turn : conversation.turns) most = std::max(most, turn.n);
  }
  return most;
}

Result<Workload> ReadWorkload(std::istream& in, const std::string& source, size_t limit) {
  Workload workload;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (limit != 0 && workload.conversations.size() == limit) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto conversation = LineReader().Read(line);
    if (!conversation.ok()) {
      return Status(StatusCode::kInvalidArgument,
                    source + ":" + std::to_string(number) + ": " + conversation.status().message());
    }
    workload.conversations.push_back(*std::move(conversation));
  }
  if (workload.conversations.empty()) {
    return Status(StatusCode::kInvalidArgument, source + ": no conversations");
  }
  return workload;
}

Result<Workload> ReadWorkloadFile(const std::string& path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(StatusCode::kNotFound, "--workload: cannot read '" + path + "'");
  return ReadWorkload(file, path, limit);
}

uint64_t BranchSeed(std::string_view id, size_t turn, uint32_t branch) {
  uint64_t hash = 0xcbf29ce484222325u;
  const std::string text =
      std::string(id) + '\0' + std::to_string(turn) + '\0' + std::to_string(branch);
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace kvlink::cli
