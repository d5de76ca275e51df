#include "pages.h"

#include "tier/chain_digest.h"

namespace kvlink::python {
namespace {

// Requires: at least one dimension. Whether the elements of one block lie one behind the other.
bool IsBlockContiguous(const py::buffer_info& buffer) {
  py::ssize_t wanted = buffer.itemsize;
  for (py::ssize_t d = buffer.ndim - 1; d > 0; --d) {
    const auto at = static_cast<size_t>(d);
    if (buffer.shape[at] > 1 && buffer.strides[at] != wanted) return false;
    wanted *= buffer.shape[at];
  }
  return buffer.strides[0] >= wanted;
}

struct NamedPage {
  int64_t block = 0;
  tier::BlockName name;
};

std::vector<NamedPage> NamedPages(const Pages& pages, const std::vector<int64_t>& block_ids,
                                  const py::iterable& keys, const py::iterable& parents) {
  std::vector<NamedPage> named;
  for (const py::handle key : keys) {
    named.push_back({0, NameOf(IdentityFrom(key, "key"))});
  }
  if (named.size() != block_ids.size()) {
    Throw(StatusCode::kInvalidArgument, std::to_string(named.size()) + " keys, but " +
                                            std::to_string(block_ids.size()) + " block ids");
  }
  for (size_t i = 0; i < named.size(); ++i) {
    if (block_ids[i] < 0 || block_ids[i] >= pages.num_blocks()) {
      Throw(StatusCode::kInvalidArgument, "block id " + std::to_string(block_ids[i]) + " of " +
                                              std::to_string(pages.num_blocks()) + " blocks");
    }
    named[i].block = block_ids[i];
  }
  size_t count = 0;
  for (const py::handle parent : parents) {
    if (count < named.size() && !parent.is_none()) {
      named[count].name.parent = tier::AddressOf(IdentityFrom(parent, "parent"));
    }
    ++count;
  }
  if (count != named.size()) {
    Throw(StatusCode::kInvalidArgument,
          std::to_string(named.size()) + " keys, but " + std::to_string(count) + " parents");
  }
  return named;
}

}  // namespace

Pages::Pages(const py::iterable& layers) {
  for (const py::handle layer : layers) {
    const std::string which = "layer " + std::to_string(layers_.size());
    if (!py::isinstance<py::buffer>(layer)) {
      Throw(StatusCode::kInvalidArgument, which + " is no buffer");
    }
    py::buffer_info buffer = py::reinterpret_borrow<py::buffer>(layer).request();
    if (buffer.ndim < 1 || !IsBlockContiguous(buffer)) {
      Throw(StatusCode::kInvalidArgument, which + " is not C-contiguous within a block");
    }
    const auto num_blocks = static_cast<int64_t>(buffer.shape[0]);
    if (!layers_.empty() && num_blocks != num_blocks_) {
      Throw(StatusCode::kInvalidArgument, which + " has " + std::to_string(num_blocks) +
                                              " blocks, the first one " +
                                              std::to_string(num_blocks_));
    }
    num_blocks_ = num_blocks;
    size_t bytes = static_cast<size_t>(buffer.itemsize);
    for (size_t d = 1; d < buffer.shape.size(); ++d) bytes *= static_cast<size_t>(buffer.shape[d]);
    layers_.push_back({static_cast<const std::byte*>(buffer.ptr), buffer.strides[0], bytes});
    block_bytes_ += bytes;
    buffers_.push_back(std::move(buffer));
  }
  if (block_bytes_ == 0 || block_bytes_ > tier::kMaxPayloadBytes) {
    Throw(StatusCode::kInvalidArgument, "a block has " + std::to_string(block_bytes_) +
                                            " bytes, but must have 1 to " +
                                            std::to_string(tier::kMaxPayloadBytes));
  }
}

std::vector<std::span<const std::byte>> Pages::PiecesOf(int64_t block) const {
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(layers_.size());
  for (const Layer& layer : layers_) {
    pieces.emplace_back(layer.first + block * layer.stride, layer.bytes);
  }
  return pieces;
}

std::vector<bool> PutPages(const StorePointer& self, const Pages& pages,
                           const std::vector<int64_t>& block_ids, const py::iterable& keys,
                           const py::iterable& parents, double cost_us) {
  const std::vector<NamedPage> named = NamedPages(pages, block_ids, keys, parents);
  const std::shared_ptr<tier::TierStore> store = self->share();
  std::vector<bool> taken;
  const Released released;
  for (const NamedPage& page : named) {
    const std::vector<std::span<const std::byte>> pieces = pages.PiecesOf(page.block);
    tier::PutBlock block;
    block.name = page.name;
    block.cost_us = cost_us;
    block.pieces = pieces;
    taken.push_back(store->Put(block));
  }
  return taken;
}

}  // namespace kvlink::python
