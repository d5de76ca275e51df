#include "trace.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvlink::simulate {
namespace {

using Json = nlohmann::json;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipFile = std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip>;

// False at the end of the file. Plain files are read as they are.
bool ReadLine(gzFile file, std::string* line) {
  line->clear();
  std::array<char, 1 << 16> buffer;
  while (gzgets(file, buffer.data(), static_cast<int>(buffer.size())) != nullptr) {
    line->append(buffer.data());
    if (line->back() == '\n') break;
  }
  return !line->empty();
}

bool TakeCount(const Json& object, const char* name, uint32_t* value) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return false;
  const auto number = found->get<uint64_t>();
  *value = static_cast<uint32_t>(number);
  return number <= 0xffffffffu;
}

// What is wrong with the line, or nothing.
std::string ParseLine(const std::string& line, double* arrival_s, uint32_t* input, uint32_t* output,
                      std::vector<uint64_t>* ids) {
  const Json object = Json::parse(line, nullptr, false);
  if (!object.is_object()) return "not a JSON object";
  const auto time = object.find("timestamp");
  if (time == object.end() || !time->is_number()) return "no number 'timestamp'";
  *arrival_s = time->get<double>() / 1000;
  if (!std::isfinite(*arrival_s)) return "'timestamp' is not finite";
  if (!TakeCount(object, "input_length", input)) return "no count 'input_length'";
  if (!TakeCount(object, "output_length", output)) return "no count 'output_length'";
  const auto list = object.find("hash_ids");
  if (list == object.end() || !list->is_array()) return "no list 'hash_ids'";
  ids->clear();
  for (const Json& id : *list) {
    if (!id.is_number_unsigned()) return "'hash_ids' holds something that is not a count";
    ids->push_back(id.get<uint64_t>());
  }
  return {};
}

}  // namespace

Status Trace::Add(double arrival_s, uint32_t input_tokens, uint32_t output_tokens,
                  std::span<const uint64_t> ids) {
  if (input_tokens == 0) return {StatusCode::kInvalidArgument, "'input_length' is 0"};
  if (!requests_.empty() && arrival_s < requests_.back().arrival_s) {
    return {StatusCode::kInvalidArgument, "'timestamp' is before the last request's"};
  }
  TraceRequest request{.arrival_s = arrival_s,
                       .input_tokens = input_tokens,
                       .output_tokens = output_tokens,
                       .first = static_cast<uint32_t>(paths_.size())};
  request.num_blocks =
      static_cast<uint32_t>(std::min<size_t>(ids.size(), input_tokens / block_tokens_));
  NodeId parent = kNoNode;
  for (uint32_t i = 0; i < request.num_blocks; ++i) {
    const auto [at, is_new] =
        nodes_.try_emplace({parent, ids[i]}, static_cast<NodeId>(parents_.size()));
    if (is_new) {
      parents_.push_back(parent);
      depths_.push_back(i);
    }
    parent = at->second;
    paths_.push_back(parent);
  }
  longest_path_ = std::max(longest_path_, request.num_blocks);
  input_tokens_ += input_tokens;
  requests_.push_back(request);
  return Status::Ok();
}

std::vector<std::vector<uint32_t>> Trace::UsersOfNodes() const {
  std::vector<std::vector<uint32_t>> users(num_nodes());
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    for (const NodeId node : PathOf(requests_[i])) users[node].push_back(i);
  }
  return users;
}

Result<Trace> ReadTrace(const std::string& path, uint32_t max_input) {
  const GzipFile file(gzopen(path.c_str(), "rb"));
  if (!file) return Status(StatusCode::kNotFound, "cannot read the trace '" + path + "'");
  Trace trace;
  std::string line;
  std::vector<uint64_t> ids;
  for (uint64_t number = 1; ReadLine(file.get(), &line); ++number) {
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    double arrival_s = 0;
    uint32_t input = 0, output = 0;
    std::string problem = ParseLine(line, &arrival_s, &input, &output, &ids);
    if (problem.empty() && (max_input == 0 || input <= max_input)) {
      problem = trace.Add(arrival_s, input, output, ids).message();
    }
    if (!problem.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    path + ":" + std::to_string(number) + ": " + problem);
    }
  }
  int error = Z_OK;
  const char* message = gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) {
    return Status(StatusCode::kDataLoss, path + ": " + message);
  }
  if (trace.requests().empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the trace '" + path + "' has no request to replay");
  }
  return trace;
}

}  // namespace kvlink::simulate
