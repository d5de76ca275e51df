"""Options, fingerprints and the observer."""

import importlib
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import kvlink
from kvlink.vllm.fingerprint import (
    configuration_digest,
    file_digest,
    fingerprint,
    folder_digest,
    weights_in_key,
)
from kvlink.vllm.messages import StepPlan
from kvlink.vllm.observer import Observer, attention_traits, token_texts
from kvlink.vllm.options import ConnectorOptions, byte_size
from vllm_fakes import FakeRequest


def test_sizes_are_read_as_people_write_them():
    assert [byte_size(v, "x") for v in (5, "5", "2KiB", "1.5GB", "3 MiB")] == [
        5, 5, 2048, 1_500_000_000, 3 << 20]
    for bad in (-1, "many", "3 parsecs", True, None):
        with pytest.raises(kvlink.InvalidArgumentError, match="x is"):
            byte_size(bad, "x")


def test_options_are_checked_by_name_and_value(monkeypatch):
    options = ConnectorOptions.parse({"ram_bytes": "1MiB", "cold_dir": "/c", "drain_s": 1,
                                      "write_share": 1})
    assert options.ram_bytes == 1 << 20 and options.drain_s == 1.0 and options.load == "async"
    assert options.write_share == 1.0
    for config, message in [
        ({"ram": 1}, "no option 'ram'"), ({"load": "soon"}, "load is 'soon'"),
        ({"similar": True}, "similar is True"), ({"ram_bytes": "x"}, "ram_bytes is 'x'"),
        ({"save_generated": 1}, "save_generated is 1"), ({"drain_s": -1}, "drain_s is -1"),
        ({"write_share": "much"}, "write_share is 'much'"),
        ({"min_load_tokens": float("inf")}, "min_load_tokens is inf"),
        ({"lookup_timeout_s": 1e7}, "lookup_timeout_s is 10000000.0, but must be a number from 0 to 1000000"),
        ({"cold_dir": 5}, "cold_dir is 5"), ({"ram_bytes": 0}, "no tier"),
        ({"remote": "env:KVLINK_NO_SUCH"}, "KVLINK_NO_SUCH"),
    ]:
        with pytest.raises(kvlink.InvalidArgumentError, match=message):
            ConnectorOptions.parse(config)
    monkeypatch.setenv("KVLINK_TEST_REMOTE", "redis://:secret@host")
    assert ConnectorOptions.parse({"remote": "env:KVLINK_TEST_REMOTE"}).remote == "redis://:secret@host"


def write_model(folder, weights=b"weights", config="{}"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(config)
    return folder


def test_a_models_digest_is_that_of_its_contents(tmp_path):
    a = write_model(tmp_path / "a")
    assert folder_digest(a) == folder_digest(write_model(tmp_path / "b"))
    assert folder_digest(a) != folder_digest(write_model(tmp_path / "c", weights=b"weightz"))
    assert folder_digest(a) != folder_digest(write_model(tmp_path / "d", config='{"a":1}'))
    (a / "README.md").write_text("does not matter")
    assert folder_digest(a) == folder_digest(tmp_path / "b")


def test_digests_are_remembered_until_a_file_changes(tmp_path, monkeypatch):
    model, memory = write_model(tmp_path / "m"), tmp_path / "cache" / "digests.json"
    first = folder_digest(model, memory)
    assert memory.exists()
    read = []
    monkeypatch.setattr("kvlink.vllm.fingerprint.hashlib.sha256",
                        _counting(kvlink.keys.hashlib.sha256, read))
    assert folder_digest(model, memory) == first and len(read) == 1  # of the list, of no file
    write_model(model, weights=b"others!")
    assert folder_digest(model, memory) != first
    memory.write_text("not json")
    assert folder_digest(write_model(tmp_path / "m"), memory) == first


def _counting(function, calls):
    def count(*arguments):
        calls.append(1)
        return function(*arguments)
    return count


def test_a_file_of_the_hubs_cache_is_named_by_its_digest(tmp_path):
    name = "ab" * 32
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir(), snapshot.mkdir()
    (blobs / name).write_bytes(b"whatever")
    (snapshot / "model.safetensors").symlink_to(blobs / name)
    assert file_digest(snapshot / "model.safetensors") == name


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(kvlink.NotFoundError, match="no weights"):
        folder_digest(tmp_path)
    with pytest.raises(kvlink.NotFoundError, match="no folder"):
        folder_digest(tmp_path / "none")


def test_a_fingerprint_does_not_depend_on_the_order():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})


def test_a_changed_configuration_shares_with_no_other_and_its_place_does_not_matter():
    config = {"_name_or_path": "/a", "rms_norm_eps": 1e-5, "id2label": {0: "A"},
              "text_config": {"_name_or_path": "/a", "rope_theta": 1e5}}
    first = configuration_digest(config)
    assert first == configuration_digest(
        {**config, "_name_or_path": "/b", "text_config": {"_name_or_path": "/b", "rope_theta": 1e5}})
    assert first != configuration_digest({**config, "rms_norm_eps": 0.5})
    assert first != configuration_digest({**config, "text_config": {"rope_theta": 1e6}})


def test_made_up_weights_share_with_no_others():
    def key(load_format, digest="d", config="c"):
        return fingerprint(weights_in_key(load_format, lambda: digest, lambda: config))

    assert key("auto") == key("safetensors") == key("AUTO")
    assert len({key("auto"), key("dummy"), key("sharded_state"), key("auto", digest="e")}) == 4
    assert key("dummy") != key("dummy", config="another")

    def no_files():
        raise kvlink.NotFoundError("no weights")

    assert weights_in_key("dummy", no_files, lambda: "c")["load_format"] == "dummy"
    with pytest.raises(kvlink.NotFoundError):
        weights_in_key("auto", no_files, lambda: "c")


def test_attention_is_read_from_a_models_configuration():
    llama = SimpleNamespace(rope_theta=1e4, rope_scaling=None)
    assert attention_traits(llama).rotary and attention_traits(llama).linear_angles
    assert attention_traits(SimpleNamespace(rope_theta=1, sliding_window=512)).sliding_window == 512
    qwen = SimpleNamespace(rope_theta=1, sliding_window=512, use_sliding_window=False)
    assert attention_traits(qwen).sliding_window == 0
    dynamic = SimpleNamespace(rope_theta=1, rope_scaling={"rope_type": "dynamic"})
    assert not attention_traits(dynamic).linear_angles
    vision = SimpleNamespace(rope_theta=1, rope_scaling={"type": "default", "mrope_section": [1]})
    assert attention_traits(vision).several_axes
    assert not attention_traits(SimpleNamespace()).rotary


class FakeTokenizer:
    all_special_ids = [0]

    def __len__(self):
        return 5000

    def convert_ids_to_tokens(self, ids):
        return [f"w{i}" for i in ids]

    def convert_tokens_to_string(self, names):
        return " " + names[0]


def test_the_observer_counts_what_would_be_saved_and_changes_nothing(caplog):
    texts, special = token_texts(FakeTokenizer())
    assert texts[0] == "w0" and texts[5] == " w5" and special[0] == 1 and sum(special) == 1
    counters = {}
    observer = Observer.create(SimpleNamespace(rope_theta=1e4), FakeTokenizer(), counters)
    prompt = list(np.random.default_rng(3).integers(1, 5000, 700))
    edited = [int(t) for t in prompt[:5]] + [9] + [int(t) for t in prompt[6:]]
    with caplog.at_level("INFO", logger="vllm.kvlink"):
        observer.observe(FakeRequest("a", [int(t) for t in prompt]))
        observer.observe(FakeRequest("b", edited))
        observer.observe(FakeRequest("c", edited, salt="other"))
    assert counters["similar_requests"] == 3 and counters["similar_found"] == 1
    assert counters["similar_tokens_saveable"] > 500
    assert counters["similar_refused_no_donor"] == 2
    assert "request b, 700 tokens" in caplog.text
    observer.close()
    observer.observe(FakeRequest("d", edited))  # never raises


def test_a_model_that_does_not_permit_it_is_not_observed(caplog):
    config = SimpleNamespace(rope_theta=1e4, sliding_window=512)
    assert Observer.create(config, FakeTokenizer(), {}) is None
    assert "not observed" in caplog.text


@pytest.fixture
def connector_module(monkeypatch):
    """kvlink.vllm.connector on empty stand-ins for vLLM and torch; the real ones are in test_vllm.py."""
    base = ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.base")
    metrics = ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.metrics")

    class Base:
        def bind_connector_metadata(self, metadata):
            self.metadata = metadata

        def _get_connector_metadata(self):
            return self.metadata

    base.KVConnectorBase_V1 = Base
    for name in ("KVConnectorHandshakeMetadata", "KVConnectorMetadata", "KVConnectorRole",
                 "KVConnectorWorkerMetadata"):
        setattr(base, name, type(name, (), {}))
    for name in ("KVConnectorPromMetrics", "KVConnectorStats"):
        setattr(metrics, name, type(name, (), {}))
    torch = ModuleType("torch")
    torch.get_num_threads = lambda: 3
    path = ""
    for part in base.__name__.split("."):
        path = f"{path}.{part}" if path else part
        monkeypatch.setitem(sys.modules, path, ModuleType(path))
    for module in (base, metrics, torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("kvlink.vllm.connector", "kvlink.vllm.stats"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("kvlink.vllm.connector")
    for name in ("kvlink.vllm.connector", "kvlink.vllm.stats"):
        sys.modules.pop(name, None)


def test_a_step_begins_before_its_loads_and_ends_behind_its_saves(connector_module):
    connector = object.__new__(connector_module.KVLinkConnector)
    calls = []

    class Worker:
        def __getattr__(self, name):
            return lambda *orders: calls.append((name, *orders))

    connector._worker = Worker()
    plan = StepPlan(loads=["load"], saves=["save"])
    connector.bind_connector_metadata(connector_module.KVLinkMetadata(plan))
    connector.start_load_kv(None)
    connector.wait_for_save()
    assert calls == [("begin_step",), ("start_loads", ["load"]), ("save", ["save"]), ("end_step",)]


def test_computing_is_cpu_time_of_all_threads_on_cpu_and_time_elsewhere(connector_module):
    clock = connector_module.step_clock("cpu")
    low = 3 * time.thread_time()
    now = clock()
    assert low <= now <= 3 * time.thread_time()
    assert connector_module.step_clock("cuda") is time.monotonic
