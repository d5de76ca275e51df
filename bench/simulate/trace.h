// Trace: the requests of a service, their prompts named by block. Mooncake's public traces are such
// files: one JSON object a line, plain or gzipped,
//
//   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, ...]}
//
// where an id stands for a block of 512 tokens and for all before it. Here a block is a node of a
// tree: (parent, id), so that a prefix is a path whatever the ids are.
//
// Only full blocks can be shared: the id of a prompt's last, partial block never stands for the
// rows of a longer one, so a trace cannot say what of it would hit. Answers are not in the trace
// by block either; a later turn that contains them meets new blocks there.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvlink/status.h"

namespace kvlink::simulate {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = 0xffffffffu;

struct TraceRequest {
  double arrival_s = 0;
  uint32_t input_tokens = 0, output_tokens = 0;
  uint32_t first = 0, num_blocks = 0;  // of the trace's paths: its full blocks
};

class Trace {
 public:
  explicit Trace(uint32_t block_tokens = 512) : block_tokens_(block_tokens) {}

  // kInvalidArgument: arrival before the last request's, or no input.
  Status Add(double arrival_s, uint32_t input_tokens, uint32_t output_tokens,
             std::span<const uint64_t> ids);

  std::span<const TraceRequest> requests() const { return requests_; }
  // Blocks of a request, from the root on.
  std::span<const NodeId> PathOf(const TraceRequest& request) const {
    return std::span(paths_).subspan(request.first, request.num_blocks);
  }
  uint32_t block_tokens() const { return block_tokens_; }
  size_t num_nodes() const { return parents_.size(); }
  NodeId ParentOf(NodeId node) const { return parents_[node]; }
  uint32_t DepthOf(NodeId node) const { return depths_[node]; }
  uint32_t longest_path() const { return longest_path_; }
  uint64_t input_tokens() const { return input_tokens_; }
  // Requests that use a node, ascending, one list a node.
  std::vector<std::vector<uint32_t>> UsersOfNodes() const;

 private:
  uint32_t block_tokens_;
  std::vector<TraceRequest> requests_;
  std::vector<NodeId> paths_;
  std::vector<NodeId> parents_;
  std::vector<uint32_t> depths_;
  std::map<std::pair<NodeId, uint64_t>, NodeId> nodes_;
  uint32_t longest_path_ = 0;
  uint64_t input_tokens_ = 0;
};

// Requests with more than `max_input` tokens are left out; 0: none are. kNotFound: no such file;
// kInvalidArgument with file and line: not in the format, or no request is left.
Result<Trace> ReadTrace(const std::string& path, uint32_t max_input = 0);

}  // namespace kvlink::simulate
