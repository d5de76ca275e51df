#include "model/graph_runner.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "model/ggml_log.h"

namespace kvlink::model {
namespace {

constexpr size_t kNodesPerLayer = 80;  // an upper bound of what families build
constexpr size_t kNodesBesides = 16;

Status Invalid(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "batch: " + message);
}

}  // namespace

GraphRunner::Graph::~Graph() {
  if (context != nullptr) ggml_free(context);
}

Result<std::unique_ptr<GraphRunner>> GraphRunner::Create(const Network& network,
                                                         const KvShape& shape, int num_threads,
                                                         uint32_t max_batch_rows) {
  if (max_batch_rows < 1 || max_batch_rows > (1u << 20)) {
    return Status(
        StatusCode::kInvalidArgument,
        "max_batch_rows: " + std::to_string(max_batch_rows) + " is not between 1 and 1048576");
  }
  std::unique_ptr<GraphRunner> runner(new GraphRunner(network));
  runner->max_batch_rows_ = max_batch_rows;
  auto executor = GraphExecutor::Create(num_threads);
  if (!executor.ok()) return executor.status();
  runner->executor_ = *std::move(executor);

  kernel::AttentionParams params;
  params.shape = shape;
  params.num_heads = network.dimensions().num_heads;
  params.layers = network.attention();
  params.max_threads = num_threads;
  auto attention = kernel::PagedAttention::Create(params);
  if (!attention.ok()) return attention.status();
  runner->attention_ = *std::move(attention);
  for (uint32_t i = 0; i < shape.num_layers; ++i)
    runner->layers_.push_back({runner->attention_.get(), i});

  runner->activations_ = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
  auto largest = runner->GraphFor(max_batch_rows, std::min(max_batch_rows, kReservedOutputs));
  if (!largest.ok()) return largest.status();
  return runner;
}

GraphRunner::~GraphRunner() {
  graphs_.clear();
  if (activations_ != nullptr) ggml_gallocr_free(activations_);
}

std::unique_ptr<GraphRunner::Graph> GraphRunner::Build(uint32_t num_rows, uint32_t num_outputs) {
  const size_t max_nodes = network_.dimensions().num_layers * kNodesPerLayer + kNodesBesides;
  auto graph = std::make_unique<Graph>();
  graph->num_rows = num_rows;
  graph->num_outputs = num_outputs;
  graph->memory.resize(max_nodes * ggml_tensor_overhead() +
                       ggml_graph_overhead_custom(max_nodes, /*grads=*/false));
  graph->context = ggml_init({graph->memory.size(), graph->memory.data(), /*no_alloc=*/true});
  graph->nodes = ggml_new_graph_custom(graph->context, max_nodes, /*grads=*/false);
  GraphBuilder builder(graph->context, layers_, num_rows, num_outputs);
  graph->result = network_.Build(builder);
  graph->tokens = builder.tokens();
  graph->output_rows = builder.output_rows();
  ggml_set_output(graph->result);
  ggml_build_forward_expand(graph->nodes, graph->result);
  graph->steps = StepsOf(graph->nodes, builder.custom_nodes());
  return graph;
}

Result<GraphRunner::Graph*> GraphRunner::GraphFor(uint32_t num_rows, uint32_t num_outputs) {
  const auto same = [&](const auto& g) {
    return g->num_rows == num_rows && g->num_outputs == num_outputs;
  };
  auto found = std::find_if(graphs_.begin(), graphs_.end(), same);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMaxGraphs) {
      graphs_.erase(
          std::min_element(graphs_.begin(), graphs_.end(),
                           [](const auto& a, const auto& b) { return a->last_use < b->last_use; }));
    }
    LogCapture errors;
    auto graph = Build(num_rows, num_outputs);
    const size_t size_before = ggml_gallocr_get_buffer_size(activations_, 0);
    const bool allocated = ggml_gallocr_alloc_graph(activations_, graph->nodes);
    // The older graphs point into the buffer; it moves only when it grows.
    if (!allocated || ggml_gallocr_get_buffer_size(activations_, 0) != size_before) graphs_.clear();
    if (!allocated) {
      return Status(StatusCode::kResourceExhausted,
                    "no memory for the activations of " + std::to_string(num_rows) + " rows with " +
                        std::to_string(num_outputs) + " outputs: " + errors.text());
    }
    graphs_.push_back(std::move(graph));
    found = graphs_.end() - 1;
  }
  (*found)->last_use = ++num_uses_;
  return found->get();
}

Status GraphRunner::Check(const Batch& batch) const {
  const size_t num_rows = batch.rows.size();
  if (num_rows == 0) return Invalid("no rows");
  if (num_rows > max_batch_rows_) {
    return Invalid(std::to_string(num_rows) + " rows, the most is " +
                   std::to_string(max_batch_rows_));
  }
  if (batch.tokens.size() != num_rows) {
    return Invalid(std::to_string(batch.tokens.size()) + " tokens for " + std::to_string(num_rows) +
                   " rows");
  }
  const auto vocab_size = static_cast<TokenId>(network_.dimensions().vocab_size);
  for (size_t i = 0; i < num_rows; ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= vocab_size) {
      return Invalid("row " + std::to_string(i) + ": token " + std::to_string(batch.tokens[i]) +
                     " is not between 0 and " + std::to_string(vocab_size - 1));
    }
    if (batch.rows[i].sequence >= batch.tables.size() ||
        batch.tables[batch.rows[i].sequence] == nullptr) {
      return Invalid("row " + std::to_string(i) + ": sequence " +
                     std::to_string(batch.rows[i].sequence) + " has no span table");
    }
  }
  for (size_t i = 0; i < batch.outputs.size(); ++i) {
    if (batch.outputs[i] >= num_rows || (i > 0 && batch.outputs[i] <= batch.outputs[i - 1])) {
      return Invalid("outputs must be ascending row indices below " + std::to_string(num_rows) +
                     ", seen " + std::to_string(batch.outputs[i]) + " at " + std::to_string(i));
    }
  }
  return Status::Ok();
}

Result<const float*> GraphRunner::Run(const Batch& batch) {
  if (Status status = Check(batch); !status.ok()) return status;
  if (Status status = attention_->Prepare(batch.tables, batch.rows, executor_->num_threads());
      !status.ok()) {
    return status;
  }
  auto graph = GraphFor(static_cast<uint32_t>(batch.rows.size()),
                        static_cast<uint32_t>(batch.outputs.size()));
  if (!graph.ok()) return graph.status();
  std::memcpy((*graph)->tokens->data, batch.tokens.data(), batch.tokens.size_bytes());
  if ((*graph)->output_rows != nullptr) {
    std::memcpy((*graph)->output_rows->data, batch.outputs.data(), batch.outputs.size_bytes());
  }
  if (Status status = executor_->Run((*graph)->nodes, (*graph)->steps); !status.ok()) return status;
  return static_cast<const float*>((*graph)->result->data);
}

}  // namespace kvlink::model
