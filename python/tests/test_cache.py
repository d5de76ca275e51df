"""Cache and Sequence from Python: sharing, views, and misuse, which must never be a crash."""

import gc
import threading

import numpy as np
import pytest

import kvlink

SHAPE = dict(num_layers=2, num_kv_heads=2, head_dim=16, tokens_per_block=8)


def make_cache(pages=64, **shape):
    shape = kvlink.KvShape(**{**SHAPE, **shape})
    return kvlink.Cache(kvlink.CacheOptions(
        shape=shape, budget_bytes=pages * shape.page_bytes, model_fingerprint="test"))


def rows_of(tokens, first, layer, head, dim=16):
    """What a model would compute: different for every token, position, layer and head."""
    positions = np.arange(first, first + len(tokens))[:, None]
    base = np.asarray(tokens)[:, None] * 3 + positions * 5 + layer * 7 + head * 11
    k = ((base + np.arange(dim)) % 1000).astype(np.float16)
    return k, (k + 1).astype(np.float16)


def start(cache, tokens, **options):
    request = kvlink.LookupRequest(tokens, **options)
    return cache.begin(request, cache.lookup(request))


def compute(sequence, tokens, shape):
    ready = sequence.num_ready
    rest = list(tokens[ready:])
    for layer in range(shape.num_layers):
        for head in range(shape.num_kv_heads):
            k, v = rows_of(rest, ready, layer, head, shape.head_dim)
            sequence.write_rows(layer, head, ready, k, v)
    sequence.commit(rest)
    return len(rest)


def prefill(cache, tokens, **options):
    sequence = start(cache, tokens, **options)
    return sequence, compute(sequence, tokens, cache.shape)


@pytest.fixture
def cache():
    return make_cache()


def test_a_second_prompt_computes_only_what_differs(cache):
    first, computed = prefill(cache, list(range(100, 130)))
    assert computed == 30
    second, computed = prefill(cache, list(range(100, 120)) + [7, 8, 9])
    assert computed == 3
    assert cache.stats()["exact_tokens"] == 16  # two whole blocks
    assert cache.stats()["partial_tokens"] == 4  # and four rows of the third
    assert first.num_ready == 30 and second.num_ready == 23


def test_shared_rows_are_bit_equal_to_computed_ones(cache):
    tokens = list(range(40))
    prefill(cache, tokens[:30])
    second, _ = prefill(cache, tokens)
    for layer in range(2):
        for head in range(2):
            k, v = second.read_rows(layer, head, 0, 40)
            want_k, want_v = rows_of(tokens, 0, layer, head)
            np.testing.assert_array_equal(k, want_k)
            np.testing.assert_array_equal(v, want_v)


def test_tenants_and_salts_do_not_share_and_equal_ones_do(cache):
    tokens = list(range(50))
    prefill(cache, tokens, tenant="a", salt="x")
    assert prefill(cache, tokens, tenant="b", salt="x")[1] == 50
    assert prefill(cache, tokens, tenant="a", salt="y")[1] == 50
    assert prefill(cache, tokens, tenant="a", salt="x")[1] <= 2


def test_a_fork_shares_rows_and_writes_its_own(cache):
    tokens = list(range(20))
    parent, _ = prefill(cache, tokens)
    child = parent.fork(20, max_new_tokens=4)
    child.reserve(21)
    compute(child, tokens + [500], cache.shape)
    parent.reserve(21)
    compute(parent, tokens + [600], cache.shape)
    k, _ = child.read_rows(0, 0, 0, 21)
    np.testing.assert_array_equal(k, rows_of(tokens + [500], 0, 0, 0)[0])
    k, _ = parent.read_rows(0, 0, 0, 21)
    np.testing.assert_array_equal(k, rows_of(tokens + [600], 0, 0, 0)[0])


def test_row_views_are_the_memory_and_writable_only_behind_the_ready_rows(cache):
    sequence, _ = prefill(cache, list(range(12)))
    sequence.reserve(14)
    k, v = sequence.row(1, 1, 12)
    k[:], v[:] = 3, 4
    del k, v
    sequence.commit([77])
    k, v = sequence.read_rows(1, 1, 12, 13)
    assert (k == 3).all() and (v == 4).all()
    k, v = sequence.row(1, 1, 12)
    assert not k.flags.writeable and not v.flags.writeable
    with pytest.raises(ValueError):
        v[:] = 0
    page = sequence.page(0)
    assert page.nbytes == cache.shape.page_bytes and not page.flags.writeable


def test_a_sequence_does_not_change_under_a_view(cache):
    sequence, _ = prefill(cache, list(range(12)))
    k, v = sequence.row(0, 0, 12)
    piece = k[:2]
    del k, v
    for change in (lambda: sequence.commit([1]), lambda: sequence.reserve(100), sequence.close):
        with pytest.raises(kvlink.FailedPreconditionError, match="views of sequence"):
            change()
    del piece
    gc.collect()
    sequence.commit([1])
    sequence.close()


def test_a_view_outlives_the_name_of_its_sequence(cache):
    sequence, _ = prefill(cache, list(range(12)))
    v = sequence.row(0, 0, 3)[1]
    want = v.copy()
    del sequence
    prefill(cache, list(range(400, 600)))
    np.testing.assert_array_equal(v, want)
    with pytest.raises(kvlink.FailedPreconditionError, match="open sequences"):
        cache.close()
    del v
    gc.collect()
    cache.close()


@pytest.mark.parametrize("kind, dtype", [(kvlink.KvType.F16, np.float16),
                                         (kvlink.KvType.BF16, np.uint16)])
def test_rows_round_trip_in_every_type_without_scales(kind, dtype):
    cache = make_cache(type=kind)
    sequence = start(cache, list(range(10)))
    k = np.arange(10 * 16).reshape(10, 16).astype(dtype)
    v = k[::-1]  # not contiguous
    sequence.write_rows(0, 1, 0, k, v)
    sequence.commit(list(range(10)))
    read_k, read_v = sequence.read_rows(0, 1, 0, 10)
    assert read_k.dtype == dtype
    np.testing.assert_array_equal(read_k, k)
    np.testing.assert_array_equal(read_v, v)


def test_q8_rows_have_scales_and_are_reached_row_by_row():
    cache = make_cache(type=kvlink.KvType.Q8_0)
    sequence = start(cache, [1, 2, 3])
    k, v, k_scale, v_scale = sequence.row(0, 0, 1)
    assert k.dtype == np.int8 and k.shape == (4, 4) and k_scale.dtype == np.float16
    k[:], v[:], k_scale[:], v_scale[:] = 1, 2, 0.5, 0.25
    del k, v, k_scale, v_scale
    again = sequence.row(0, 0, 1)
    assert again[0].sum() == 16 and again[3][0] == 0.25
    del again
    with pytest.raises(kvlink.UnsupportedError, match="q8_0"):
        sequence.read_rows(0, 0, 0, 0)


def test_own_outputs_are_recalled_by_tenant(cache):
    cache.remember("hällo world", [5, 6, 7], tenant="a")
    np.testing.assert_array_equal(cache.recall("hällo world", tenant="a"), [5, 6, 7])
    assert cache.recall("hällo world", tenant="b") is None
    text_bytes, tokens = cache.recall_prefix("hällo world and more", tenant="a")
    assert text_bytes == len("hällo world".encode()) and list(tokens) == [5, 6, 7]


def test_pins_keep_blocks_under_pressure_and_clear_drops_everything():
    cache = make_cache(pages=32)
    pinned, other = (kvlink.LookupRequest(list(range(n, n + 64))) for n in (0, 1000))
    prefill(cache, pinned.tokens)[0].close()
    prefill(cache, other.tokens)[0].close()
    assert cache.pin(pinned, ttl_s=60) == 64
    for i in range(2, 12):
        prefill(cache, list(range(1000 * i, 1000 * i + 64)))[0].close()
    assert cache.lookup(pinned).exact_tokens >= 56 and cache.lookup(other).exact_tokens == 0
    cache.clear()
    assert cache.stats()["free_pages"] == 32


def test_lookups_run_beside_the_engine(cache):
    tokens = list(range(200))
    prefill(cache, tokens)
    request = kvlink.LookupRequest(tokens)
    found = []

    def look():
        for _ in range(300):
            found.append(cache.lookup(request).exact_tokens)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(30):
        prefill(cache, tokens[:100] + [1000 + i])[0].close()
    for thread in threads:
        thread.join()
    assert len(found) == 1200 and min(found) >= 192


def test_memory_that_is_not_there_is_an_error_with_figures():
    cache = make_cache(pages=4)
    with pytest.raises(kvlink.InvalidArgumentError, match="budget"):
        start(cache, list(range(100)))
    held = start(cache, list(range(20)))
    with pytest.raises(kvlink.ResourceExhaustedError):
        held.reserve(60)
    with pytest.raises(MemoryError):  # it is the built-in one as well
        held.reserve(60)


BAD_TOKENS = [([], "empty"), ([1, -2], r"tokens\[1\] is -2"), ([[1, 2]], "2 dimensions"),
              ([1.5, 2.0], "dtype float64"), ([2**31], r"tokens\[0\] is 2147483648"),
              (np.array([True]), "dtype bool"), ("abc", "dimensions|dtype"), (None, "dtype|dimensions")]


@pytest.mark.parametrize("tokens, message", BAD_TOKENS)
def test_wrong_tokens_are_refused_with_the_value(tokens, message):
    with pytest.raises(kvlink.InvalidArgumentError, match=message):
        kvlink.LookupRequest(tokens)


def test_wrong_rows_are_refused(cache):
    sequence, _ = prefill(cache, list(range(10)))
    sequence.reserve(12)
    good = np.zeros((2, 16), np.float16)
    bad = [
        (0, 0, 10, good.astype(np.float32), good, "dtype float32"),
        (0, 0, 10, good[:, :8], good, "shape"),
        (0, 0, 10, good[0], good, "shape"),
        (0, 0, 10, good, good[:1], "2 rows, v has 1"),
        (0, 0, 9, good, good, "below 10 are shared"),
        (2, 0, 10, good, good, "layer is 2"),
        (0, 5, 10, good, good, "kv_head is 5"),
        (0, 0, sequence.capacity, good, good, "room up to"),
        (0, 0, 10, None, good, "dtype"),
    ]
    for layer, head, begin, k, v, message in bad:
        with pytest.raises(kvlink.InvalidArgumentError, match=message):
            sequence.write_rows(layer, head, begin, k, v)
    for begin, end in ((0, 11), (5, 4)):
        with pytest.raises(kvlink.InvalidArgumentError, match="ready"):
            sequence.read_rows(0, 0, begin, end)
    with pytest.raises(kvlink.InvalidArgumentError, match="no row"):
        sequence.row(0, 0, 10_000)
    with pytest.raises(kvlink.InvalidArgumentError, match="block is 99"):
        sequence.page(99)
    with pytest.raises(TypeError):
        sequence.row(-1, 0, 0)


def test_what_a_broken_engine_would_do_is_an_exception(cache):
    sequence, _ = prefill(cache, list(range(10)))
    with pytest.raises(kvlink.InvalidArgumentError, match="capacity"):
        sequence.commit(list(range(1000)))
    with pytest.raises(kvlink.InvalidArgumentError, match="rows ready"):
        sequence.fork(11)
    with pytest.raises(kvlink.FailedPreconditionError, match="borrows no rows"):
        sequence.check_first_token(np.zeros(10, np.float32))
    other = kvlink.LookupRequest([1, 2, 3])
    with pytest.raises(kvlink.InvalidArgumentError, match="plan is for 3 tokens"):
        cache.begin(kvlink.LookupRequest([1, 2]), cache.lookup(other))
    with pytest.raises(kvlink.InvalidArgumentError, match="min_compute is 0"):
        kvlink.LookupRequest([1], min_compute=0)
    with pytest.raises(kvlink.InvalidArgumentError, match="ttl_s"):
        cache.pin(other, ttl_s=float("nan"))


def test_everything_closed_says_so(cache):
    sequence, _ = prefill(cache, list(range(10)))
    sequence.close()
    sequence.close()  # once more is no error
    assert sequence.closed
    calls = [lambda: sequence.num_ready, lambda: sequence.commit([1]), lambda: sequence.fork(1),
             lambda: sequence.row(0, 0, 0), lambda: sequence.page(0), lambda: sequence.reserve(5)]
    for call in calls:
        with pytest.raises(kvlink.FailedPreconditionError, match="sequence is closed"):
            call()
    cache.close()
    assert cache.closed
    request = kvlink.LookupRequest([1])
    for call in (lambda: cache.lookup(request), cache.stats, cache.clear, lambda: cache.shape):
        with pytest.raises(kvlink.FailedPreconditionError, match="cache is closed"):
            call()


def test_options_are_checked_by_name_and_value():
    shape = kvlink.KvShape(**SHAPE)
    with pytest.raises(TypeError, match="no option 'bugdet_bytes'"):
        kvlink.CacheOptions(shape=shape, bugdet_bytes=1)
    with pytest.raises(kvlink.InvalidArgumentError, match="budget_bytes is 1,"):
        kvlink.Cache(kvlink.CacheOptions(shape=shape, budget_bytes=1))
    with pytest.raises(kvlink.InvalidArgumentError, match="cow_copy_threshold"):
        kvlink.Cache(kvlink.CacheOptions(shape=shape, cow_copy_threshold=2.0))
    with pytest.raises(kvlink.InvalidArgumentError, match="tokens_per_block is 7"):
        kvlink.Cache(kvlink.CacheOptions(shape=kvlink.KvShape(**{**SHAPE, "tokens_per_block": 7})))
    with pytest.raises(TypeError):
        kvlink.KvShape(num_layers=-1, num_kv_heads=1, head_dim=8)


def test_random_prompts_against_the_model_that_computed_them():
    """Whatever is shared, forked, evicted: every ready row is what computing it would give."""
    random = np.random.default_rng(1)
    cache = make_cache(pages=24)
    open_sequences = []
    shared = 0
    for _ in range(300):
        if len(open_sequences) > 2 or (open_sequences and random.random() < 0.3):
            open_sequences.pop(random.integers(len(open_sequences))).close()
        prompt = list(random.integers(0, 3, size=random.integers(1, 5)).repeat(5))
        try:
            sequence = start(cache, prompt)
        except kvlink.ResourceExhaustedError:
            continue
        shared += sequence.num_ready
        compute(sequence, prompt, cache.shape)
        for layer, head in ((0, 1), (1, 0)):
            k, v = sequence.read_rows(layer, head, 0, len(prompt))
            want_k, want_v = rows_of(prompt, 0, layer, head)
            np.testing.assert_array_equal(k, want_k)
            np.testing.assert_array_equal(v, want_v)
        open_sequences.append(sequence)
        stats = cache.stats()
        assert stats["free_pages"] + stats["cached_pages"] + stats["in_use_pages"] == 24
    assert shared > 100
    for sequence in open_sequences:
        sequence.close()
    cache.clear()
    assert cache.stats()["free_pages"] == 24
