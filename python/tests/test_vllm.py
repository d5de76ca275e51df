"""KVLinkConnector in the real vLLM, on CPU, with SmolLM2 in FP32: answers, restarts, Redis, damage.

Minutes and gigabytes: label heavy. scripts/test.sh --heavy -R python.vllm
"""

import numpy as np
import pytest

import vllm_process
from redis_server import RedisServer
from vllm_process import Vllm

BLOCK = 128  # vLLM's default on CPU


def prompt(seed, size):
    return [int(t) for t in np.random.default_rng(seed).integers(1000, 20000, size)]


SHARED = prompt(1, 600)
PROMPTS = [SHARED + prompt(2, 50), SHARED + prompt(3, 90), prompt(4, 300), prompt(5, 2 * BLOCK)]
CACHED = [5 * BLOCK, 5 * BLOCK, 2 * BLOCK, 2 * BLOCK - 1]  # the last token is computed, alone
# A clock in the head is all that differs: what similar reuse is for, and exact reuse is not.
EDITED = SHARED[:4] + [777] + SHARED[5:] + prompt(2, 50)


def log_of(tmp_path_factory, name):
    return tmp_path_factory.mktemp("vllm") / f"{name}.log"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What vLLM answers without a connector."""
    with Vllm(None, log_of(tmp_path_factory, "plain")) as vllm:
        return {"prompts": vllm.generate(PROMPTS)["tokens"],
                "edited": vllm.generate([EDITED])["tokens"],
                "long": vllm.generate([PROMPTS[0]], max_tokens=160)["tokens"]}


@pytest.fixture(scope="module")
def cold(tmp_path_factory, plain):
    """A cold store that a vLLM filled; it was ended in order."""
    folder = tmp_path_factory.mktemp("cold")
    with Vllm({"ram_bytes": "256MiB", "cold_dir": str(folder)},
              log_of(tmp_path_factory, "first")) as vllm:
        assert vllm.generate(PROMPTS)["tokens"] == plain["prompts"]
        assert vllm.generate([PROMPTS[0]], max_tokens=160)["tokens"] == plain["long"]
        # vLLM's own cache is dropped: now RAM has the blocks.
        assert vllm.ask(reset=None)["ok"]
        again = vllm.generate(PROMPTS)
        assert again["tokens"] == plain["prompts"]
        assert again["cached"] == CACHED
        metrics = vllm.metrics()
        assert metrics["vllm:kvlink_load_blocks_ram"] >= 8
        assert metrics["vllm:kvlink_save_blocks"] >= 8
        assert metrics["vllm:external_prefix_cache_hits"] >= 8 * BLOCK
        # Another salt sees nothing of it, and the same salt does.
        salted = vllm.generate([PROMPTS[2]], salt="mine")
        assert salted["cached"] == [0] and salted["tokens"] == plain["prompts"][2:3]
        vllm.ask(reset=None)
        assert vllm.generate([PROMPTS[2]], salt="mine")["cached"] == [2 * BLOCK]
    return folder


def test_a_restarted_vllm_loads_from_disk_and_answers_the_same(cold, plain, tmp_path_factory):
    log = log_of(tmp_path_factory, "restarted")
    with Vllm({"ram_bytes": "256MiB", "cold_dir": str(cold), "similar": "observe"}, log) as vllm:
        answer = vllm.generate(PROMPTS)
        assert answer["tokens"] == plain["prompts"]
        assert answer["cached"] == CACHED
        # The first run generated 160 tokens: the block in which they began is there as well.
        longer = vllm.generate([PROMPTS[0] + plain["long"][0]])
        assert longer["cached"][0] >= 6 * BLOCK
        metrics = vllm.metrics()
        assert metrics["vllm:kvlink_load_blocks_cold"] >= 7 and metrics["vllm:kvlink_load_blocks_failed"] == 0
        # Observe mode: a donor is found, nothing changes.
        edited = vllm.generate([EDITED])
        assert edited["tokens"] == plain["edited"] and edited["cached"] == [0]
        metrics = vllm.metrics()
        assert metrics["vllm:kvlink_similar_found"] >= 1
        assert metrics["vllm:kvlink_similar_tokens_saveable"] >= 300
    assert "KVLink observes: request" in log.read_text()


def test_an_overridden_configuration_finds_nothing_of_the_files_own(cold, tmp_path_factory):
    with Vllm({"cold_dir": str(cold), "ram_bytes": 0}, log_of(tmp_path_factory, "overridden"),
              {"hf_overrides": {"rms_norm_eps": 0.5}, "kv_cache_memory_bytes": 100 << 20,
               "max_model_len": 1024}) as vllm:
        assert vllm.generate([PROMPTS[2]])["cached"] == [0]


def test_blocks_survive_a_kill(cold, plain, tmp_path_factory):
    """kill -9 of every process, then damage: whatever does not verify is computed again."""
    options = {"ram_bytes": "64MiB", "cold_dir": str(cold)}
    vllm = Vllm(options, log_of(tmp_path_factory, "killed"))
    fresh = prompt(9, 400)
    want = vllm.generate([fresh])["tokens"]
    vllm.generate([prompt(10, 40)])  # gives the writers time, as traffic would
    vllm.kill()
    damaged = 0
    for path in cold.rglob("*.blob"):
        data = bytearray(path.read_bytes())
        for at in range(len(data) // 3, len(data), 1 << 20):
            data[at] ^= 0xFF
            damaged += 1
        path.write_bytes(data)
    assert damaged > 0
    with Vllm(options, log_of(tmp_path_factory, "damaged")) as vllm:
        answer = vllm.generate(PROMPTS + [fresh])
        assert answer["tokens"] == plain["prompts"] + want
        metrics = vllm.metrics()
        assert metrics["vllm:kvlink_load_blocks_failed"] >= 1
        assert metrics["vllm:kvlink_load_blocks"] >= 0


def test_two_vllm_processes_share_through_redis(plain, tmp_path_factory):
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    options = {"ram_bytes": "64MiB", "remote": redis.url, "lookup_timeout_s": 1.0}
    small = {"kv_cache_memory_bytes": 300 << 20, "max_model_len": 4096}
    try:
        with Vllm(options, log_of(tmp_path_factory, "a"), small) as a:
            assert a.generate(PROMPTS)["tokens"] == plain["prompts"]
            with Vllm(options, log_of(tmp_path_factory, "b"), small) as b:  # beside it
                answer = b.generate(PROMPTS)
                assert answer["tokens"] == plain["prompts"]
                assert answer["cached"] == CACHED
                assert b.metrics()["vllm:kvlink_load_blocks_remote"] >= 7
                redis.stop()  # and without it they go on
                assert b.generate([EDITED])["tokens"] == plain["edited"]
            assert a.generate([EDITED])["tokens"] == plain["edited"]
    finally:
        redis.stop()


def test_the_device_path_moves_the_same_bytes():
    """DevicePages on torch tensors of vLLM's shape, against HostPages. (No accelerator here.)"""
    import subprocess

    python, _ = vllm_process.environment_of_vllm()
    program = """
import numpy as np, torch
from kvlink.vllm.pages import DevicePages, HostPages, pages_of
torch.manual_seed(0)
flat = torch.randn(3, 10, 2, 8, 16).to(torch.bfloat16)
layers = [flat[i] for i in range(3)]
host, device = pages_of(layers, 10), DevicePages(layers)
assert isinstance(host, HostPages) and host.direct is not None and device.direct is None
assert host.direct.num_blocks == 10 and host.direct.block_bytes == host.block_bytes
assert pages_of([layer.transpose(1, 2) for layer in layers], 10).direct is None
assert host.block_bytes == device.block_bytes == 3 * 2 * 8 * 16 * 2
a, b = (np.zeros((3, host.block_bytes), np.uint8) for _ in range(2))
host.gather([7, 0, 3], a); device.gather([7, 0, 3], b)
assert (a == b).all() and a.any()
device.scatter([1, 2, 4], a)
host.gather([1, 2, 4], b)
assert (a == b).all()
try:
    pages_of(layers, 11)
except ValueError as error:
    assert "11 blocks" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_cached_rightly_is_refused():
    """vLLM's own classes of layers; no engine is started."""
    import subprocess

    python, _ = vllm_process.environment_of_vllm()
    program = """
from types import SimpleNamespace as N
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from kvlink import UnsupportedError
from kvlink.vllm.connector import check_supported
from kvlink.vllm.options import ConnectorOptions
size = dict(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
full = KVCacheGroupSpec(["a"], FullAttentionSpec(**size))
window = KVCacheGroupSpec(["b"], SlidingWindowSpec(**size, sliding_window=4))
draft = KVCacheGroupSpec(["c"], FullAttentionSpec(**size), is_eagle_group=True)
def config(algorithm="sha256", asynchronous=True, dcp=1):
    return N(cache_config=N(prefix_caching_hash_algo=algorithm),
             scheduler_config=N(async_scheduling=asynchronous),
             parallel_config=N(decode_context_parallel_size=dcp, prefill_context_parallel_size=1))
def refused(groups, vllm_config, options=ConnectorOptions()):
    try:
        check_supported(vllm_config, N(kv_cache_groups=groups), options)
    except UnsupportedError as error:
        return str(error)
    return ""
assert refused([full], config()) == ""
assert "--disable-hybrid-kv-cache-manager" in refused([full, window], config())
assert "SlidingWindowSpec" in refused([window], config())
assert "draft" in refused([draft], config())
assert "sha256" in refused([full], config("xxhash"))
assert "decode_context_parallel_size = 2" in refused([full], config(dcp=2))
assert "no-async-scheduling" in refused([full], config(), ConnectorOptions(load="sync"))
assert refused([full], config(asynchronous=False), ConnectorOptions(load="sync")) == ""
"""
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
