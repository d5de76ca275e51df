#include "model/graph_runner.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernel/f16.h"
#include "kernel/span_cursor.h"
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
  runner->shape_ = shape;
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
  auto largest = runner->GraphFor(
      runner->WholeNetwork(max_batch_rows, std::min(max_batch_rows, kReservedOutputs)));
  if (!largest.ok()) return largest.status();
  return runner;
}

GraphRunner::~GraphRunner() {
  graphs_.clear();
  if (activations_ != nullptr) ggml_gallocr_free(activations_);
}

std::unique_ptr<GraphRunner::Graph> GraphRunner::Build(const GraphShape& shape) {
  const size_t max_nodes = network_.dimensions().num_layers * kNodesPerLayer + kNodesBesides;
  auto graph = std::make_unique<Graph>();
  graph->shape = shape;
  graph->memory.resize(max_nodes * ggml_tensor_overhead() +
                       ggml_graph_overhead_custom(max_nodes, /*grads=*/false));
  graph->context = ggml_init({graph->memory.size(), graph->memory.data(), /*no_alloc=*/true});
  graph->nodes = ggml_new_graph_custom(graph->context, max_nodes, /*grads=*/false);
  GraphBuilder builder(graph->context, layers_, shape);
  graph->result = network_.Build(builder);
  graph->tokens = builder.tokens();
  graph->output_rows = builder.output_rows();
  graph->residual = builder.residual();
  graph->kept = builder.kept();
  ggml_set_output(graph->result);
  ggml_build_forward_expand(graph->nodes, graph->result);
  for (ggml_tensor* node : builder.also()) {
    ggml_set_output(node);
    ggml_build_forward_expand(graph->nodes, node);
  }
  graph->steps = StepsOf(graph->nodes, builder.custom_nodes());
  return graph;
}

Result<GraphRunner::Graph*> GraphRunner::GraphFor(const GraphShape& shape) {
  const auto same = [&](const auto& g) { return g->shape == shape; };
  auto found = std::find_if(graphs_.begin(), graphs_.end(), same);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMaxGraphs) {
      graphs_.erase(
          std::min_element(graphs_.begin(), graphs_.end(),
                           [](const auto& a, const auto& b) { return a->last_use < b->last_use; }));
    }
    LogCapture errors;
    auto graph = Build(shape);
    const size_t size_before = ggml_gallocr_get_buffer_size(activations_, 0);
    // ggml takes over the places of the last graph when this one has as many nodes, none larger;
    // it does not look at which of them must be kept. So these graphs get places of their own.
    const bool is_plain = shape == WholeNetwork(shape.num_rows, shape.num_outputs);
    const bool allocated = (is_plain || ggml_gallocr_reserve(activations_, graph->nodes)) &&
                           ggml_gallocr_alloc_graph(activations_, graph->nodes);
    // The older graphs point into the buffer; it moves only when it grows.
    if (!allocated || ggml_gallocr_get_buffer_size(activations_, 0) != size_before) graphs_.clear();
    if (!allocated) {
      return Status(StatusCode::kResourceExhausted,
                    "no memory for the activations of " + std::to_string(shape.num_rows) +
                        " rows with " + std::to_string(shape.num_outputs) +
                        " outputs: " + errors.text());
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

Status GraphRunner::CheckLayers(const LayerBatch& run) const {
  const uint32_t num_layers = network_.dimensions().num_layers;
  const auto layers = [&] {
    return "layers " + std::to_string(run.first_layer) + " to " + std::to_string(run.end_layer);
  };
  if (run.first_layer >= run.end_layer || run.end_layer > num_layers) {
    return Invalid(layers() + " of " + std::to_string(num_layers));
  }
  if ((run.first_layer > 0) != (run.input != nullptr)) {
    return Invalid(layers() + ": rows begin with a residual stream behind the first layer only");
  }
  const bool ends = run.end_layer == num_layers;
  if (ends && (run.output != nullptr || run.writes_next)) {
    return Invalid(layers() + ": nothing follows the last one");
  }
  if (!ends && !run.batch.outputs.empty()) return Invalid(layers() + " give no logits");
  for (const uint32_t layer : run.batch.checkpoints) {
    if (layer <= run.first_layer || layer >= run.end_layer) {
      return Invalid(layers() + ": no row passes the input of layer " + std::to_string(layer));
    }
  }
  return Status::Ok();
}

// Rounded to F16, within its finite range.
void GraphRunner::WriteCheckpoints(const Batch& batch, const Graph& graph) const {
  constexpr float kLargest = 65504;
  const auto n = static_cast<size_t>(network_.dimensions().embedding);
  const size_t row_bytes = graph.kept.size() * n * sizeof(uint16_t);
  std::vector<uint16_t> halves(n);
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    const kernel::BatchRow& row = batch.rows[r];
    if (!row.write) continue;
    kernel::SpanCursor cursor(*batch.tables[row.sequence], shape_.tokens_per_block, row.position);
    const kernel::Piece piece = cursor.Next(row.position + 1);
    std::byte* to = piece.block->page + shape_.checkpoints_offset() + piece.first_row * row_bytes;
    for (size_t k = 0; k < graph.kept.size(); ++k) {
      const auto* from = static_cast<const float*>(graph.kept[k]->data) + r * n;
      for (size_t i = 0; i < n; ++i) {
        halves[i] = kernel::F32ToF16(std::clamp(from[i], -kLargest, kLargest));
      }
      std::memcpy(to + k * n * sizeof(uint16_t), halves.data(), n * sizeof(uint16_t));
    }
  }
}

Result<const float*> GraphRunner::Run(const Batch& batch) {
  LayerBatch run;
  run.batch = batch;
  run.end_layer = network_.dimensions().num_layers;
  return RunLayers(run);
}

Result<const float*> GraphRunner::RunLayers(const LayerBatch& run) {
  const Batch& batch = run.batch;
  if (Status status = Check(batch); !status.ok()) return status;
  if (Status status = CheckLayers(run); !status.ok()) return status;
  if (Status status = attention_->Prepare(batch.tables, batch.rows, executor_->num_threads());
      !status.ok()) {
    return status;
  }
  if (!batch.observed.empty()) {
    if (Status status = attention_->Observe(batch.observed); !status.ok()) return status;
  }
  auto found = GraphFor(
      {static_cast<uint32_t>(batch.rows.size()), static_cast<uint32_t>(batch.outputs.size()),
       run.first_layer, run.end_layer, run.writes_next,
       std::vector<uint32_t>(batch.checkpoints.begin(), batch.checkpoints.end())});
  if (!found.ok()) return found.status();
  const Graph& graph = **found;
  if (graph.residual != nullptr) {
    std::memcpy(graph.residual->data, run.input, ggml_nbytes(graph.residual));
  } else {
    std::memcpy(graph.tokens->data, batch.tokens.data(), batch.tokens.size_bytes());
  }
  if (graph.output_rows != nullptr) {
    std::memcpy(graph.output_rows->data, batch.outputs.data(), batch.outputs.size_bytes());
  }
  if (Status status = executor_->Run(graph.nodes, graph.steps); !status.ok()) return status;
  if (!batch.observed.empty()) attention_->TakeObserved();
  if (!batch.checkpoints.empty()) WriteCheckpoints(batch, graph);
  if (run.output != nullptr) {
    std::memcpy(run.output, graph.result->data, ggml_nbytes(graph.result));
  }
  const auto* result = static_cast<const float*>(graph.result->data);
  return run.end_layer == network_.dimensions().num_layers ? result : nullptr;
}

}  // namespace kvlink::model
