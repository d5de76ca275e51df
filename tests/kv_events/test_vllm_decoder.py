"""KV events of `kvlink serve`, decoded by vLLM's own classes, in the environment that bench/compare makes."""
import json
import os
import subprocess
from pathlib import Path

import pytest

from kv_subscriber import Server, replay_until

PYTHON = Path(os.environ["KVLINK_SOURCE_DIR"]) / ".deps" / "bench-vllm" / "bin" / "python"
DECODE = """
import json, sys
import msgspec
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
decoder = msgspec.msgpack.Decoder(KVEventBatch)
batches = [decoder.decode(bytes.fromhex(line.strip())) for line in sys.stdin]
assert all(isinstance(event, (AllBlocksCleared, BlockRemoved, BlockStored)) for batch in batches for event in batch.events)
for batch in batches:
    for event in batch.events:
        hash(event) if not isinstance(event, AllBlocksCleared) else None
print(json.dumps([[type(event).__name__, msgspec.to_builtins(event)] for batch in batches for event in batch.events]))
"""


def vllm_events(batches):
    lines = "\n".join(payload.hex() for _number, payload in batches)
    done = subprocess.run([str(PYTHON), "-c", DECODE], input=lines, capture_output=True, text=True, timeout=600,
                          check=False, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.skipif(not PYTHON.exists(), reason="python3 bench/compare makes the environment with vLLM")
def test_vllm_reads_what_kvlink_publishes(tmp_path):
    server = Server(tmp_path, "--kv-memory", "24M", "--cold-dir", str(tmp_path / "cold"), "--cold-size", "64M",
                    "--tier-writes", "all")
    try:
        prompts = [[1000 + (seed * 7919 + i * 31) % 20000 for i in range(10 * 32 + 1)] for seed in range(6)]
        for tokens in prompts:
            server.complete(tokens)
        server.complete(prompts[-1][:65], cache_salt="salt")
        batches = replay_until(server, lambda batches: len(batches) >= 8 and any(b"STORAGE" in b for _, b in batches))
    finally:
        server.stop()
    events = vllm_events(batches)
    assert events[0][0] == "AllBlocksCleared"
    kinds = {name for name, _ in events}
    assert kinds == {"AllBlocksCleared", "BlockStored", "BlockRemoved"}
    assert {event.get("locality") for _, event in events if event.get("medium") == "STORAGE"} == {"LOCAL"}
    blocks = {}
    for name, event in events:
        if event.get("medium") == "STORAGE":
            continue
        if name == "BlockStored":
            parent = event["parent_block_hash"]
            assert parent is None or parent in blocks
            for index, block in enumerate(event["block_hashes"]):
                blocks[block] = event["token_ids"][index * 32 : (index + 1) * 32]
        elif name == "BlockRemoved":
            for block in event["block_hashes"]:
                del blocks[block]
    assert prompts[-1][:32] in blocks.values()
    assert any(event.get("extra_keys") for name, event in events if name == "BlockStored")
