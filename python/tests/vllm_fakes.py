"""vLLM's requests and step outputs as far as the connector looks at them, and a small vLLM that plays
them: a scheduler with pages and a worker, in one process. The real one is in test_vllm.py."""

import hashlib
from types import SimpleNamespace

import numpy as np

from kvlink.vllm.options import ConnectorOptions
from kvlink.vllm.pages import HostPages
from kvlink.vllm.scheduler import SchedulerSide
from kvlink.vllm.worker import WorkerSide

BLOCK = 4


class FakeRequest:
    def __init__(self, request_id, tokens, salt=None, lora=None):
        self.request_id, self.prompt_token_ids = request_id, list(tokens)
        self.all_token_ids = list(tokens)
        self.cache_salt, self.lora_request, self.mm_features = salt, lora, []
        self.block_hashes = []
        self._hash()

    def _hash(self):
        while (len(self.block_hashes) + 1) * BLOCK <= len(self.all_token_ids):
            at = len(self.block_hashes) * BLOCK
            before = self.block_hashes[-1] if at else str(self.cache_salt).encode()
            self.block_hashes.append(
                hashlib.sha256(before + str(self.all_token_ids[at : at + BLOCK]).encode()).digest())

    def append(self, token):
        self.all_token_ids.append(token)
        self._hash()

    num_tokens = property(lambda self: len(self.all_token_ids))
    num_prompt_tokens = property(lambda self: len(self.prompt_token_ids))


def step_output(scheduled, computed, tables, new=(), resumed=()):
    """scheduled, computed: {request id: tokens}; tables: {request id: block ids}."""
    old = [request_id for request_id in scheduled if request_id not in new]
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=i, num_computed_tokens=computed[i]) for i in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=old, num_computed_tokens=[computed[i] for i in old], resumed_req_ids=set(resumed)),
        num_scheduled_tokens=dict(scheduled),
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda i: (tables[i],)),
    )


def row_bytes(request, position):
    """The bytes of one token's K and V: they depend on all tokens up to it."""
    text = f"{request.cache_salt} {request.lora_request} {request.all_token_ids[: position + 1]}"
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)


class FakeVllm:
    """Computes rows by row_bytes. Layers [num_blocks, BLOCK, 16]; two of them make a row's 32 bytes."""

    def __init__(self, store, blocks=64, remote=None, options=None, observer=None):
        self.options = options or ConnectorOptions(load="sync")
        self.layers = [np.zeros((blocks, BLOCK, 16), np.uint8) for _ in range(2)]
        self.free = list(range(blocks))
        self.counters = {}
        self.scheduler = SchedulerSide(
            self.options, model_parts={"weights": "w"}, block_size=BLOCK, hash_block_size=BLOCK,
            remote=remote, counters=self.counters, observer=observer)
        self.worker = WorkerSide(self.options, store, (0, 0))
        self.worker.register(HostPages(self.layers), "layout")
        self.scheduler.hello({(0, 0): self.worker.hello()})

    def row(self, table, position):
        return np.concatenate([layer[table[position // BLOCK], position % BLOCK]
                               for layer in self.layers])

    def compute(self, request, table, begin, end):
        for p in range(begin, end):
            data = row_bytes(request, p)
            for layer, part in zip(self.layers, (data[:16], data[16:])):
                layer[table[p // BLOCK], p % BLOCK] = part

    def serve(self, request, chunk=None, generate=0):
        """A whole request; returns (tokens loaded, tokens computed, its rows)."""
        self.scheduler.track(request)
        external = self.scheduler.matched_tokens(request, 0)
        assert self.scheduler.matched_tokens(request, 0) == external  # asking changes nothing
        table = [self.free.pop(0) for _ in range((request.num_tokens + generate) // BLOCK + 1)]
        self.scheduler.allocated(request, table, external)
        loaded, done, computed, new = external, external, 0, True
        while done < request.num_tokens or generate > 0:
            if done == request.num_tokens:
                request.append(1000 + generate)
                generate -= 1
            count = min(chunk or request.num_tokens, request.num_tokens - done)
            output = step_output({request.request_id: count}, {request.request_id: done},
                                 {request.request_id: table}, new=[request.request_id] if new else [])
            plan = self.scheduler.build(output)
            self.worker.begin_step()
            self.worker.start_loads(plan.loads)
            self.compute(request, table, done, done + count)
            self.worker.save(plan.saves)
            self.worker.end_step()
            invalid = self.worker.take_invalid()
            self.report()
            done, computed, new = done + count, computed + count, False
            if invalid:  # as vLLM does: from the first block that is not there
                first = next(i for i, block in enumerate(table) if block in invalid)
                done = loaded = first * BLOCK
        rows = [self.row(table, p) for p in range(done)]
        self.scheduler.finished(request)
        self.free.extend(table)
        return loaded, computed, rows

    def report(self):
        """What the workers wrote behind is on its way; the next step reports it."""
        self.worker._store.drain(20)
        self.worker._pool.submit(int).result(60)  # and what it looks for beside the steps
        report = self.worker.report()
        if report is not None:
            self.scheduler.reported({(0, 0): report})

    def check(self, request, rows):
        for p, row in enumerate(rows):
            np.testing.assert_array_equal(row, row_bytes(request, p))

    def close(self):
        self.worker.close()
