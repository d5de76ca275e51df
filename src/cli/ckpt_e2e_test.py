"""`kvlink ckpt` as its users meet it."""
import json
import os
import random
import signal
import struct
import subprocess
import time

import pytest

KVLINK = os.environ["KVLINK_BINARY"]


def ckpt(verb, store, *arguments):
    return subprocess.run([KVLINK, "ckpt", verb, "--store", str(store), *map(str, arguments)], capture_output=True,
                          text=True, timeout=120, check=False)


def done(verb, store, *arguments):
    result = ckpt(verb, store, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def safetensors(tensors):
    header, data = {}, b""
    for name, content in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(content) // 2], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def stored_bytes(store):
    total = 0
    for path in (store / "chunks").rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # renamed just now
            pass
    return total


@pytest.fixture
def tensors():
    noise = random.Random(5)
    return {f"layer.{i}": noise.randbytes(200_000) for i in range(10)}


def test_ten_checkpoints_come_back_and_share_what_is_equal(tmp_path, tensors):
    store, originals = tmp_path / "store", []
    noise = random.Random(6)
    for step in range(10):
        if step > 0:
            tensors[f"layer.{step}"] = noise.randbytes(200_000)
        originals.append(safetensors(tensors))
        (tmp_path / "model.safetensors").write_bytes(originals[-1])
        base = ["--base", f"step-{step - 1}"] if step > 0 else []
        done("add", store, f"step-{step}", tmp_path / "model.safetensors", "--chunk", "64K", *base)
    assert stored_bytes(store) < 0.25 * sum(map(len, originals))
    listing = done("list", store, "--verify")
    assert "10 checkpoints" in listing and "every byte is as it was" in listing
    for step, original in enumerate(originals):
        done("get", store, f"step-{step}", tmp_path / f"out-{step}")
        assert (tmp_path / f"out-{step}").read_bytes() == original
    done("gc", store, "--remove", *[f"step-{step}" for step in range(9)])
    done("get", store, "step-9", tmp_path / "last")
    assert (tmp_path / "last").read_bytes() == originals[9]
    done("gc", store, "--remove", "step-9")
    assert stored_bytes(store) == 0


def test_a_flipped_byte_is_an_error_with_the_tensors_name(tmp_path, tensors):
    store = tmp_path / "store"
    (tmp_path / "model").write_bytes(safetensors(tensors))
    done("add", store, "a", tmp_path / "model")
    chunk = max((path for path in (store / "chunks").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    failed = ckpt("get", store, "a", tmp_path / "out")
    assert failed.returncode == 1
    assert "'layer." in failed.stderr and str(chunk) in failed.stderr and "corrupt" in failed.stderr
    assert not (tmp_path / "out").exists()
    assert ckpt("list", store, "--verify").returncode == 1


def test_killed_mid_add_it_shows_nothing_and_can_be_added_again(tmp_path):
    store = tmp_path / "store"
    (tmp_path / "small").write_bytes(b"kept")
    done("add", store, "small", tmp_path / "small")
    big = random.Random(7).randbytes(30_000_000)
    (tmp_path / "big").write_bytes(big)
    adding = subprocess.Popen([KVLINK, "ckpt", "add", "--store", str(store), "big", str(tmp_path / "big"),
                               "--chunk", "4K"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while stored_bytes(store) < 200_000:  # it is in the middle of it
        assert time.monotonic() < deadline and adding.poll() is None
    adding.send_signal(signal.SIGKILL)
    adding.wait()
    listing = done("list", store)
    assert "small" in listing and "big" not in listing
    assert stored_bytes(store) > 0
    assert "1 checkpoints" in listing
    done("gc", store)
    assert stored_bytes(store) < 1000
    done("add", store, "big", tmp_path / "big")
    done("get", store, "big", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == big


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_folder_comes_back_whether_its_name_ends_with_a_slash_or_not(tmp_path, slashes):
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "model.bin").write_bytes(b"weights" * 1000)
    done("add", tmp_path / "store", "step", f"{tmp_path}/step{slashes}")
    done("get", tmp_path / "store", "step", f"{tmp_path}/restored{slashes}")
    assert [path.name for path in (tmp_path / "restored").iterdir()] == ["model.bin"]
    assert (tmp_path / "restored" / "model.bin").read_bytes() == b"weights" * 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["restored", "step", "store"]


@pytest.mark.parametrize("arguments,named", [
    (["get", "nobody", "out"], "nobody"),
    (["add", "a/b", "model"], "'a/b'"),
    (["add", "a", "nowhere"], "nowhere"),
    (["add", "a", "model", "--base", "nobody"], "nobody"),
    (["add", "a", "model", "--level", "77"], "77"),
    (["add", "a", "model", "--chunk", "1"], "1"),
    (["gc", "--remove", "nobody"], "nobody"),
])
def test_what_is_wrong_is_named(tmp_path, arguments, named):
    (tmp_path / "model").write_bytes(b"x")
    done("add", tmp_path / "store", "first", tmp_path / "model")
    verb, *rest = arguments
    rest = [tmp_path / item if item in ("model", "out", "nowhere") else item for item in rest]
    failed = ckpt(verb, tmp_path / "store", *rest)
    assert failed.returncode == 2, failed.stderr
    assert named in failed.stderr


def test_a_folder_that_is_no_store_is_left_alone(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    (tmp_path / "model").write_bytes(b"x")
    failed = ckpt("add", tmp_path / "home", "a", tmp_path / "model")
    assert failed.returncode != 0 and "letter" in failed.stderr
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter"]
    assert ckpt("list", tmp_path / "nothing").returncode == 2
