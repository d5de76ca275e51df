// GraphRunner: computes batches of one model with graphs that are built once per shape and kept.
//
// A graph depends on its GraphShape (rows, outputs, layers) only; what changes from step to step
// (tokens, output rows, positions, pages) lies in its input tensors and in PagedAttention's plan.
// The least recently used graphs give way beyond kMaxGraphs. All graphs share one buffer for
// activations, sized for the largest batch at the start and grown only when a batch wants more
// logits than any before; so a step with a known shape allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ggml-alloc.h"
#include "model/graph_executor.h"
#include "model/model.h"
#include "model/network.h"

namespace kvlink::model {

class GraphRunner : public Runner {
 public:
  static constexpr size_t kMaxGraphs = 32;
  // Logits rows that the shared buffer has room for at the start.
  static constexpr uint32_t kReservedOutputs = 32;

  // `network` must outlive the runner.
  static Result<std::unique_ptr<GraphRunner>> Create(const Network& network, const KvShape& shape,
                                                     int num_threads, uint32_t max_batch_rows);
  ~GraphRunner() override;

  Result<const float*> Run(const Batch& batch) override;
  Result<const float*> RunLayers(const LayerBatch& run) override;

 private:
  struct Graph {
    ~Graph();
    GraphShape shape;
    uint64_t last_use = 0;
    std::vector<std::byte> memory;  // of the nodes, not of their data
    ggml_context* context = nullptr;
    ggml_cgraph* nodes = nullptr;
    std::vector<CustomNode> steps;
    std::vector<ggml_tensor*> kept;  // residual streams, by shape.kept_layers
    ggml_tensor *tokens = nullptr, *output_rows = nullptr, *residual = nullptr, *result = nullptr;
  };

  explicit GraphRunner(const Network& network) : network_(network) {}
  Status Check(const Batch& batch) const;
  Status CheckLayers(const LayerBatch& run) const;
  void WriteCheckpoints(const Batch& batch, const Graph& graph) const;
  GraphShape WholeNetwork(uint32_t num_rows, uint32_t num_outputs) const {
    return {num_rows, num_outputs, 0, network_.dimensions().num_layers, false, {}};
  }
  Result<Graph*> GraphFor(const GraphShape& shape);
  std::unique_ptr<Graph> Build(const GraphShape& shape);

  const Network& network_;
  KvShape shape_;
  uint32_t max_batch_rows_ = 0;
  std::unique_ptr<GraphExecutor> executor_;
  std::unique_ptr<kernel::PagedAttention> attention_;
  std::vector<AttentionLayer> layers_;
  ggml_gallocr_t activations_ = nullptr;
  std::vector<std::unique_ptr<Graph>> graphs_;
  uint64_t num_uses_ = 0;
};

}  // namespace kvlink::model
