"""The extension module. Import from `kvlink`.

Errors are exceptions of `kvlink._errors`, each also the built-in one that fits. An argument of a wrong
type is a TypeError. Arrays are never converted silently: a wrong dtype or shape raises
InvalidArgumentError.
"""

import enum
from collections.abc import Iterable, Sequence as Seq
from typing import Any, Optional, TypedDict, Union

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__version__: str

Tokens = Union[Seq[int], npt.NDArray[np.integer[Any]]]

class KvType(enum.Enum):
    """Element type of K and V in NumPy: float16, uint16 (the bits of BF16), int8 with float16 scales."""

    F16 = ...
    BF16 = ...
    Q8_0 = ...

class Sharing(enum.Enum):
    OFF = ...
    EXACT = ...

class SimilarPolicy(enum.Enum):
    OFF = ...
    ON = ...
    STRICT = ...

class KvShape:
    """The bytes of one page: `tokens_per_block` (8, 16, 32, 64 or 128) rows of all layers."""

    def __init__(
        self, *, num_layers: int, num_kv_heads: int, head_dim: int, tokens_per_block: int = 32,
        type: KvType = KvType.F16,
    ) -> None: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def tokens_per_block(self) -> int: ...
    @property
    def type(self) -> KvType: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def k_group(self) -> int:
        """Dimensions of a token's K that lie together."""

class AttentionTraits:
    """What a model's attention is made of; see similar.h."""

    def __init__(
        self, *, causal: bool = True, rotary: bool = True, linear_angles: bool = True,
        several_axes: bool = False, sliding_window: int = 0, recurrent: bool = False,
    ) -> None: ...
    causal: bool
    rotary: bool
    linear_angles: bool
    several_axes: bool
    sliding_window: int
    recurrent: bool

class SimilarOptions:
    """Parameters of similar reuse, by keyword; meanings and defaults as in similar_options.h."""

    def __init__(self, **options: Any) -> None: ...
    policy: SimilarPolicy
    fingerprint_window: int
    short_window: int
    short_prompt_tokens: int
    max_anchors: int
    frequent_share: float
    min_run: int
    max_edit_share: float
    lookup_cost_share: float
    mask_similarity: float
    span_similarity: float
    max_moved_share: float
    min_reused_rows: int
    max_compute_share: float
    max_reuse_distance: int
    wasted_compute_share: float

class SimilarModel:
    """What similar reuse needs to know of the model."""

    def __init__(self, **options: Any) -> None: ...
    attention: AttentionTraits
    token_texts: list[str]
    special_tokens: list[int]
    prefill_us_per_row: float

class CacheOptions:
    """Parameters of a cache, by keyword; meanings and defaults as in options.h.

    shape must be given. budget_bytes: hard limit. model_fingerprint: everything K and V depend on
    besides tokens; part of every block key.
    """

    def __init__(self, **options: Any) -> None: ...
    shape: KvShape
    sharing: Sharing
    budget_bytes: int
    model_fingerprint: str
    cow_copy_threshold: float
    pin_budget: float
    output_memory_bytes: int
    similar: SimilarOptions
    similar_model: SimilarModel

class InFlight:
    """Blocks that another sequence computes at this moment."""

    @property
    def leader(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...

class ReuseSpan:
    """Rows [position, position + num_rows) that have a donor's tokens from donor_position on."""

    @property
    def position(self) -> int: ...
    @property
    def donor_position(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def shift(self) -> int: ...

class SimilarPlan:
    """A donor's rows that may stand in, judged by the forward check."""

    @property
    def donor(self) -> int: ...
    @property
    def spans(self) -> list[ReuseSpan]: ...
    @property
    def mask_similarity(self) -> float: ...
    @property
    def matrix_similarity(self) -> float: ...
    @property
    def reused_rows(self) -> int: ...
    @property
    def num_computed(self) -> int: ...
    @property
    def edit(self) -> str: ...

class Plan:
    """What a lookup found. Pins nothing; `begin` checks it again."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def exact_tokens(self) -> int:
        """Ready rows by whole shared blocks."""
    @property
    def partial_tokens(self) -> int:
        """Further ready rows inside the first divergent block."""
    @property
    def compute_from(self) -> int: ...
    @property
    def diverged_at(self) -> int: ...
    @property
    def in_flight(self) -> Optional[InFlight]: ...
    @property
    def similar(self) -> Optional[SimilarPlan]: ...
    @property
    def match_us(self) -> float: ...
    @property
    def miss_reason(self) -> str: ...
    @property
    def similar_reason(self) -> str: ...

class LookupRequest:
    """A prompt and who asks. `tokens` are copied: one-dimensional, integers in [0, 2^31), not empty.

    min_compute: rows that run even when they are there, 1 to len(tokens). max_new_tokens: rows that
    generation may add. trial: nobody sees the answer (cache.h).
    """

    def __init__(
        self, tokens: Tokens, *, tenant: str = "", salt: str = "", reuse: bool = True,
        store: bool = True, min_compute: int = 1, max_new_tokens: int = 0,
        similar: SimilarPolicy = SimilarPolicy.OFF, trial: bool = False,
    ) -> None: ...
    @property
    def tokens(self) -> npt.NDArray[np.int32]: ...
    @property
    def tenant(self) -> str: ...
    @property
    def salt(self) -> str: ...

class Span:
    """Rows [first_row, first_row + num_rows) of the blocks from first_block on, at `position`."""

    @property
    def first_block(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def shift(self) -> int: ...

class Verdict(TypedDict):
    action: str  # accept, enlarge, fall_back
    reason: str
    score: float
    shadow: int

class Sequence:
    """One branch's context. Closing it (or leaving `with`) releases its pages, which stay as cache.

    Views (page, row) are arrays over the pages. reserve, commit, check_first_token and close raise
    FailedPreconditionError while one is alive, slices of it included.
    """

    @property
    def id(self) -> int: ...
    @property
    def num_ready(self) -> int:
        """Rows [0, num_ready) hold valid K and V."""
    @property
    def capacity(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def spans(self) -> list[Span]: ...
    @property
    def computed_rows(self) -> list[tuple[int, int]]:
        """[begin, end) of the prompt's rows that run when others are borrowed; empty: all run."""
    def page(self, block: int) -> npt.NDArray[np.uint8]:
        """Block number `block` as it lies in memory, [page_bytes], read-only."""
    def row(self, layer: int, kv_head: int, position: int) -> tuple[npt.NDArray[Any], ...]:
        """Views of one row: k [head_dim / k_group, k_group], v [head_dim], and with Q8_0 their scales
        [1]. Writable from num_ready on."""
    def read_rows(
        self, layer: int, kv_head: int, begin: int, end: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Copies of k and v, [end - begin, head_dim] each. Not with Q8_0."""
    def write_rows(
        self, layer: int, kv_head: int, begin: int, k: npt.NDArray[Any], v: npt.NDArray[Any]
    ) -> None:
        """Writes k and v [rows, head_dim] to the rows from `begin` (at least num_ready) on. Not with
        Q8_0."""
    def reserve(self, num_tokens: int) -> None:
        """Makes room for positions [0, num_tokens); ResourceExhaustedError when pages run out."""
    def commit(self, tokens: Tokens) -> None:
        """The rows behind num_ready are written and hold these tokens."""
    def check_first_token(self, logits: npt.NDArray[np.floating[Any]]) -> Verdict:
        """The backward check, for a sequence that borrows rows, before its first token leaves."""
    def fork(self, num_tokens: int, max_new_tokens: int = 0) -> "Sequence":
        """A branch that shares rows [0, num_tokens) copy-on-write."""
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> "Sequence": ...
    def __exit__(self, *exception: object) -> None: ...

class Cache:
    """KV blocks shared between requests, as an inference engine sees them (cache.h).

    lookup may be called from any thread; sequences are used by one thread at a time.
    """

    def __init__(self, options: CacheOptions) -> None: ...
    @property
    def shape(self) -> KvShape: ...
    def lookup(self, request: LookupRequest) -> Plan:
        """What can be reused. Changes nothing."""
    def begin(self, request: LookupRequest, plan: Plan) -> Sequence:
        """Starts a sequence with room for the prompt plus one token, all or nothing."""
    def still_computing(self, in_flight: InFlight) -> bool: ...
    def count_wait(self) -> None: ...
    def count_takeover(self) -> None: ...
    def record_shadow(self, shadow: int, agreed: bool) -> None: ...
    def pin(self, request: LookupRequest, ttl_s: float) -> int:
        """Keeps the prompt's resident blocks for ttl_s seconds. Returns the tokens pinned."""
    def clear(self) -> None:
        """Drops every block that no sequence uses."""
    def remember(self, text: str, tokens: Tokens, *, tenant: str = "", salt: str = "") -> None:
        """`text` was generated as these tokens."""
    def recall(
        self, text: str, *, tenant: str = "", salt: str = ""
    ) -> Optional[npt.NDArray[np.int32]]: ...
    def recall_prefix(
        self, text: str, *, tenant: str = "", salt: str = ""
    ) -> Optional[tuple[int, npt.NDArray[np.int32]]]:
        """The longest remembered text that `text` starts with: its bytes in UTF-8, its tokens."""
    def stats(self) -> dict[str, Any]:
        """Every counter of cache.h by name; `misses` and `similar_outcomes` by reason."""
    def close(self) -> None:
        """FailedPreconditionError while sequences are open."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> "Cache": ...
    def __exit__(self, *exception: object) -> None: ...

class Pages:
    """Another engine's KV pages: block i is what layers[0][i], layers[1][i] ... hold, one behind the
    other.

    layers: arrays [num_blocks, ...], C-contiguous but for the distance between blocks; held, not
    copied.
    """

    def __init__(self, layers: Iterable[Buffer]) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...

class BlockStore:
    """Blocks of bytes in a stack of tiers: RAM, disk (RocksDB), Redis. From any thread.

    Keys are 32 bytes, a full-strength digest (`block_keys`, `digest`). A block that fails a check on
    its way up is a miss. model: goes into every block and is compared on every load. remote:
    redis://[[user]:password@]host[:port][,host[:port]...] or rediss://. A tier that is away is no
    error: its blocks are misses until it answers. write_share: between begin_step and end_step, and
    until 20 ms after, disk and Redis are written for at most this share of the steps' CPU time (and
    100 ms at the start); what waits keeps its place in the queue. From 1 on nothing waits.
    writer_nice: of the threads that write, 0 to 19. remote_ttl_s: how long Redis keeps a block that
    nobody uses, rounded up to seconds; 0: no end.
    A store is its process's: in a fork, calls raise FailedPreconditionError, and closing does nothing.
    (RocksDB also makes a fork wait for ever in exit(): with cold_dir, leave it by os._exit, as
    multiprocessing does.)
    """

    def __init__(
        self, *, model: str, ram_bytes: int = 0, cold_dir: Optional[str] = None,
        cold_bytes: int = 10 << 30, remote: Optional[str] = None, remote_ca_file: str = "",
        remote_ttl_s: float = 86400.0, compression: str = "none", queue_bytes: int = 256 << 20,
        load_timeout_s: float = 0.5, store_timeout_s: float = 2.0, write_share: float = 1.0,
        writer_nice: int = 0,
    ) -> None: ...
    @property
    def tiers(self) -> list[str]:
        """Of "ram", "cold" and "remote", those there are, fastest first."""
    def put(
        self, key: Buffer, data: Buffer, *, parent: Optional[Buffer] = None, cost_us: float = 0.0
    ) -> bool:
        """Copies `data` and writes it behind. False: every tier has it, or none takes it now."""
    def put_pages(
        self, pages: Pages, block_ids: Seq[int], keys: Iterable[Buffer],
        parents: Iterable[Optional[Buffer]], *, cost_us: float = 0.0
    ) -> list[bool]:
        """`put` of each of these blocks, copied once from where it lies, without the GIL."""
    def begin_step(self) -> None:
        """The engine computes from now on."""
    def end_step(self, cpu_s: float) -> None:
        """The step took that much CPU time. (Does nothing for a store that is closed.)"""
    def locate(self, keys: Iterable[Buffer], timeout_s: float = 0.25) -> list[Optional[str]]:
        """The fastest tier that has each key. Redis is asked, within timeout_s, for keys that nobody
        here knows; 0: not asked."""
    def load(
        self, keys: Iterable[Buffer], buffers: Iterable[Buffer], timeout_s: float = 5.0
    ) -> list[Optional[str]]:
        """Reads each block into its writable buffer of exactly its size. The tier that gave it, or
        None: a miss, or too late; that buffer's contents are unspecified."""
    def get(self, key: Buffer, timeout_s: float = 5.0) -> Optional[bytes]: ...
    def remove(self, keys: Iterable[Buffer]) -> None:
        """From all tiers, behind the puts that are queued."""
    def drain(self, timeout_s: float = 5.0) -> bool:
        """Writes out what is queued; False when that took longer."""
    def addresses(self, tier: str) -> list[bytes]:
        """The first 16 bytes of each key that a tier has."""
    def stats(self) -> dict[str, dict[str, Any]]:
        """Counters by tier."""
    def close(self, drain_s: float = 5.0) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> "BlockStore": ...
    def __exit__(self, *exception: object) -> None: ...

def chain_digests(tokens: Tokens, block_size: int, extras: bytes) -> list[bytes]:
    """The library's own chain of keys; `kvlink.block_keys` gives the same from named fields."""
