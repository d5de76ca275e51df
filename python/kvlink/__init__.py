"""KVLink for Python: KV blocks shared between LLM requests.

`Cache` is the library's cache as an inference engine uses it; `BlockStore` keeps arbitrary blocks of
bytes in RAM, on disk and in Redis; `block_keys` names the blocks of a prompt; `DonorIndex` finds
similar prompts and says what they could lend. `kvlink.vllm` is a KV connector for vLLM.
"""

from kvlink._errors import (
    DataLossError,
    DeadlineError,
    FailedPreconditionError,
    InvalidArgumentError,
    KvlinkError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedError,
)
from kvlink._kvlink import (
    AttentionTraits,
    BlockStore,
    Cache,
    CacheOptions,
    KvShape,
    KvType,
    LookupRequest,
    Pages,
    Plan,
    Sequence,
    Sharing,
    SimilarModel,
    SimilarOptions,
    SimilarPolicy,
    __version__,
)
from kvlink.keys import block_keys, digest, root_digest
from kvlink.similar import DonorIndex, DonorMatch

__all__ = [
    "AttentionTraits",
    "BlockStore",
    "Cache",
    "CacheOptions",
    "DataLossError",
    "DeadlineError",
    "DonorIndex",
    "DonorMatch",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "KvShape",
    "KvType",
    "KvlinkError",
    "LookupRequest",
    "NotFoundError",
    "Pages",
    "Plan",
    "ResourceExhaustedError",
    "Sequence",
    "Sharing",
    "SimilarModel",
    "SimilarOptions",
    "SimilarPolicy",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "block_keys",
    "digest",
    "root_digest",
]
