// Linear and Stack: the matrix products of a network, and how their weights lie in memory.
//
// A Stack is one or more layers that read the same input (Q, K and V; gate and up). Pack copies the
// weights of every type that the packed product knows into panels, once, and the file's copy is not
// read again. Layers whose products read the same format of inputs (all quantised types do) make
// one group, whatever their types: the input is prepared once for all of them, and one node
// computes them. Layers of other types stay in the mapped file and go through ggml.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

#include "ggml.h"
#include "kernel/packed_matmul.h"
#include "kvlink/status.h"

namespace kvlink::model {

// y = W x + b. weight [outputs, inputs]; bias [outputs] or null.
struct Linear {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;
};

class Stack {
 public:
  // Layers that are packed together, biases included.
  struct Group {
    kernel::PackedMatrix matrix;
    std::vector<size_t> layers;  // indices, in the order of the matrix's rows
  };

  Stack() = default;
  Stack(std::initializer_list<Linear> layers) : layers_(layers) {}

  const std::vector<Linear>& layers() const { return layers_; }
  // Graphs keep pointers to their matrices: they stay in place after Pack.
  const std::vector<Group>& groups() const { return groups_; }
  bool packed() const { return !groups_.empty(); }  // at least in part
  size_t weight_bytes() const;

  // Leaves layers as they are whose type does not allow packing. kResourceExhausted: no memory.
  // `memory`: where the packed weights are to lie; null: in memory of their own.
  Status Pack(int num_threads, kernel::WeightMemory* memory = nullptr);

 private:
  std::vector<Linear> layers_;
  std::vector<Group> groups_;
};

}  // namespace kvlink::model
