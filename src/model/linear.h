// Linear and Stack: the matrix products of a network, and how their weights lie in memory.
//
// A Stack is one or more layers that read the same input (Q, K and V; gate and up). Where all of
// its weights have a type that the packed int8 product knows, Pack copies them once into panels and
// the file's copy is not read again; the input is then quantised once for the whole stack. Other
// types stay in the mapped file and go through ggml.
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
  Stack() = default;
  Stack(std::initializer_list<Linear> layers) : layers_(layers) {}

  const std::vector<Linear>& layers() const { return layers_; }
  bool packed() const { return packed_.rows() > 0; }
  const kernel::PackedMatrix& matrix() const { return packed_; }
  size_t weight_bytes() const;

  // Leaves the stack as it is where the types do not allow packing. kResourceExhausted: no memory.
  Status Pack(int num_threads);

 private:
  std::vector<Linear> layers_;
  kernel::PackedMatrix packed_;
};

}  // namespace kvlink::model
