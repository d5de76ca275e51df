"""Block keys: a chain that names a block and everything before it."""

import numpy as np
import pytest

import kvlink
from kvlink.keys import fields


def keys(tokens, **options):
    return kvlink.block_keys(tokens, 4, **{"fingerprint": "m", **options})


def test_only_full_blocks_have_keys():
    assert len(keys(range(11))) == 2 and keys([1, 2, 3]) == [] and keys([]) == []
    assert all(len(key) == 32 for key in keys(range(11)))


def test_prompts_share_the_keys_of_their_common_blocks_and_no_others():
    a, b = keys(range(16)), keys(list(range(8)) + [99] + list(range(9, 16)))
    assert a[:2] == b[:2]
    assert not set(a[2:]) & set(b[2:])  # the last blocks' tokens are equal, what is before is not


@pytest.mark.parametrize("change", [dict(fingerprint="n"), dict(tenant="t"), dict(salt="s")])
def test_whatever_k_and_v_depend_on_is_in_every_key(change):
    assert not set(keys(range(8))) & set(keys(range(8), **change))


def test_fields_cannot_run_into_each_other():
    assert keys(range(8), tenant="org_1", salt="2345") != keys(range(8), tenant="org_12345")
    assert fields(a="1") != fields(a=1) and fields(a="", b="x") != fields(a="x", b="")


def test_the_bytes_of_fields_and_root_are_those_of_the_documents():
    assert fields(salt="X") == b"s\x04\0\0\0salt\x01\0\0\0X"
    assert kvlink.root_digest("m").hex() == kvlink.digest(
        b"kvlink-root\0" + fields(model="m", tenant="", salt="")).hex()


def test_any_sequence_of_integers_gives_the_same_keys():
    want = keys(range(8))
    for kind in (list, tuple, np.array, lambda t: np.array(t, np.uint16), lambda t: np.array(t)[::1]):
        assert keys(kind(range(8))) == want


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_has_no_bytes_is_refused(number):
    with pytest.raises(kvlink.InvalidArgumentError, match=f"field model is {number}"):
        kvlink.root_digest(number)


@pytest.mark.parametrize("tokens, size, message", [
    ([1.0, 2.0], 4, "dtype"), ([[1]], 4, "dimensions"), ([1, -1], 4, r"tokens\[1\] is -1"),
    ([2**31], 4, "no token id"), ([1], 0, "block_size is 0"), ([1], 2.5, "block_size"),
    ([1], True, "block_size")])
def test_wrong_arguments_are_refused_with_the_value(tokens, size, message):
    with pytest.raises(kvlink.InvalidArgumentError, match=message):
        kvlink.block_keys(tokens, size, "m")
