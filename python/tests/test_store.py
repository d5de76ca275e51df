"""BlockStore: RAM, disk and Redis for arbitrary blocks."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kvlink
from kvlink import _kvlink
from kvlink.keys import fields
from redis_server import RedisServer

KEYS = kvlink.block_keys(range(400), 4, "model")


def block(i, size=10_000):
    return np.random.default_rng(i).integers(0, 256, size, dtype=np.uint8)


def put_all(store, count=5):
    for i in range(count):
        assert store.put(KEYS[i], block(i), parent=KEYS[i - 1] if i else None)
    assert store.drain(20)


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.stop()


def test_a_block_comes_back_bit_for_bit_from_each_tier(tmp_path, redis):
    for tier, options in {"ram": dict(ram_bytes=1 << 20), "cold": dict(cold_dir=str(tmp_path / "c")),
                          "remote": dict(remote=redis.url)}.items():
        with kvlink.BlockStore(model="m", **options) as store:
            assert store.tiers == [tier]
            put_all(store)
            assert store.locate(KEYS[:6]) == [tier] * 5 + [None]
            buffers = [np.zeros(10_000, np.uint8) for _ in range(6)]
            assert store.load(KEYS[:6], buffers) == [tier] * 5 + [None]
            for i in range(5):
                np.testing.assert_array_equal(buffers[i], block(i))
            assert store.get(KEYS[3]) == block(3).tobytes() and store.get(KEYS[9]) is None
            stats = store.stats()[tier]
            assert stats["hits"] >= 5 and stats["stored"] == 5 and stats["bytes_read"] >= 50_000


def test_disk_survives_a_restart_and_ram_does_not(tmp_path):
    options = dict(model="m", ram_bytes=1 << 20, cold_dir=str(tmp_path / "c"))
    with kvlink.BlockStore(**options) as store:
        put_all(store)
        assert store.locate(KEYS[:1]) == ["ram"]
    with kvlink.BlockStore(**options) as store:
        assert store.locate(KEYS[:5]) == ["cold"] * 5
        assert sorted(store.addresses("cold")) == sorted(key[:16] for key in KEYS[:5])
        assert store.addresses("ram") == []
        assert store.get(KEYS[4]) == block(4).tobytes()


def test_two_stores_share_through_redis(redis):
    with kvlink.BlockStore(model="m", ram_bytes=1 << 20, remote=redis.url) as a:
        put_all(a)
        with kvlink.BlockStore(model="m", ram_bytes=1 << 20, remote=redis.url) as b:
            assert b.locate(KEYS[:1], timeout_s=0) == [None]  # nobody was asked
            assert b.locate(KEYS[:6], timeout_s=5) == ["remote"] * 5 + [None]
            assert b.get(KEYS[2]) == block(2).tobytes()
        with kvlink.BlockStore(model="other", remote=redis.url) as c:
            assert c.get(KEYS[2]) is None  # sound bytes of another model
            assert sum(c.stats()["remote"]["errors"].values()) == 1


def test_a_redis_that_goes_away_is_a_miss_in_bounded_time(redis):
    with kvlink.BlockStore(model="m", remote=redis.url, load_timeout_s=0.2) as store:
        put_all(store, 1)
        redis.stop()
        start = time.monotonic()
        assert store.get(KEYS[0], timeout_s=1.0) is None
        assert store.locate(KEYS[5:6], timeout_s=1.0) == [None]
        assert time.monotonic() - start < 10
        assert store.stats()["remote"]["last_error"]


def test_damaged_bytes_on_disk_are_a_miss_and_counted(tmp_path):
    folder = tmp_path / "c"
    with kvlink.BlockStore(model="m", cold_dir=str(folder)) as store:
        put_all(store)
    damaged = 0
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".blob", ".log", ".sst"):
            data = bytearray(path.read_bytes())
            at = data.find(block(2).tobytes()[:64])
            if at >= 0:
                data[at] ^= 1
                path.write_bytes(data)
                damaged += 1
    assert damaged > 0
    with kvlink.BlockStore(model="m", cold_dir=str(folder)) as store:
        assert store.get(KEYS[2]) != block(2).tobytes()  # never the wrong bytes
        assert store.get(KEYS[2]) is None


def test_removed_blocks_are_gone(tmp_path):
    with kvlink.BlockStore(model="m", ram_bytes=1 << 20, cold_dir=str(tmp_path / "c")) as store:
        put_all(store)
        store.remove(KEYS[1:3])
        store.drain(20)
        assert [name is None for name in store.locate(KEYS[:5])] == [False, True, True, False, False]


def test_ram_keeps_to_its_budget():
    with kvlink.BlockStore(model="m", ram_bytes=100_000) as store:
        put_all(store, 30)
        stats = store.stats()["ram"]
        assert stats["bytes"] <= 100_000 and stats["evictions"] >= 20
        assert store.locate(KEYS[29:30]) == ["ram"] and store.locate(KEYS[:1]) == [None]


def test_the_interpreter_goes_on_while_a_call_waits(redis):
    """A frozen Redis: a load that waits must not hold the GIL."""
    with kvlink.BlockStore(model="m", remote=redis.url, load_timeout_s=2.0) as store:
        put_all(store, 1)
        os.kill(redis._process.pid, 19)  # SIGSTOP
        try:
            waiting = threading.Thread(target=lambda: store.get(KEYS[0], timeout_s=1.0))
            waiting.start()
            ticks = 0
            while waiting.is_alive():
                ticks += 1
                time.sleep(0.001)
            assert ticks > 5  # it waits a quarter of a second; with the GIL there would be one or two
        finally:
            os.kill(redis._process.pid, 18)  # SIGCONT


def test_keys_are_the_librarys_own_chain():
    tokens = list(range(37))
    extras = fields(model="f", tenant="t", salt="s")
    assert kvlink.block_keys(tokens, 8, "f", "t", "s") == _kvlink.chain_digests(tokens, 8, extras)


def strided_layers(num_blocks=6):
    """Three layers' pages: one array a layer, one with room between its blocks, one of small pages."""
    random = np.random.default_rng(5)
    wide = random.integers(0, 256, (num_blocks, 5000), dtype=np.uint8)
    return [random.integers(0, 256, (num_blocks, 2, 8, 64), dtype=np.uint8), wide[:, 100:3100],
            random.integers(0, 60000, (num_blocks, 7), dtype=np.uint16)]


def page_bytes(layers, block_id):
    return b"".join(layer[block_id].tobytes() for layer in layers)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_pages_are_stored_as_they_lie_layer_after_layer(tmp_path, compression):
    layers = strided_layers()
    pages = kvlink.Pages(layers)
    assert pages.num_blocks == 6 and pages.block_bytes == 1024 + 3000 + 14
    with kvlink.BlockStore(model="m", ram_bytes=1 << 20, cold_dir=str(tmp_path / "c"),
                           compression=compression) as store:
        assert store.put_pages(pages, [4, 0, 5], KEYS[:3], [None, *KEYS[:2]]) == [True] * 3
        wanted = [page_bytes(layers, block_id) for block_id in (4, 0, 5)]
        layers[0][:] = 0  # what is stored is a copy
        assert store.drain(20)
        assert store.put_pages(pages, [4], KEYS[:1], [None]) == [False]  # it is everywhere
        for key, data in zip(KEYS, wanted):
            assert store.get(key) == data
        assert store.put_pages(pages, [], [], []) == []
    with kvlink.BlockStore(model="m", cold_dir=str(tmp_path / "c")) as store:
        for key, data in zip(KEYS, wanted):
            assert store.get(key) == data


def test_pages_that_do_not_lie_as_blocks_are_refused():
    layers = strided_layers()
    for bad, message in [([], "a block has 0 bytes"), ([layers[0], np.zeros(5)], "layer 1 has 5 blocks"),
                         ([layers[0].transpose(0, 3, 1, 2)], "layer 0 is not C-contiguous"),
                         ([layers[1][::-1]], "layer 0 is not"), ([7], "layer 0 is no buffer")]:
        with pytest.raises(kvlink.InvalidArgumentError, match=message):
            kvlink.Pages(bad)
    pages = kvlink.Pages(layers)
    with kvlink.BlockStore(model="m", ram_bytes=1 << 20) as store:
        for ids, keys, parents, message in [
            ([6], KEYS[:1], [None], "block id 6 of 6"), ([-1], KEYS[:1], [None], "block id -1"),
            ([0], KEYS[:2], [None], "2 keys, but 1 block ids"),
            ([0], KEYS[:1], [], "1 keys, but 0 parents"), ([0], [b"k"], [None], "key has 1 bytes"),
            ([0], KEYS[:1], [b"p"], "parent has 1 bytes"),
        ]:
            with pytest.raises(kvlink.InvalidArgumentError, match=message):
                store.put_pages(pages, ids, keys, parents)
        assert store.stats()["ram"]["queued_blocks"] == 0


def eventually(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "not within 60 s"
        time.sleep(0.01)


def test_beside_steps_the_disk_waits_and_ram_does_not(tmp_path):
    with kvlink.BlockStore(model="m", ram_bytes=1 << 20, cold_dir=str(tmp_path / "c"),
                           write_share=0, writer_nice=5) as store:
        store.begin_step()
        assert store.put(KEYS[0], block(0))
        eventually(lambda: store.locate(KEYS[:1]) == ["ram"])
        assert store.stats()["cold"]["stored"] == 0 and store.stats()["cold"]["queued_blocks"] == 1
        store.end_step(10.0)  # of which nothing may be spent; but then it is idle
        eventually(lambda: store.stats()["cold"]["stored"] == 1)
        assert store.stats()["cold"]["write_cpu_s"] > 0
        store.begin_step()
        store.put(KEYS[1], block(1))
        assert store.drain(20)  # does not wait for the step
        assert store.stats()["cold"]["stored"] == 2


def test_wrong_arguments_are_refused_with_the_value(tmp_path):
    with pytest.raises(kvlink.InvalidArgumentError, match="no tier"):
        kvlink.BlockStore(model="m")
    with pytest.raises(kvlink.InvalidArgumentError, match="compression is 'gzip'"):
        kvlink.BlockStore(model="m", ram_bytes=1, compression="gzip")
    with pytest.raises(kvlink.KvlinkError):
        kvlink.BlockStore(model="m", remote="http://nowhere")
    for name, value in (("write_share", -0.5), ("write_share", float("nan")), ("writer_nice", 20)):
        with pytest.raises(kvlink.InvalidArgumentError, match=f"{name} is {value}"):
            kvlink.BlockStore(model="m", ram_bytes=1, **{name: value})
    with pytest.raises(TypeError):
        kvlink.BlockStore(model="m", ram_bytes=-1)
    with kvlink.BlockStore(model="m", ram_bytes=1 << 20) as store:
        bad = [
            (lambda: store.put(b"short", b"x"), "key has 5 bytes, not 32"),
            (lambda: store.put(KEYS[0], b""), "data has 0 bytes"),
            (lambda: store.put(KEYS[0], np.zeros((8, 8))[:, ::2]), "C-contiguous"),
            (lambda: store.put("text", b"x"), "not a C-contiguous buffer"),
            (lambda: store.load(KEYS[:2], [bytearray(4)]), "2 keys, but 1 buffers"),
            (lambda: store.load(KEYS[:1], [b"read-only"]), "writable"),
            (lambda: store.get(KEYS[0], timeout_s=-1), "timeout_s is -1"),
        ]
        for call, message in bad:
            with pytest.raises(kvlink.InvalidArgumentError, match=message):
                call()
        with pytest.raises(kvlink.NotFoundError, match="cold"):
            store.addresses("cold")
        put_all(store, 1)
        assert store.load(KEYS[:1], [bytearray(5)]) == [None]  # another size is not that block


def test_a_directory_belongs_to_one_store(tmp_path):
    with kvlink.BlockStore(model="m", cold_dir=str(tmp_path / "c")):
        with pytest.raises(kvlink.FailedPreconditionError):
            kvlink.BlockStore(model="m", cold_dir=str(tmp_path / "c"))


def test_a_closed_store_says_so():
    store = kvlink.BlockStore(model="m", ram_bytes=1 << 20)
    store.close()
    store.close()
    assert store.closed
    for call in (lambda: store.put(KEYS[0], b"x"), lambda: store.get(KEYS[0]), store.stats,
                 lambda: store.locate(KEYS[:1]), lambda: store.remove([]), store.drain):
        with pytest.raises(kvlink.FailedPreconditionError, match="closed"):
            call()


def run(program):
    return subprocess.run([sys.executable, "-c", "import os, sys, threading, kvlink\n" + program],
                          capture_output=True, text=True, timeout=60, env=os.environ, check=False)


@pytest.mark.parametrize("end", ["sys.exit(0)", "store.close(); os._exit(0)", "del store; os._exit(0)"])
def test_a_fork_neither_uses_nor_ends_the_store(end):
    """Its threads are in the parent: waiting for them would take for ever."""
    done = run(f"""
store = kvlink.BlockStore(model="m", ram_bytes=1 << 20)
store.put(b"k" * 32, b"block")
assert store.drain(20)
child = os.fork()
if child == 0:
    for use in (lambda: store.get(b"k" * 32), lambda: store.put(b"l" * 32, b"b"), store.stats):
        try:
            use()
        except kvlink.FailedPreconditionError as error:
            assert "fork" in str(error)
        else:
            os._exit(3)
    {end}
assert os.waitpid(child, 0)[1] == 0
assert store.get(b"k" * 32) == b"block"
store.close()
""")
    assert done.returncode == 0, done.stderr


def test_threads_that_use_a_store_do_not_disturb_the_end_of_the_process():
    done = run("""
store = kvlink.BlockStore(model="m", ram_bytes=1 << 22)
store.put(b"k" * 32, bytes(1 << 20))
assert store.drain(20)
begun = [threading.Event() for _ in range(3)]
def use(event):
    while True:
        store.get(b"k" * 32)
        event.set()
for event in begun:
    threading.Thread(target=use, args=(event,), daemon=True).start()
for event in begun:
    event.wait()
print("end")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_month_in_redis_is_no_error_and_less_than_a_second_is_not_for_ever(redis):
    def lives_for(seconds):
        redis.ask("FLUSHALL")
        with kvlink.BlockStore(model="m", remote=redis.url, remote_ttl_s=seconds) as store:
            put_all(store, 1)
        return redis.ask("EVAL \"return redis.call('TTL', redis.call('RANDOMKEY') or '')\" 0")

    assert 30 * 86400 - 60 <= int(lives_for(30 * 86400.0)[1:]) <= 30 * 86400
    assert lives_for(0.4) in (":0", ":1", ":-2")  # -2: it has gone already
    assert lives_for(0.0) == ":-1"  # no end
    for wrong in (-1, float("nan"), 1e10):
        with pytest.raises(kvlink.InvalidArgumentError, match=f"remote_ttl_s is {wrong:.0f}"):
            kvlink.BlockStore(model="m", remote=redis.url, remote_ttl_s=wrong)
