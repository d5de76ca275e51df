#!/usr/bin/env python3
"""Writes a GGUF file with the shape of a large model and random weights, to measure memory and speed at that size.

usage: make_random_model.py OUT.gguf [--shape llama2-7b] [--type Q4_0] [--vocabulary FILE.gguf]

The tokenizer is copied from another GGUF file (default: the default model), so the vocabulary, and with it the embedding, has that
file's size. Weights are uniform over a block's codes with scales that give the usual spread, so that nothing overflows; what such a model
says means nothing. Tensors are written one by one: memory stays below a gigabyte. Needs numpy: run it with
.deps/venv/bin/python.
"""
import argparse
import struct
import sys
from pathlib import Path

import numpy

from kvlink_bench import default_model

# layers, embedding, feed-forward, heads, KV heads, context, rope base
SHAPES = {
    "llama2-7b": (32, 4096, 11008, 32, 32, 4096, 10000.0),
    "llama2-13b": (40, 5120, 13824, 40, 40, 4096, 10000.0),
    "llama3-8b": (32, 4096, 14336, 32, 8, 8192, 500000.0),
    "llama3-1b": (16, 2048, 8192, 32, 8, 8192, 500000.0),
    "smollm2-135m": (30, 576, 1536, 9, 3, 8192, 100000.0),
}
SPREAD = 0.02  # standard deviation of a weight

# GGUF, version 3: header, key-value pairs, tensor descriptions, then the tensors, each aligned.
MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TYPE_F32 = 0

# Type -> (its id in GGUF, id of a file of it, weights a block, fields of a block, field -> value; the other fields are random). The scale
# makes the spread: a code's own deviation is 4.6 of 16 levels, 73.9 of 256; K-quants multiply it by a random scale of a part of the
# block as well.
TYPES = {
    "Q4_0": (2, 2, 32, [("d", "<f2"), ("codes", "u1", 16)], {"d": SPREAD / 4.6}),
    "Q4_1": (3, 3, 32, [("d", "<f2"), ("m", "<f2"), ("codes", "u1", 16)], {"d": SPREAD / 4.6, "m": -7.5 * SPREAD / 4.6}),
    "Q8_0": (8, 7, 32, [("d", "<f2"), ("codes", "u1", 32)], {"d": SPREAD / 73.9}),
    "Q4_K": (12, 15, 256, [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("codes", "u1", 128)],
             {"d": SPREAD / 220, "m": 7.5 * SPREAD / 220}),
    "Q6_K": (14, 18, 256, [("low", "u1", 128), ("high", "u1", 64), ("scales", "u1", 16), ("d", "<f2")], {"d": SPREAD / 1366}),
}


class Quantised:
    def __init__(self, name):
        self.id, self.file_id, self.per_block, fields, self.values = TYPES[name]
        self.dtype = numpy.dtype(fields)

    def row_bytes(self, columns):
        if columns % self.per_block:
            raise SystemExit(f"rows of {columns} weights are no whole blocks of {self.per_block}: this --type does not fit the --shape")
        return columns // self.per_block * self.dtype.itemsize

    def random(self, source, rows, columns):
        """Bytes of a matrix."""
        count = rows * columns // self.per_block
        blocks = numpy.frombuffer(source.bytes(count * self.dtype.itemsize), dtype=self.dtype).copy()
        for field, value in self.values.items():
            blocks[field] = value
        return blocks.tobytes()


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    """A key-value pair: str, int (UINT32) or float (FLOAT32)."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    kind, layout = (UINT32, "<I") if isinstance(value, int) else (FLOAT32, "<f")
    return text(key) + struct.pack("<I", kind) + struct.pack(layout, value)


class PairReader:
    """The key-value pairs of a GGUF file, as bytes."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read(64 << 20)  # vocabularies are smaller
        magic, version, _, self.count = struct.unpack_from("<4sIQQ", self.data)
        if magic != MAGIC or version != VERSION:
            raise SystemExit(f"'{path}' is no GGUF file of version {VERSION}")
        self.at = 24

    def pairs(self):
        """Key -> (bytes of the whole pair, elements of an array)."""
        found = {}
        for _ in range(self.count):
            begin = self.at
            key = self._text()
            length = self._skip(self._take("<I"))
            found[key] = (self.data[begin:self.at], length)
        return found

    def _take(self, layout):
        value, = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def _text(self):
        length = self._take("<Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def _skip(self, kind):
        if kind == STRING:
            self._text()
        elif kind == ARRAY:
            part, length = self._take("<I"), self._take("<Q")
            if part in SCALAR_BYTES:
                self.at += SCALAR_BYTES[part] * length
            else:
                for _ in range(length):
                    self._skip(part)
            return length
        else:
            self.at += SCALAR_BYTES[kind]
        return None


def tensors(shape, vocabulary):
    """Name and size [columns, rows] of every tensor, in the order of a file."""
    layers, embedding, feed_forward, heads, kv_heads, _, _ = shape
    kv = embedding // heads * kv_heads
    yield "token_embd.weight", (embedding, vocabulary)
    for layer in range(layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (embedding,)
        yield block + "attn_q.weight", (embedding, embedding)
        yield block + "attn_k.weight", (embedding, kv)
        yield block + "attn_v.weight", (embedding, kv)
        yield block + "attn_output.weight", (embedding, embedding)
        yield block + "ffn_norm.weight", (embedding,)
        yield block + "ffn_gate.weight", (embedding, feed_forward)
        yield block + "ffn_up.weight", (embedding, feed_forward)
        yield block + "ffn_down.weight", (feed_forward, embedding)
    yield "output_norm.weight", (embedding,)
    yield "output.weight", (embedding, vocabulary)


def aligned(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


def write_model(out, shape_name, kind, vocabulary_file):
    shape = SHAPES[shape_name]
    layers, embedding, feed_forward, heads, kv_heads, context, rope_base = shape
    quantised = Quantised(kind)
    tokenizer = {key: value for key, value in PairReader(vocabulary_file).pairs().items() if key.startswith("tokenizer.")}
    vocabulary = tokenizer["tokenizer.ggml.tokens"][1]
    pairs = [pair(key, value) for key, value in {
        "general.architecture": "llama", "general.name": f"random-{shape_name}-{kind}", "general.file_type": quantised.file_id,
        "llama.block_count": layers, "llama.context_length": context, "llama.embedding_length": embedding,
        "llama.feed_forward_length": feed_forward, "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads, "llama.rope.dimension_count": embedding // heads,
        "llama.rope.freq_base": rope_base, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": vocabulary}.items()]
    pairs += [data for data, _ in tokenizer.values()]

    plan, offset, descriptions = list(tensors(shape, vocabulary)), 0, []
    for name, dims in plan:
        vector = len(dims) == 1
        size = dims[0] * 4 if vector else dims[1] * quantised.row_bytes(dims[0])
        descriptions.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims,
                                                     TYPE_F32 if vector else quantised.id, offset))
        offset += aligned(size)
    head = struct.pack("<4sIQQ", MAGIC, VERSION, len(plan), len(pairs)) + b"".join(pairs) + b"".join(descriptions)
    source = numpy.random.default_rng(1)
    with open(out, "wb") as file:
        file.write(head.ljust(aligned(len(head)), b"\0"))
        for number, (name, dims) in enumerate(plan):
            vector = len(dims) == 1
            data = numpy.ones(dims, "<f4").tobytes() if vector else quantised.random(source, dims[1], dims[0])
            file.write(data.ljust(aligned(len(data)), b"\0"))
            print(f"\r{number + 1}/{len(plan)} {name:<30}", end="", file=sys.stderr)
    print(file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama2-7b")
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    parser.add_argument("--vocabulary", default=default_model(), help="GGUF file whose tokenizer is taken")
    arguments = parser.parse_args()
    unfinished = arguments.out.with_suffix(".part")
    write_model(unfinished, arguments.shape, arguments.type, arguments.vocabulary)
    unfinished.rename(arguments.out)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 2**30:.2f} GiB", file=sys.stderr)


if __name__ == "__main__":
    main()
