// Pages: another engine's KV pages as blocks of bytes: what one block id names in each layer's
// array, layer after layer. They are read where they lie, so that storing a block copies it once.
// Threads: without the GIL from any; who changes a page that is being stored stores a mixture.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "convert.h"
#include "store_handle.h"

namespace kvlink::python {

class Pages {
 public:
  // layers: arrays [num_blocks, ...] of bytes, C-contiguous but for the distance between blocks.
  // They are held.
  explicit Pages(const py::iterable& layers);

  int64_t num_blocks() const { return num_blocks_; }
  size_t block_bytes() const { return block_bytes_; }
  // Requires: 0 <= block < num_blocks().
  std::vector<std::span<const std::byte>> PiecesOf(int64_t block) const;

 private:
  struct Layer {
    const std::byte* first = nullptr;
    ptrdiff_t stride = 0;  // bytes from block to block
    size_t bytes = 0;      // of a block
  };
  std::vector<py::buffer_info> buffers_;
  std::vector<Layer> layers_;
  int64_t num_blocks_ = 0;
  size_t block_bytes_ = 0;
};

// As BlockStore.put for each block.
std::vector<bool> PutPages(const StorePointer& self, const Pages& pages,
                           const std::vector<int64_t>& block_ids, const py::iterable& keys,
                           const py::iterable& parents, double cost_us);

}  // namespace kvlink::python
