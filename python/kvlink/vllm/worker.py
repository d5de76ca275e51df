"""A worker's side: moves blocks between vLLM's pages and the tiers, and says what became of them.

Saves run inside the step, after the forward pass: each block is copied once, out of the pages into the
memory that RAM keeps and the other tiers are written from; these are written behind, and while steps
run for a share of their CPU time only (`write_share`). Loads run on a thread of their own (`load:
async`) while other requests are computed, or before the forward pass (`sync`). The same thread looks
for evicted blocks: what takes longer the more blocks there are is no part of a step.

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
LOOK_INTERVAL_S = 0.5
MOST_MISSED = 4096  # addresses that are watched after they went, oldest first


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
    """step_clock: seconds of computing; its difference over a step is what writers get their share of."""

    def __init__(self, options, store, rank, clock=time.monotonic, step_clock=time.thread_time):
        self._options, self._store, self._rank, self._clock = options, store, rank, clock
        self._step_clock, self._step_begin = step_clock, None
        self._pages = None
        self._layout = ""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvlink-load",
                                        initializer=unpin)
        self._lock = threading.Lock()
        self._finished, self._invalid, self._failed, self._counters = set(), set(), [], {}
        self._fetched = []  # rank keys that came from elsewhere, and are here now
        self._gone, self._back = [], []  # addresses that were evicted, and that came after all
        self._announced = set()  # addresses the scheduler counts on
        self._unconfirmed = {}  # rank key -> when to give up; vLLM's thread only
        # The loading thread only: as they were at the last look, and what went before it was written
        # to a slower tier, where it may still come.
        self._evictions, self._write_cpu_s, self._missed = 0, 0.0, []
        self._next_look = 0.0

    def register(self, pages, layout):
        """pages: HostPages or DevicePages. layout: what the bytes of a block mean."""
        self._pages, self._layout = pages, layout
        rows = max(1, STAGING_BYTES // pages.block_bytes)
        # Kept: fresh memory would be zeroed by the kernel, page by page, at every use.
        self._load_rows = np.empty((rows, pages.block_bytes), dtype=np.uint8)
        self._save_rows = None if pages.direct is not None else np.empty_like(self._load_rows)
        logger.info("KVLink: %d layers, blocks of %d bytes, tiers %s", len(pages.layers),
                    pages.block_bytes, ", ".join(self._store.tiers))

    def hello(self):
        addresses = self._store.addresses("cold") if "cold" in self._store.tiers else []
        with self._lock:
            self._announced.update(addresses)
        return WorkerHello(self._layout, addresses)

    # --- Steps ------------------------------------------------------------------------------------

    def begin_step(self):
        """vLLM computes from now on."""
        self._step_begin = self._step_clock()
        self._store.begin_step()

    def end_step(self):
        if self._step_begin is not None:
            self._store.end_step(self._step_clock() - self._step_begin)
            self._step_begin = None

    # --- Loading ----------------------------------------------------------------------------------

    def start_loads(self, loads):
        for load in loads:
            if self._options.load == "async":
                self._pool.submit(self._load_and_finish, load)
            else:
                self._load_or_lose(load)

    def _load_and_finish(self, load):
        self._load_or_lose(load)
        with self._lock:
            self._finished.add(load.request_id)

    def _load_or_lose(self, load):
        try:
            self._load(load)
        except Exception:  # the request, or all of vLLM, waits for it: whatever it was, go on
            logger.exception("KVLink: loading for request %s failed", load.request_id)
            with self._lock:
                self._invalid.update(load.block_ids)
                self._failed.extend(load.keys[:1])

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
        start, cpu_start = self._clock(), time.thread_time()
        keys = [rank_key(save.key, *self._rank) for save in saves]
        refused = [key for key, taken in zip(keys, self._put(saves, keys)) if not taken]
        # What is everywhere already, or on its way there, is refused as well.
        lost = {key for key, name in zip(refused, self._store.locate(refused, 0)) if name is None}
        for key in keys:
            if key not in lost:
                self._unconfirmed[key] = start + CONFIRM_PATIENCE_S
        saved = len(saves) - len(lost)
        with self._lock:
            self._count("save_blocks", saved)
            self._count("save_blocks_dropped", len(lost))
            self._count("save_bytes", saved * self._pages.block_bytes)
            self._count("save_seconds", self._clock() - start)
            self._count("save_cpu_seconds", time.thread_time() - cpu_start)

    def _put(self, saves, keys):
        """Copies the blocks out of the pages. For each, whether a tier will write it."""
        parents = [rank_key(save.parent, *self._rank) if save.parent else None for save in saves]
        block_ids = [save.block_id for save in saves]
        if self._pages.direct is not None:
            return self._store.put_pages(self._pages.direct, block_ids, keys, parents)
        taken = []
        for at in range(0, len(saves), len(self._save_rows)):
            batch = range(at, min(at + len(self._save_rows), len(saves)))
            staged = self._save_rows[: len(batch)]
            self._pages.gather(block_ids[batch.start : batch.stop], staged)
            taken += [self._store.put(keys[i], row, parent=parents[i])
                      for i, row in zip(batch, staged)]
        return taken

    # --- Reports ----------------------------------------------------------------------------------

    def report(self):
        """What the scheduler should know, or None."""
        with self._lock:
            fetched, self._fetched = self._fetched, []
            failed, self._failed = self._failed, []
            (gone, self._gone), (back, self._back) = (self._gone, []), (self._back, [])
        for key in fetched:
            self._unconfirmed.setdefault(key, self._clock() + CONFIRM_PATIENCE_S)
        report = RankReport(self._confirmed() + back, gone, failed)
        if not report.is_empty:
            with self._lock:
                self._announced.update(report.stored)
                self._announced.difference_update(report.dropped)
        self._look_around()
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

    def _look_around(self):
        """Now and then, beside the steps."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + LOOK_INTERVAL_S
            self._pool.submit(self._look)

    def _look(self):
        try:
            self._look_at(self._store.stats().values())
        except KvlinkError as error:  # closed under way
            logger.debug("KVLink: the tiers were not looked at: %s", error)

    def _look_at(self, stats):
        """On the loading thread: what was evicted, and what writing has cost."""
        evictions = sum(tier["evictions"] for tier in stats)
        write_cpu_s = sum(tier["write_cpu_s"] for tier in stats)
        with self._lock:
            self._count("write_cpu_seconds", write_cpu_s - self._write_cpu_s)
            announced = list(self._announced) if evictions != self._evictions else []
        self._evictions, self._write_cpu_s = evictions, write_cpu_s
        back, missed = self._split(self._missed)
        _, gone = self._split(announced)
        is_writing = any(tier["queued_blocks"] for tier in stats)
        self._missed = (missed + gone)[-MOST_MISSED:] if is_writing else []
        with self._lock:
            self._back.extend(back)
            self._gone.extend(gone)

    def _split(self, addresses):
        """(those that a tier here has, the others)"""
        keys = [address + bytes(32 - ADDRESS_BYTES) for address in addresses]
        there, missing = [], []
        for address, name in zip(addresses, self._store.locate(keys, 0)):
            (missing if name is None else there).append(address)
        return there, missing

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
