"""The scheduler's side: which blocks exist, what to load, what to save. No vLLM import: it sees
vLLM's requests and step outputs by their attributes.

    known      addresses that a worker has confirmed, by rank (RAM and disk)
    remote     asked when a block is not known (Redis; other servers write there)
    failed     base keys that could not be loaded: not offered again for a while, or vLLM would come
               back with the same load for ever

Invariants
  1. Matching changes nothing but what is remembered to save work.
  2. A block is offered only when every rank has its part, and only behind blocks that are offered or
     computed already.
  3. The last token is always computed: vLLM samples from it. The block it is in may be loaded.
"""

import hashlib
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvlink._errors import FailedPreconditionError, KvlinkError
from kvlink.vllm.fingerprint import fingerprint, folder_digest, folder_state
from kvlink.vllm.messages import ADDRESS_BYTES, Load, RankReport, Save, StepPlan, rank_key

logger = logging.getLogger("vllm.kvlink")

# A save that no worker confirmed by then is given up: the block counts as absent.
SAVE_PATIENCE_S = 30.0


@dataclass
class _Request:
    request: object
    keys: list = field(default_factory=list)  # base keys of the full blocks whose tokens are known
    handled: int = 0  # leading blocks that are stored, or that a worker was told to store
    offer_from: int = 0  # first block of the last offer


class SchedulerSide:
    """Requires: `block_size` is a multiple of `hash_block_size`, vLLM's granularity of hashes."""

    def __init__(self, options, *, model_parts, block_size, hash_block_size, may_load=True,
                 may_save=True, remote=None, observer=None, counters=None, clock=time.monotonic):
        self._options = options
        self._model_parts = dict(model_parts)
        self._block_size = block_size
        self._hashes_per_block = block_size // hash_block_size
        self._may_load, self._may_save = may_load, may_save
        self._remote, self._observer = remote, observer
        self._counters = counters if counters is not None else {}
        self._clock = clock
        self._root = None  # until the workers have said hello
        self._known = {}  # rank -> set of addresses
        self._saving = {}  # base key -> when to give up
        self._failed = {}  # base key -> until when it is not offered
        self._requests = {}
        self._loads = []
        self._adapters = {}  # path, vLLM's number, state of the folder where it counts -> digest

    # --- Set-up -----------------------------------------------------------------------------------

    def hello(self, workers):
        """workers: {(pp_rank, tp_rank): WorkerHello}."""
        self._known = {rank: set(hello.addresses) for rank, hello in workers.items()}
        self._model_parts["layout"] = {str(rank): hello.layout for rank, hello in workers.items()}
        self._make_root()

    def _make_root(self):
        text = fingerprint(self._model_parts)
        self._root = hashlib.sha256(b"kvlink-vllm\0" + text.encode()).digest()
        logger.info("KVLink: blocks are named by %s, from %s", self._root.hex()[:16], text)

    def forget(self, epoch):
        """vLLM's weights changed under way: nothing from before is found any more, here or anywhere."""
        self._model_parts["epoch"] = epoch
        self._make_root()
        for tracked in self._requests.values():
            tracked.keys, tracked.handled = [], 0
        self._saving.clear()
        self._failed.clear()

    # --- Matching ---------------------------------------------------------------------------------

    def track(self, request):
        """A request has arrived."""
        self._requests[request.request_id] = _Request(request)
        if self._observer is not None:
            self._observer.observe(request, self._adapter_digest(request))

    def _tracked(self, request):
        if request.request_id not in self._requests:
            self._requests[request.request_id] = _Request(request)
        return self._requests[request.request_id]

    def matched_tokens(self, request, num_computed):
        """Tokens behind the first num_computed that can be loaded: whole blocks, but for the prompt's
        last token when they cover it."""
        tracked = self._tracked(request)
        first = num_computed // self._block_size
        end = request.num_tokens // self._block_size
        if not self._may_load or first >= end:
            return 0
        found = self._leading_present(self._keys_of(tracked)[first:end])
        left = request.num_tokens - 1 - first * self._block_size
        tokens = min(found * self._block_size, left)
        if tokens < max(1, self._options.min_load_tokens):
            return 0
        tracked.offer_from = first
        return tokens

    def _keys_of(self, tracked):
        hashes = tracked.request.block_hashes
        step = self._hashes_per_block
        full = len(hashes) // step
        if len(tracked.keys) < full:
            if self._root is None:
                raise FailedPreconditionError("the workers have not registered their KV pages")
            adapter = self._adapter_digest(tracked.request).encode()
            for block in range(len(tracked.keys), full):
                block_hash = bytes(hashes[(block + 1) * step - 1])
                tracked.keys.append(hashlib.sha256(
                    self._root + b"%d\0" % len(adapter) + adapter + block_hash).digest())
        return tracked.keys

    def _leading_present(self, keys):
        now = self._clock()
        for count, key in enumerate(keys):
            if self._failed.get(key, 0) > now:
                keys = keys[:count]
                break
        found = 0
        while found < len(keys) and self._is_known(keys[found]):
            found += 1
        if found < len(keys) and self._remote is not None:
            found += self._leading_remote(keys[found:])
        return found

    def _is_known(self, key):
        return all(rank_key(key, *rank)[:ADDRESS_BYTES] in addresses
                   for rank, addresses in self._known.items())

    def _leading_remote(self, keys):
        """Blocks that the remote tier has, or that are known. One question for all ranks' parts."""
        asked = [(count, rank_key(key, *rank)) for count, key in enumerate(keys)
                 for rank, addresses in self._known.items()
                 if rank_key(key, *rank)[:ADDRESS_BYTES] not in addresses]
        try:
            names = self._remote.locate([key for _, key in asked], self._options.lookup_timeout_s)
        except KvlinkError as error:
            logger.warning("KVLink: the remote tier cannot be asked: %s", error)
            return 0
        missing = [count for (count, _), name in zip(asked, names) if name is None]
        return min(missing, default=len(keys))

    def _adapter_digest(self, request):
        adapter = getattr(request, "lora_request", None)
        if adapter is None:
            return ""
        path = adapter.lora_path
        # vLLM reads a folder when its adapter gets a number, and again where it is to replace itself.
        replaces = getattr(adapter, "load_inplace", False)
        loaded = (path, getattr(adapter, "lora_int_id", 0), folder_state(path) if replaces else None)
        if loaded not in self._adapters:
            try:
                self._adapters[loaded] = folder_digest(path, None) if Path(path).is_dir() else path
            except KvlinkError:
                self._adapters[loaded] = path  # vLLM's hash has name and path in it
        return f"{adapter.lora_name}\0{self._adapters[loaded]}"

    # --- Steps ------------------------------------------------------------------------------------

    def allocated(self, request, block_ids, num_external):
        """vLLM has pages for the request; num_external tokens are to be loaded into them."""
        if num_external <= 0:
            return
        tracked = self._tracked(request)
        first = tracked.offer_from
        count = -(-num_external // self._block_size)
        self._loads.append(Load(request.request_id, self._keys_of(tracked)[first : first + count],
                                list(block_ids[first : first + count])))
        tracked.handled = max(tracked.handled, first + count)
        self._count("load_requests")
        self._count("load_blocks_asked", count)

    def build(self, output):
        """Orders for the step that vLLM has scheduled."""
        plan = StepPlan(loads=self._loads)
        self._loads = []
        if self._may_save:
            computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            computed.update(zip(cached.req_ids, cached.num_computed_tokens))
            for request_id, scheduled in output.num_scheduled_tokens.items():
                if request_id in self._requests and request_id in computed:
                    self._save_full(self._requests[request_id], computed[request_id] + scheduled,
                                    output, plan)
        return plan

    def _save_full(self, tracked, num_computed, output, plan):
        """Blocks that are full after this step and whose tokens are known. (With asynchronous
        scheduling the last token may not be known yet: its block follows a step later.)"""
        request = tracked.request
        full = min(num_computed // self._block_size,
                   len(request.block_hashes) // self._hashes_per_block)
        if not self._options.save_generated:
            full = min(full, request.num_prompt_tokens // self._block_size)
        if full <= tracked.handled:
            return
        block_ids = output.kv_connector_block_state.get_block_ids(request.request_id)[0]
        keys = self._keys_of(tracked)
        now, before = self._clock(), len(plan.saves)
        for block in range(tracked.handled, min(full, len(block_ids))):
            key = keys[block]
            if self._is_known(key) or self._saving.get(key, 0) > now:
                continue
            self._saving[key] = now + SAVE_PATIENCE_S
            plan.saves.append(Save(key, keys[block - 1] if block > 0 else None, block_ids[block]))
        tracked.handled = full
        self._count("save_blocks_asked", len(plan.saves) - before)

    def reported(self, reports):
        """reports: {rank: RankReport}, what the workers did."""
        for rank, report in reports.items():
            known = self._known.setdefault(rank, set())
            known.update(report.stored)
            known.difference_update(report.dropped)
            for key in report.failed:
                known.discard(rank_key(key, *rank)[:ADDRESS_BYTES])
                self._failed[key] = self._clock() + self._options.retry_after_s
                self._count("load_blocks_failed")
        failed = {key for report in reports.values() for key in report.failed}
        if failed:
            self._save_again(failed)
        self._expire()

    def _save_again(self, failed):
        """What is computed in place of blocks that could not be loaded is worth saving."""
        for tracked in self._requests.values():
            for block, key in enumerate(tracked.keys[: tracked.handled]):
                if key in failed:
                    for later in tracked.keys[block : tracked.handled]:
                        self._saving.pop(later, None)
                    tracked.handled = block
                    break

    def take_back(self, invalid, block_ids_of):
        """A load of the step that has just run did not come: every request that has its pages computes
        from there on. (vLLM has one of them do it, and the others go on where they are.) invalid: set of
        page numbers. block_ids_of(request id): a request's pages, in order. Returns these pages and all
        that was computed on them."""
        pages = set(invalid)
        for request_id, tracked in self._requests.items():
            block_ids = block_ids_of(request_id)
            first = next((i for i, page in enumerate(block_ids) if page in invalid), len(block_ids))
            pages.update(block_ids[first:])
            if first < len(block_ids):
                tracked.request.num_computed_tokens = min(tracked.request.num_computed_tokens,
                                                          first * self._block_size)
        return pages

    def _expire(self):
        now = self._clock()
        if len(self._saving) > 4096:
            self._saving = {key: until for key, until in self._saving.items() if until > now}
        if self._failed:
            self._failed = {key: until for key, until in self._failed.items() if until > now}

    def finished(self, request):
        self._requests.pop(request.request_id, None)

    def _count(self, name, by=1):
        if by:
            self._counters[name] = self._counters.get(name, 0) + by


def merge_reports(a, b):
    """Of one step, from several workers."""
    merged = dict(a)
    for rank, report in b.items():
        mine = merged.get(rank, RankReport())
        merged[rank] = RankReport(mine.stored + report.stored, mine.dropped + report.dropped,
                                  mine.failed + report.failed)
    return merged
