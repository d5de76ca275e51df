// GraphExecutor: computes a graph on a fixed number of threads.
//
// A graph of custom nodes alone (every network whose products are packed) is computed by threads of
// our own: pieces of a node go to whoever is free, so that a thread that the system has taken off
// its core holds up one piece and not a share of the work, and waiting threads sleep before long.
// ggml's pool cuts each node evenly and spins, which is slower by half and more as soon as another
// process wants a core. While threads wait for cores even so, small batches run on fewer of them. A
// graph with any node of ggml's own goes to ggml as a whole.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_team.h"
#include "ggml.h"
#include "model/cpu_backend.h"
#include "model/graph_builder.h"

namespace kvlink::model {

// The graph's nodes in its own order, on which the places of their results depend. Empty: a node of
// ggml's own is among them.
std::vector<CustomNode> StepsOf(ggml_cgraph* graph, std::span<const CustomNode> custom);

class GraphExecutor {
 public:
  // kInvalidArgument: num_threads; kNotFound: no ggml backend for this processor.
  static Result<std::unique_ptr<GraphExecutor>> Create(int num_threads);

  int num_threads() const { return team_.num_threads(); }
  Status Run(ggml_cgraph* graph, std::span<const CustomNode> steps);

 private:
  explicit GraphExecutor(int num_threads) : team_(num_threads), active_(num_threads) {}
  void RunSteps();
  void Work(int thread, int num_threads);
  void RunPieces(size_t index, int thread, int num_threads);
  void FetchAhead(size_t index, int thread, int num_threads) const;

  base::ThreadTeam team_;
  int active_;  // threads that small batches run on
  uint32_t runs_until_more_ = 0;
  std::span<const CustomNode> steps_;
  std::vector<std::atomic<uint32_t>> next_piece_;  // by step; one bit a piece where they are few
  std::unique_ptr<Compute> ggml_;                  // made when a graph first needs it
};

}  // namespace kvlink::model
