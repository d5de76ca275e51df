"""Names of blocks that hold across processes and machines: a chain of SHA-256 digests.

    root = SHA-256("kvlink-root\\0" + extras)        next = SHA-256(parent, tokens as int32 LE)

`extras` are typed, length-prefixed fields, so that two different lists of fields never give the same
bytes: the model's fingerprint, the tenant, the salt. It is the scheme of src/tier/chain_digest.h and
src/base/key_builder.h; a test keeps them equal.
"""

import hashlib
import struct

import numpy as np

from kvlink._errors import InvalidArgumentError

DIGEST_BYTES = 32


def fields(**values):
    """The bytes of a list of fields. Text becomes type 's', a number below 2^64 type 'u'."""
    parts = []
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (str, bytes, int)):
            raise InvalidArgumentError(f"field {name} is a {type(value).__name__}, no text or number")
        if isinstance(value, int):
            if not 0 <= value < 2**64:
                raise InvalidArgumentError(f"field {name} is {value}, no number from 0 to 2^64 - 1")
            kind, data = b"u", struct.pack("<Q", value)
        else:
            kind, data = b"s", value.encode() if isinstance(value, str) else value
        encoded = name.encode()
        parts.append(kind + struct.pack("<I", len(encoded)) + encoded)
        parts.append(struct.pack("<I", len(data)) + data)
    return b"".join(parts)


def root_digest(fingerprint, tenant="", salt=""):
    """The digest that stands for everything a block depends on besides its tokens. 32 bytes."""
    extras = fields(model=fingerprint, tenant=tenant, salt=salt)
    return hashlib.sha256(b"kvlink-root\0" + extras).digest()


def digest(data):
    """SHA-256 of arbitrary bytes: a key for blocks that other engines name. 32 bytes."""
    return hashlib.sha256(data).digest()


def block_keys(tokens, block_size, fingerprint, tenant="", salt=""):
    """The keys of a prompt's full blocks, first to last.

    tokens: a one-dimensional sequence of token ids in [0, 2^31). block_size: tokens a block, at
    least 1; what remains behind the last full block gets no key. fingerprint: everything the K and V
    depend on besides tokens (weights, layout, data type, numeric path). tenant, salt: who may share.

    Returns a list of 32-byte keys. A key names its block *and* all before it: prompts that share
    their first n blocks share their first n keys, and no others.
    Raises InvalidArgumentError for a wrong dtype, shape or value.
    """
    if not isinstance(block_size, (int, np.integer)) or isinstance(block_size, bool) or block_size < 1:
        raise InvalidArgumentError(f"block_size is {block_size!r}, but must be an integer above 0")
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise InvalidArgumentError(f"tokens has {array.ndim} dimensions, not 1")
    if array.size and array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"tokens has the dtype {array.dtype}, not an integer one")
    if array.size and (array.min() < 0 or array.max() >= 2**31):
        position = int(np.argmax((array < 0) | (array >= 2**31)))
        raise InvalidArgumentError(f"tokens[{position}] is {array[position]}, no token id")
    data = array.astype("<i4").tobytes()
    key = root_digest(fingerprint, tenant, salt)
    keys = []
    step = 4 * int(block_size)
    for end in range(step, len(data) + 1, step):
        key = hashlib.sha256(key + data[end - step : end]).digest()
        keys.append(key)
    return keys
