#!/usr/bin/env python3
"""Space and time of `kvlink ckpt` on synthetic fine-tuning checkpoints, beside plain copies and `zstd`.

A model of BF16 weights (normal, standard deviation 0.02) is "trained" for some checkpoints; in each, a share of the
tensors gets a small update. Prints a Markdown table: bytes on disk, share of plain copies, CPU seconds of writing and
of reading back, and whether every file came back bit by bit.

    bench/ckpt_space.py --kvlink build/release/kvlink [--checkpoints 10] [--changed 0.1] [--megabytes 64]
"""
import argparse
import filecmp
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def to_bf16(values):
    """float32 [n] -> BF16 as uint16 [n], rounded to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Model:
    """Master weights in float32, saved as BF16, as training does."""

    def __init__(self, megabytes, tensors, seed):
        self.random = np.random.default_rng(seed)
        size = megabytes * 1024 * 1024 // 2 // tensors
        self.tensors = [self.random.normal(0, 0.02, size).astype(np.float32) for _ in range(tensors)]

    def train(self, share, update):
        """Changes `share` of the tensors by noise of `update` of the weights' deviation."""
        count = max(1, round(share * len(self.tensors)))
        for index in self.random.choice(len(self.tensors), count, replace=False):
            noise = self.random.normal(0, 0.02 * update, self.tensors[index].size)
            self.tensors[index] += noise.astype(np.float32)

    def save(self, path):
        header, data, end = {"__metadata__": {"format": "pt"}}, [], 0
        for index, tensor in enumerate(self.tensors):
            raw = to_bf16(tensor).tobytes()
            header[f"model.layers.{index}.weight"] = {"dtype": "BF16", "shape": [tensor.size],
                                                      "data_offsets": [end, end + len(raw)]}
            data.append(raw)
            end += len(raw)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for raw in data:
                file.write(raw)


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def disk_bytes(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def plain(sources, folder):
    write = sum(cpu_seconds(["cp", source, folder / source.name]) for source in sources)
    space = disk_bytes(folder)
    read = sum(cpu_seconds(["cp", folder / source.name, folder / "out"]) for source in sources)
    return space, write, read, filecmp.cmp(sources[-1], folder / "out", shallow=False)


def compressed(sources, folder):
    write = sum(cpu_seconds(["zstd", "-q", "-3", source, "-o", folder / (source.name + ".zst")]) for source in sources)
    space, read, same = disk_bytes(folder), 0.0, True
    for source in sources:
        read += cpu_seconds(["zstd", "-q", "-d", "-f", folder / (source.name + ".zst"), "-o", folder / "out"])
        same &= filecmp.cmp(source, folder / "out", shallow=False)
    return space, write, read, same


def stored(kvlink, with_base):
    def run(sources, folder):
        write = 0.0
        for index, source in enumerate(sources):
            base = ["--base", sources[index - 1].stem] if with_base and index > 0 else []
            write += cpu_seconds([kvlink, "ckpt", "add", "--store", folder / "store", source.stem, source, *base])
        space, read, same = disk_bytes(folder), 0.0, True
        for source in sources:
            read += cpu_seconds([kvlink, "ckpt", "get", "--store", folder / "store", source.stem, folder / "out"])
            same &= filecmp.cmp(source, folder / "out", shallow=False)
            (folder / "out").unlink()
        return space, write, read, same

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvlink", required=True, type=Path)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--changed", type=float, default=0.1, help="share of the tensors that each one changes")
    parser.add_argument("--update", type=float, default=0.01, help="size of an update, of the weights' deviation")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--tensors", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    rows = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, sources = Model(options.megabytes, options.tensors, options.seed), []
        for step in range(options.checkpoints):
            if step > 0:
                model.train(options.changed, options.update)
            sources.append(folder / f"step-{step}.safetensors")
            model.save(sources[-1])
        total = sum(source.stat().st_size for source in sources)
        ways = {"plain copies": plain}
        if shutil.which("zstd"):
            ways["zstd -3, each"] = compressed
        ways["kvlink ckpt"] = stored(options.kvlink, False)
        ways["kvlink ckpt --base"] = stored(options.kvlink, True)
        for name, way in ways.items():
            (folder / "way").mkdir()
            space, write, read, same = way(sources, folder / "way")
            shutil.rmtree(folder / "way")
            rows[name] = {"bytes": space, "share": space / total, "write_cpu_s": write, "read_cpu_s": read, "equal": same}
    print(f"{options.checkpoints} checkpoints of {total / options.checkpoints / 1e6:.0f} MB, {options.tensors} tensors "
          f"of BF16, {100 * options.changed:.0f} % changed in each by {100 * options.update:g} % of their deviation\n")
    print("| | MB on disk | of plain copies | write, CPU s | read back, CPU s | bit-equal |\n|---|---|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['bytes'] / 1e6:.1f} | {100 * row['share']:.1f} % | {row['write_cpu_s']:.2f} | "
              f"{row['read_cpu_s']:.2f} | {'yes' if row['equal'] else 'NO'} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["equal"] for row in rows.values()) else 1


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    sys.exit(main())
