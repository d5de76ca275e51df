"""KV events of `kvlink serve`, read with the format's fields written down here (as vLLM 0.32 has them)."""
import re
import subprocess
from typing import Any

import msgspec
import pytest
import zmq

from kv_subscriber import BINARY, Server, replay, replay_until

BLOCK = 32


class Event(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    locality: str | None = None


class BlockRemoved(Event):
    block_hashes: list[bytes | int]
    medium: str | None
    locality: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(Batch)


def events_of(batches):
    return [event for _number, payload in batches for event in DECODER.decode(payload).events]


def stored(batches):
    return [event for event in events_of(batches) if isinstance(event, BlockStored)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("events"), "--kv-memory", "24M", "--no-cold")
    yield running
    assert running.stop() == 0


def prompt(seed, count):
    return [1000 + (seed * 7919 + i * 31) % 20000 for i in range(count)]


def test_a_prompts_full_blocks_are_told_in_a_chain(server):
    tokens = prompt(1, 3 * BLOCK + 5)
    server.complete(tokens)
    batches = replay_until(server, lambda batches: any(event.token_ids[:BLOCK] == tokens[:BLOCK]
                                                       for event in stored(batches)))
    assert isinstance(events_of(batches)[0], AllBlocksCleared)
    assert [number for number, _ in batches] == list(range(len(batches)))
    chain = [event for event in stored(batches)]
    assert chain[0].parent_block_hash is None and chain[0].block_size == BLOCK and chain[0].medium == "CPU"
    told, last = [], None
    for event in chain:
        assert event.parent_block_hash == last
        assert len(event.token_ids) == BLOCK * len(event.block_hashes)
        told += event.token_ids
        last = event.block_hashes[-1]
    assert told == tokens[: 3 * BLOCK]


def test_a_hit_tells_nothing_new(server):
    tokens = prompt(2, 2 * BLOCK + 1)
    server.complete(tokens)
    replay_until(server, lambda batches: any(event.token_ids[:BLOCK] == tokens[:BLOCK] for event in stored(batches)))
    before = len(stored(replay(server)))
    assert server.complete(tokens)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 2 * BLOCK
    assert len(stored(replay(server))) == before


def test_a_salt_shows_as_a_namespace_and_not_as_itself(server):
    tokens = prompt(3, BLOCK + 1)
    server.complete(tokens, cache_salt="a secret word")
    batches = replay_until(server, lambda batches: any(event.token_ids[:BLOCK] == tokens[:BLOCK]
                                                       for event in stored(batches)))
    event = next(event for event in stored(batches) if event.token_ids[:BLOCK] == tokens[:BLOCK])
    ((name,),) = event.extra_keys
    assert len(name) == 16 and int(name, 16) >= 0
    assert all(b"secret" not in payload for _, payload in batches)


def test_what_is_evicted_is_told_and_what_is_told_hits(server):
    prompts = [prompt(10 + i, 10 * BLOCK + 1) for i in range(6)]
    for tokens in prompts:
        server.complete(tokens)
    last = prompts[-1]
    batches = replay_until(server, lambda batches: any(event.token_ids[:BLOCK] == last[:BLOCK]
                                                       for event in stored(batches)))
    known, removed = {}, 0
    for event in events_of(batches):
        if isinstance(event, AllBlocksCleared):
            known.clear()
        elif isinstance(event, BlockRemoved):
            removed += len(event.block_hashes)
            for block in event.block_hashes:
                del known[block]
        else:
            parent = event.parent_block_hash
            for index, block in enumerate(event.block_hashes):
                known[block] = (parent, tuple(event.token_ids[index * BLOCK : (index + 1) * BLOCK]))
                parent = block
    assert removed > 0

    def find(tokens):
        parent, blocks = None, 0
        by_content = {content: block for block, content in known.items()}
        while (block := by_content.get((parent, tuple(tokens[blocks * BLOCK : (blocks + 1) * BLOCK])))) is not None:
            parent, blocks = block, blocks + 1
        return blocks * BLOCK

    for tokens in (prompts[-1], prompts[0]):
        expected = find(tokens)
        cached = server.complete(tokens)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert expected <= cached < expected + BLOCK


def test_blocks_that_leave_ram_for_the_disk_are_told_to_be_there(tmp_path):
    """RAM takes about ten blocks: what it loses, the disk has, is told so, and is a hit."""
    server = Server(tmp_path, "--kv-memory", "8M", "--cold-dir", str(tmp_path / "cold"), "--cold-size", "64M",
                    "--tier-writes", "all")
    try:
        prompts = [prompt(200 + i, 5 * BLOCK + 1) for i in range(4)]
        for tokens in prompts:
            server.complete(tokens)

        def places(batches):
            at = {}
            for event in events_of(batches):
                if isinstance(event, AllBlocksCleared):
                    at.clear()
                    continue
                where = (event.medium, event.locality)
                for index, block in enumerate(event.block_hashes):
                    if isinstance(event, BlockStored):
                        at.setdefault(where, {})[block] = event.token_ids[index * BLOCK : (index + 1) * BLOCK]
                    else:
                        del at[where][block]
            return at

        def all_on_disk(batches):
            told = places(batches).get(("STORAGE", "LOCAL"), {}).values()
            return all(tokens[i * BLOCK : (i + 1) * BLOCK] in told for tokens in prompts for i in range(5))

        at = places(replay_until(server, all_on_disk))
        assert set(at) == {("CPU", None), ("STORAGE", "LOCAL")}
        assert len(at["CPU", None]) < 20
        # The same names in both places.
        assert all(at["STORAGE", "LOCAL"].get(block) == tokens for block, tokens in at["CPU", None].items())
        gone = next(tokens for tokens in prompts if tokens[:BLOCK] not in at["CPU", None].values())
        answer = server.complete(gone)
        assert answer["kvlink"]["tier"] == "cold" and answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 5 * BLOCK
    finally:
        assert server.stop() == 0


def test_the_start_tells_the_endpoints_as_they_were_given(server):
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", server.events)
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", server.replay)


def test_a_subscriber_hears_what_happens_in_order(server):
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(server.events)
        socket.subscribe(b"")
        seed = 100
        while not socket.poll(200):  # a subscription takes effect some time after it is made
            server.complete(prompt(seed, BLOCK + 1))
            seed += 1
        topic, number, payload = socket.recv_multipart()
        assert topic == b"" and DECODER.decode(payload).ts > 1.6e9
        assert (int.from_bytes(number, "big"), payload) in replay(server, int.from_bytes(number, "big"))


@pytest.mark.parametrize("options,named", [
    (["--kv-events", "carrier-pigeon"], "'carrier-pigeon'"),
    (["--kv-events-replay", "5558"], "--kv-events"),
    (["--kv-events", "tcp://127.0.0.1:99999"], "99999"),
])
def test_a_bad_endpoint_is_named_before_a_model_is_loaded(options, named):
    done = subprocess.run([BINARY, "serve", "--port", "0", *options], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode in (1, 2)
    assert named in done.stderr
