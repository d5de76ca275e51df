"""What saving vLLM's blocks costs, without vLLM: CPU time a MiB, in the step and in the writers.

usage: PYTHONPATH=build/release/python python python/bench/save_costs.py DIRECTORY [ROUNDS]
Pages of SmolLM2-135M in BF16 (30 layers of 96 KiB a block); a round stores 16 new blocks and waits until
they are written. RAM has room for three rounds, so from the fourth on it gives memory back. DIRECTORY is
where the disk tier's folders go. Rounds of the rows alternate, so that what else runs hits all alike.
"""

import hashlib
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import kvlink
from kvlink.vllm.pages import HostPages

LAYERS, LAYER_BYTES, NUM_BLOCKS, BLOCKS_A_ROUND, WARM_ROUNDS = 30, 98304, 64, 16, 3
MIB_A_ROUND = LAYERS * LAYER_BYTES * BLOCKS_A_ROUND / 2**20


class Row:
    """One way of saving into one stack of tiers. rounds: (ms in the step, ms in writers) a MiB."""

    def __init__(self, name, pages, folder, is_direct):
        ram_bytes = int(WARM_ROUNDS * (MIB_A_ROUND + 1) * 2**20)
        self.name, self.rounds = name, []
        self._pages, self._is_direct = pages, is_direct
        self._staged = None if is_direct else np.empty((BLOCKS_A_ROUND, pages.block_bytes), np.uint8)
        self.store = kvlink.BlockStore(model="bench", ram_bytes=ram_bytes, cold_dir=folder,
                                       cold_bytes=2 << 30, queue_bytes=512 << 20)

    def run(self, i):
        keys = [hashlib.sha256(f"{self.name} {i} {n}".encode()).digest()
                for n in range(BLOCKS_A_ROUND)]
        parents = [None, *keys[:-1]]
        block_ids = [(i * BLOCKS_A_ROUND + n) % NUM_BLOCKS for n in range(BLOCKS_A_ROUND)]
        before, written = time.thread_time(), self._written()
        if self._is_direct:
            self.store.put_pages(self._pages.direct, block_ids, keys, parents)
        else:
            self._pages.gather(block_ids, self._staged)
            for key, parent, row in zip(keys, parents, self._staged):
                self.store.put(key, row, parent=parent)
        in_step = time.thread_time() - before
        if not self.store.drain(60):
            raise RuntimeError(f"{self.name}: not written within 60 s: {self.store.stats()}")
        self.rounds.append((in_step * 1e3 / MIB_A_ROUND,
                            (self._written() - written) * 1e3 / MIB_A_ROUND))

    def _written(self):
        """CPU time of the process beside this thread: the writers' and the kernel's for them."""
        return time.process_time() - time.thread_time()

    def print(self):
        for what, rounds in (("RAM fills", self.rounds[:WARM_ROUNDS]),
                             ("RAM is full", self.rounds[WARM_ROUNDS:])):
            step, writers = (statistics.median(values) for values in zip(*rounds))
            print(f"| {self.name}, {what} | {step:.2f} | {writers:.2f} | {step + writers:.2f} |")


def main():
    folder = Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    random = np.random.default_rng(1)
    pages = HostPages([random.integers(0, 256, (NUM_BLOCKS, LAYER_BYTES), dtype=np.uint8)
                       for _ in range(LAYERS)])
    rows = []
    for way, is_direct in (("as they lie", True), ("gathered first", False)):
        if is_direct and not hasattr(kvlink.BlockStore, "put_pages"):
            continue
        for tiers, cold in (("RAM", None), ("RAM and disk", str(folder / way.replace(" ", "-")))):
            rows.append(Row(f"{way}, {tiers}", pages, cold, is_direct))
    for i in range(rounds):
        for row in rows:
            row.run(i)
    print("| CPU ms a MiB | in the step | writers | both |\n|---|---|---|---|")
    for row in rows:
        row.print()
        row.store.close()


if __name__ == "__main__":
    main()
