"""What the scheduler's side and the workers' sides tell each other. Plain values, pickled by vLLM.

A *base key* names a block of the model (32 bytes); a worker's part of it is stored under the rank key.
An *address* is the first half of a rank key: what a tier's listing gives.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Optional

ADDRESS_BYTES = 16


def rank_key(base_key, pp_rank, tp_rank):
    """The key of one worker's part of a block: its layers (pipeline) and heads (tensor)."""
    return hashlib.sha256(base_key + b"rank %d %d" % (pp_rank, tp_rank)).digest()


@dataclass
class Load:
    """Blocks to read into vLLM's pages before the request runs."""

    request_id: str
    keys: list  # base keys, in chain order
    block_ids: list


@dataclass
class Save:
    """A block that this step fills."""

    key: bytes
    parent: Optional[bytes]
    block_id: int


@dataclass
class StepPlan:
    """One step's orders to the workers."""

    loads: list = field(default_factory=list)
    saves: list = field(default_factory=list)

    @property
    def is_empty(self):
        return not self.loads and not self.saves


@dataclass
class WorkerHello:
    """What a worker knows when its pages are there. layout: everything about the bytes of a block
    that the scheduler cannot know. addresses: blocks that its disk has from before."""

    layout: str
    addresses: list


@dataclass
class RankReport:
    """What became of a worker's blocks since its last report."""

    stored: list = field(default_factory=list)  # addresses
    dropped: list = field(default_factory=list)  # addresses
    failed: list = field(default_factory=list)  # base keys that could not be loaded

    @property
    def is_empty(self):
        return not self.stored and not self.dropped and not self.failed
