"""vLLM's KV pages as blocks of bytes.

A block is, layer after layer, what one block id names in that layer's tensor [num_blocks, ...]; what
lies inside is the attention kernel's business. In host memory the store reads blocks where they lie, so
that saving copies a byte once, and NumPy copies what was loaded; on a device torch gathers and scatters
whole batches, so that there is one transfer a layer.
"""

import numpy as np

from kvlink._kvlink import Pages


class HostPages:
    """layers: uint8 arrays [num_blocks, ...] over the pages themselves, equal num_blocks. direct: the
    same for the store to read from; None where a block's bytes are not in the order of the shape."""

    def __init__(self, layers):
        self.layers = layers
        self.num_blocks = layers[0].shape[0]
        self.layer_bytes = [int(np.prod(layer.shape[1:])) for layer in layers]
        self.block_bytes = sum(self.layer_bytes)
        in_order = all(layer[:1].flags.c_contiguous and layer.strides[0] >= size
                       for layer, size in zip(self.layers, self.layer_bytes))
        self.direct = Pages(layers) if in_order else None

    def gather(self, block_ids, out):
        """Copies blocks to out [len(block_ids), block_bytes], uint8."""
        for row, block in zip(out, block_ids):
            at = 0
            for layer, size in zip(self.layers, self.layer_bytes):
                page = layer[block]
                np.copyto(row[at : at + size].reshape(page.shape), page)
                at += size

    def scatter(self, block_ids, data):
        """Copies data [len(block_ids), block_bytes], uint8, to the blocks."""
        for row, block in zip(data, block_ids):
            at = 0
            for layer, size in zip(self.layers, self.layer_bytes):
                page = layer[block]
                np.copyto(page, row[at : at + size].reshape(page.shape))
                at += size


class DevicePages:
    """The same over torch tensors on any device."""

    direct = None

    def __init__(self, layers):
        self.layers = layers
        self.num_blocks = layers[0].shape[0]
        self.layer_bytes = [layer[0].numel() * layer.element_size() for layer in layers]
        self.block_bytes = sum(self.layer_bytes)

    def gather(self, block_ids, out):
        import torch

        ids = torch.tensor(block_ids, dtype=torch.long, device=self.layers[0].device)
        at = 0
        for layer, size in zip(self.layers, self.layer_bytes):
            part = layer.index_select(0, ids).contiguous().view(torch.uint8)
            out[:, at : at + size] = part.reshape(len(block_ids), size).cpu().numpy()
            at += size

    def scatter(self, block_ids, data):
        import torch

        device = self.layers[0].device
        ids = torch.tensor(block_ids, dtype=torch.long, device=device)
        staged = torch.from_numpy(data).to(device)
        at = 0
        for layer, size in zip(self.layers, self.layer_bytes):
            part = staged[:, at : at + size].contiguous().view(layer.dtype)
            layer.index_copy_(0, ids, part.reshape(len(block_ids), *layer.shape[1:]))
            at += size
        if device.type != "cpu":
            getattr(torch, device.type).synchronize()


def pages_of(tensors, num_blocks):
    """Pages over vLLM's tensors, [num_blocks, ...] each; ValueError when they are not."""
    for tensor in tensors:
        if tensor.ndim < 2 or tensor.shape[0] != num_blocks:
            raise ValueError(f"a KV tensor has the shape {tuple(tensor.shape)}, which does not start "
                             f"with the {num_blocks} blocks of the cache")
    if all(tensor.device.type == "cpu" for tensor in tensors):
        import torch

        return HostPages([tensor.detach().view(torch.uint8).numpy() for tensor in tensors])
    return DevicePages(tensors)
