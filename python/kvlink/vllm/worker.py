"""A worker's side: moves blocks between vLLM's pages and the tiers, and says what became of them.

Saves run inside the step, after the forward pass: the pages are copied and the tiers write behind.
Loads run on a thread of their own (`load: async`) while other requests are computed, or before the
forward pass (`sync`).

Invariants
  1. After save() returns no page is read, and no page is written but by a load that vLLM waits for.
  2. Every load ends: finished, with the blocks that are not there reported, no later than its
     deadline.
Threads: vLLM calls from one; the loading thread shares only what _lock guards.
"""

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from kvlink._errors import KvlinkError
from kvlink.vllm.messages import ADDRESS_BYTES, RankReport, WorkerHello, rank_key

logger = logging.getLogger("vllm.kvlink")

STAGING_BYTES = 32 << 20  # of blocks that are copied at once, for saving and for loading each
CONFIRM_PATIENCE_S = 25.0  # below SAVE_PATIENCE_S of the scheduler
EVICTION_CHECK_S = 0.5


def unpin():
    """Lets the calling thread run on every core that the process may use."""
    if hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        except OSError:
            pass


@contextmanager
def unpinned():
    """Threads that start inside are not bound to a core. vLLM on CPU binds the worker's main thread,
    and threads inherit that: the writers would compete with the model for the one core."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    unpin()
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


class WorkerSide:
    def __init__(self, options, store, rank, clock=time.monotonic):
        self._options, self._store, self._rank, self._clock = options, store, rank, clock
        self._pages = None
        self._layout = ""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvlink-load",
                                        initializer=unpin)
        self._lock = threading.Lock()
        self._finished, self._invalid, self._failed, self._counters = set(), set(), [], {}
        self._fetched = []  # rank keys that came from elsewhere, and are here now
        self._unconfirmed = {}  # rank key -> when to give up
        self._announced = set()  # addresses the scheduler counts on
        self._evictions, self._next_eviction_check = 0, 0.0

    def register(self, pages, layout):
        """pages: HostPages or DevicePages. layout: what the bytes of a block mean."""
        self._pages, self._layout = pages, layout
        rows = max(1, STAGING_BYTES // pages.block_bytes)
        # Kept: fresh memory would be zeroed by the kernel, page by page, at every use.
        self._save_rows, self._load_rows = (
            np.empty((rows, pages.block_bytes), dtype=np.uint8) for _ in range(2))
        logger.info("KVLink: %d layers, blocks of %d bytes, tiers %s", len(pages.layers),
                    pages.block_bytes, ", ".join(self._store.tiers))

    def hello(self):
        addresses = self._store.addresses("cold") if "cold" in self._store.tiers else []
        self._announced.update(addresses)
        return WorkerHello(self._layout, addresses)

    # --- Loading ----------------------------------------------------------------------------------

    def start_loads(self, loads):
        for load in loads:
            if self._options.load == "async":
                self._pool.submit(self._load_and_finish, load)
            else:
                self._load(load)

    def _load_and_finish(self, load):
        try:
            self._load(load)
        except Exception:  # the request waits for this thread: whatever it was, let it go on
            logger.exception("KVLink: loading for request %s failed", load.request_id)
            with self._lock:
                self._invalid.update(load.block_ids)
                self._failed.extend(load.keys[:1])
        with self._lock:
            self._finished.add(load.request_id)

    def _load(self, load):
        start = self._clock()
        deadline = start + self._options.load_timeout_s
        loaded, tiers, fetched = 0, {}, []
        batch = len(self._load_rows)
        for at in range(0, len(load.keys), batch):
            keys = [rank_key(key, *self._rank) for key in load.keys[at : at + batch]]
            staged = self._load_rows[: len(keys)]
            left = max(0.0, deadline - self._clock())
            names = self._store.load(keys, list(staged), left)
            leading = next((i for i, name in enumerate(names) if name is None), len(names))
            if leading > 0:
                self._pages.scatter(load.block_ids[at : at + leading], staged[:leading])
            loaded += leading
            for key, name in zip(keys, names[:leading]):
                tiers[name] = tiers.get(name, 0) + 1
                if name == "remote":
                    fetched.append(key)
            if leading < len(keys):
                self._lose(load, loaded)
                break
        with self._lock:
            self._fetched.extend(fetched)
            self._count("load_blocks", loaded)
            self._count("load_bytes", loaded * self._pages.block_bytes)
            self._count("load_seconds", self._clock() - start)
            for name, blocks in tiers.items():
                self._count(f"load_blocks_{name}", blocks)

    def _lose(self, load, loaded):
        """Block number `loaded` of a load is not there. vLLM computes it and all behind it again. (What
        did not verify, the store has removed: it can be stored anew.)"""
        logger.warning("KVLink: %d of %d blocks of request %s could not be loaded; they are computed",
                       len(load.keys) - loaded, len(load.keys), load.request_id)
        with self._lock:
            self._invalid.update(load.block_ids[loaded:])
            self._failed.append(load.keys[loaded])

    def take_finished(self):
        """Requests whose loads have ended since the last call."""
        with self._lock:
            finished, self._finished = self._finished, set()
        return finished

    def take_invalid(self):
        """Block ids that could not be loaded."""
        with self._lock:
            invalid, self._invalid = self._invalid, set()
        return invalid

    # --- Saving -----------------------------------------------------------------------------------

    def save(self, saves):
        if not saves:
            return
        with self._lock:
            if self._options.load == "sync" and self._invalid:
                return  # this step computed on blocks that are not there: nothing of it may be kept
        start = self._clock()
        dropped = 0
        for at in range(0, len(saves), len(self._save_rows)):
            batch = saves[at : at + len(self._save_rows)]
            staged = self._save_rows[: len(batch)]
            self._pages.gather([save.block_id for save in batch], staged)
            for save, row in zip(batch, staged):
                key = rank_key(save.key, *self._rank)
                parent = rank_key(save.parent, *self._rank) if save.parent else None
                if not self._store.put(key, row, parent=parent) and \
                        self._store.locate([key], 0)[0] is None:
                    dropped += 1
                    continue
                self._unconfirmed[key] = start + CONFIRM_PATIENCE_S
        with self._lock:
            self._count("save_blocks", len(saves) - dropped)
            self._count("save_blocks_dropped", dropped)
            self._count("save_bytes", (len(saves) - dropped) * self._pages.block_bytes)
            self._count("save_seconds", self._clock() - start)

    # --- Reports ----------------------------------------------------------------------------------

    def report(self):
        """What the scheduler should know, or None."""
        with self._lock:
            fetched, self._fetched = self._fetched, []
            failed, self._failed = self._failed, []
        for key in fetched:
            self._unconfirmed.setdefault(key, self._clock() + CONFIRM_PATIENCE_S)
        report = RankReport(self._confirmed(), self._evicted(), failed)
        self._announced.update(report.stored)
        self._announced.difference_update(report.dropped)
        return None if report.is_empty else report

    def _confirmed(self):
        if not self._unconfirmed:
            return []
        keys = list(self._unconfirmed)
        now = self._clock()
        stored = []
        for key, name in zip(keys, self._store.locate(keys, 0)):
            if name is not None:
                stored.append(key[:ADDRESS_BYTES])
            if name is not None or self._unconfirmed[key] <= now:
                del self._unconfirmed[key]
        return stored

    def _evicted(self):
        now = self._clock()
        if now < self._next_eviction_check:
            return []
        self._next_eviction_check = now + EVICTION_CHECK_S
        evictions = sum(tier["evictions"] for tier in self._store.stats().values())
        if evictions == self._evictions:
            return []
        self._evictions = evictions
        addresses = list(self._announced)
        keys = [address + bytes(32 - ADDRESS_BYTES) for address in addresses]
        return [address for address, name in zip(addresses, self._store.locate(keys, 0))
                if name is None]

    def take_counters(self):
        with self._lock:
            counters, self._counters = self._counters, {}
        return counters

    def _count(self, name, by):
        if by:
            self._counters[name] = self._counters.get(name, 0) + by

    def close(self):
        """Ends loads that wait, and writes out what is queued."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        try:
            self._store.close(self._options.drain_s)
        except KvlinkError as error:
            logger.warning("KVLink: closing the tiers: %s", error)
