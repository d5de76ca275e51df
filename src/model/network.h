// Network: the weights of one model and the graph that they make. One file per architecture family
// implements it.
//
// A family reads its hyper-parameters and tensors from the file (Load checks them all); all that
// there are make a Decoder (decoder.h), which builds graphs out of the operations of GraphBuilder.
// To add one: write <name>_family.cc and list it in families.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ggml.h"
#include "kernel/paged_attention.h"
#include "kvlink/status.h"
#include "model/gguf_file.h"
#include "model/graph_builder.h"

namespace kvlink::model {

struct Dimensions {
  uint32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  uint32_t embedding = 0, feed_forward = 0, vocab_size = 0, context_train = 0;
};

class Network {
 public:
  virtual ~Network() = default;
  virtual const Dimensions& dimensions() const = 0;
  // One for all layers, or one a layer.
  virtual const std::vector<kernel::LayerParams>& attention() const = 0;
  // The node to compute: logits [outputs, vocab_size], or, without outputs, the last node that
  // writes K and V; the residual stream [rows, embedding] where the last layer is not among those
  // of graph.shape().
  virtual ggml_tensor* Build(GraphBuilder& graph) const = 0;
  // Every product of the network, to be packed before the first graph is built.
  virtual std::vector<Stack*> Stacks() = 0;
};

struct NetworkOptions {
  // The longest sequence that will be run; 0: as trained. Some rotations depend on it.
  uint32_t context = 0;
};

struct Family {
  const char* architecture;  // general.architecture in the file
  // The file must outlive the network.
  Result<std::unique_ptr<Network>> (*load)(const GgufFile& file, const NetworkOptions& options);
};

std::span<const Family> Families();

// kUnimplemented names the architecture of the file and lists the supported ones; kDataLoss: the
// file names none.
Result<std::unique_ptr<Network>> LoadNetwork(const GgufFile& file, const NetworkOptions& options);

}  // namespace kvlink::model
