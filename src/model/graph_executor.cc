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

// With many rows an eighth of a thread's share still takes far longer than its claim.
constexpr uint32_t kPiecesPerThread = 8;

// About `wanted` pieces of `units`, of one size where that can be had with less than twice as many.
uint32_t EvenPieces(uint32_t units, uint32_t wanted) {
  if (units < 2 * wanted) return units;
  for (uint32_t n = wanted; n < 2 * wanted; ++n) {
    if (units % n == 0) return n;
  }
  return wanted;
}

// Each thread begins with its own of so many pieces, and takes those of others that are late.
constexpr uint32_t kOwnPieces = 32;

// More pieces even the threads out; but a claim costs as much as reading a few weights, so it needs
// rows to pay.
uint32_t NumPieces(const CustomNode& step, int num_threads) {
  const auto threads = static_cast<uint32_t>(num_threads);
  if (threads == 1) return 1;
  if (step.tensor->ne[1] < kManyRows) return std::min(step.units, threads);
  const uint32_t wanted = (threads * kPiecesPerThread + step.row_slices - 1) / step.row_slices;
  return step.row_slices * EvenPieces(step.units, wanted);
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
    } else {
      RunPieces(i, thread, num_threads);
    }
    if (step.tensor->ne[1] < kManyRows) FetchAhead(i, thread, num_threads);
  }
}

void GraphExecutor::RunPieces(size_t index, int thread, int num_threads) {
  const CustomNode& step = steps_[index];
  std::atomic<uint32_t>& claims = next_piece_[index];
  const uint32_t pieces = NumPieces(step, num_threads);
  const auto run = [&](uint32_t piece) {
    step.op(step.tensor, static_cast<int>(piece), static_cast<int>(pieces), step.userdata);
  };
  if (pieces <= kOwnPieces && pieces <= static_cast<uint32_t>(num_threads)) {
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint32_t piece = (static_cast<uint32_t>(thread) + i) % pieces;
      const uint32_t bit = 1u << piece;
      if (i > 0 && (claims.load(std::memory_order_relaxed) & bit) != 0) continue;  // cheaper
      if ((claims.fetch_or(bit, std::memory_order_relaxed) & bit) == 0) run(piece);
    }
    return;
  }
  for (;;) {
    const uint32_t piece = claims.fetch_add(1, std::memory_order_relaxed);
    if (piece >= pieces) return;
    run(piece);
  }
}

// A product is fetched behind the last node that takes long, over what is short between them.
void GraphExecutor::FetchAhead(size_t index, int thread, int num_threads) const {
  if (index > 0 && index + 1 < steps_.size() && steps_[index].fetch == nullptr &&
      steps_[index].units != 0 && steps_[index + 1].fetch != nullptr) {
    return;  // done before this one
  }
  for (size_t i = index + 1; i < std::min(index + 3, steps_.size()); ++i) {
    const CustomNode& step = steps_[i];
    if (step.fetch == nullptr) continue;
    const auto pieces = static_cast<int>(NumPieces(step, num_threads));
    step.fetch(step.tensor, thread % pieces, pieces, step.userdata);
    return;
  }
}

}  // namespace kvlink::model
