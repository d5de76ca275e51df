#include "model/graph_executor.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace kvlink::model {
namespace {

// Rows from which a node is long: its pieces outlast a barrier's spinning.
constexpr int64_t kManyRows = 32;

// A thread that slept at a barrier lost as much time as its share of several small nodes. When it
// happens at one barrier of so many, half the threads do better, until it is time to try again.
constexpr size_t kBarriersPerSleep = 16;
constexpr uint32_t kRunsUntilMore = 32;

// More pieces even the threads out; but a claim costs as much as reading a few weights, so it needs
// rows to pay.
uint32_t NumPieces(const CustomNode& step, int num_threads) {
  if (num_threads == 1) return 1;
  const uint32_t per_thread = step.tensor->ne[1] >= kManyRows ? 4 : 1;
  return std::min(step.units, static_cast<uint32_t>(num_threads) * per_thread);
}

}  // namespace

std::vector<CustomNode> StepsOf(ggml_cgraph* graph, std::span<const CustomNode> custom) {
  std::unordered_map<const ggml_tensor*, const CustomNode*> by_tensor;
  for (const CustomNode& node : custom) by_tensor[node.tensor] = &node;
  std::vector<CustomNode> steps;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE) continue;  // nothing to compute
    const auto found = by_tensor.find(node);
    if (found == by_tensor.end()) return {};
    steps.push_back(*found->second);
  }
  return steps;
}

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::Create(int num_threads) {
  if (num_threads < 1 || num_threads > GGML_MAX_N_THREADS) {
    return Status(StatusCode::kInvalidArgument, "threads: " + std::to_string(num_threads) +
                                                    " is not between 1 and " +
                                                    std::to_string(GGML_MAX_N_THREADS));
  }
  if (auto cpu = CpuBackend::Load(); !cpu.ok()) return cpu.status();
  return std::unique_ptr<GraphExecutor>(new GraphExecutor(num_threads));
}

Status GraphExecutor::Run(ggml_cgraph* graph, std::span<const CustomNode> steps) {
  if (!steps.empty()) {
    if (next_piece_.size() < steps.size()) {
      next_piece_ = std::vector<std::atomic<uint32_t>>(steps.size());
    }
    for (auto& next : next_piece_) next.store(0, std::memory_order_relaxed);
    steps_ = steps;
    RunSteps();
    return Status::Ok();
  }
  if (ggml_ == nullptr) {
    auto ggml = Compute::Create(num_threads());
    if (!ggml.ok()) return ggml.status();
    ggml_ = *std::move(ggml);
  }
  if (ggml_backend_graph_compute(ggml_->backend(), graph) != GGML_STATUS_SUCCESS) {
    return Status(StatusCode::kInternal, "ggml did not compute the graph");
  }
  return Status::Ok();
}

void GraphExecutor::RunSteps() {
  const bool small = steps_.front().tensor->ne[1] < kManyRows;
  const int active = small ? active_ : team_.num_threads();
  team_.Run(active, [this, active](int thread) { Work(thread, active); });
  if (!small) return;
  if (team_.num_sleeps() * kBarriersPerSleep > steps_.size()) {
    active_ = std::max(1, active_ / 2);
    runs_until_more_ = kRunsUntilMore;
  } else if (active_ < team_.num_threads() && --runs_until_more_ == 0) {
    active_ = std::min(team_.num_threads(), active_ * 2);
    runs_until_more_ = kRunsUntilMore;
  }
}

void GraphExecutor::Work(int thread, int num_threads) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const CustomNode& step = steps_[i];
    if (i > 0) team_.Barrier(thread);
    if (step.units == 0) {
      step.op(step.tensor, thread, num_threads, step.userdata);
      continue;
    }
    const uint32_t pieces = NumPieces(step, num_threads);
    for (;;) {
      const uint32_t piece = next_piece_[i].fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces) break;
      step.op(step.tensor, static_cast<int>(piece), static_cast<int>(pieces), step.userdata);
    }
  }
}

}  // namespace kvlink::model
