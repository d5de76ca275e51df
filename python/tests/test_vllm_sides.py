"""The connector's two sides on a small stand-in for vLLM: exact rows, whatever was loaded."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import kvlink
from kvlink.vllm.messages import Load, RankReport, WorkerHello, rank_key
from kvlink.vllm.options import ConnectorOptions
from kvlink.vllm.scheduler import SchedulerSide, merge_reports
from redis_server import RedisServer
from vllm_fakes import BLOCK, FakeRequest, FakeVllm, step_output

SYNC = ConnectorOptions(load="sync")


def ram():
    return kvlink.BlockStore(model="m", ram_bytes=1 << 20)


@pytest.fixture
def fake():
    fake = FakeVllm(ram())
    yield fake
    fake.close()


def eventually(condition):
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("not within 60 s")


def serve(fake, name, tokens, **options):
    extra = {key: options.pop(key) for key in ("salt", "lora") if key in options}
    request = FakeRequest(name, tokens, **extra)
    loaded, computed, rows = fake.serve(request, **options)
    fake.check(request, rows)
    return loaded, computed


def test_a_prompt_that_was_computed_is_loaded_up_to_its_last_token(fake):
    assert serve(fake, "a", range(18)) == (0, 18)
    assert serve(fake, "b", range(18)) == (16, 2)
    assert serve(fake, "c", range(16)) == (15, 1)  # the last block, but for the token that vLLM samples from


def test_only_the_common_blocks_are_loaded(fake):
    serve(fake, "a", range(20))
    assert serve(fake, "b", [*range(9), 99, *range(10, 20)]) == (8, 12)


def test_chunks_and_generated_tokens_are_saved_block_by_block(fake):
    serve(fake, "a", range(18), chunk=5, generate=6)
    answer = [*range(18), 1006, 1005, 1004, 1003, 1002, 1001]
    assert serve(fake, "b", [*answer, 7]) == (24, 1)


def test_generated_tokens_can_be_left_out():
    fake = FakeVllm(ram(), options=ConnectorOptions(load="sync", save_generated=False))
    serve(fake, "a", range(18), generate=10)
    assert serve(fake, "b", [*range(18), *range(1010, 1000, -1)])[0] == 16
    fake.close()


def test_salts_and_adapters_do_not_share(fake, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"one")
    lora = SimpleNamespace(lora_name="n", lora_path=str(tmp_path))
    serve(fake, "a", range(18))
    assert serve(fake, "b", range(18), salt="x")[0] == 0
    assert serve(fake, "c", range(18), lora=lora)[0] == 0
    assert serve(fake, "d", range(18), lora=lora)[0] == 16
    assert serve(fake, "e", range(18), salt="x")[0] == 16


def test_adapters_of_one_name_and_other_weights_do_not_share(tmp_path):
    sides = []
    for content in (b"one", b"two"):
        folder = tmp_path / content.decode()
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(content)
        side = SchedulerSide(SYNC, model_parts={}, block_size=BLOCK, hash_block_size=BLOCK)
        side.hello({(0, 0): WorkerHello("l", [])})
        request = FakeRequest("a", range(8),
                              lora=SimpleNamespace(lora_name="n", lora_path=str(folder)))
        side.track(request)
        sides.append(side._keys_of(side._requests["a"]))
    assert not set(sides[0]) & set(sides[1])


@pytest.mark.parametrize("again", [{"lora_int_id": 2}, {"lora_int_id": 1, "load_inplace": True}])
def test_an_adapter_that_was_loaded_again_with_other_weights_does_not_share(tmp_path, again):
    side = SchedulerSide(SYNC, model_parts={}, block_size=BLOCK, hash_block_size=BLOCK)
    side.hello({(0, 0): WorkerHello("l", [])})
    weights = tmp_path / "adapter_model.safetensors"
    keys = []
    for name, content, load in (("a", b"one", {"lora_int_id": 1}), ("b", b"other", again),
                                ("c", None, again)):
        if content is not None:
            weights.write_bytes(content)
        adapter = SimpleNamespace(lora_name="n", lora_path=str(tmp_path), **load)
        request = FakeRequest(name, range(8), lora=adapter)
        side.track(request)
        keys.append(side._keys_of(side._requests[name]))
    assert not set(keys[0]) & set(keys[1])
    assert keys[1] == keys[2]


@pytest.mark.parametrize("change", [{"weights": "x"}, {"tensor_parallel": 2}, {"dtype": "b"}])
def test_whatever_the_rows_depend_on_is_in_the_keys(change):
    keys = []
    for parts in ({"weights": "w", "tensor_parallel": 1, "dtype": "a"},
                  {"weights": "w", "tensor_parallel": 1, "dtype": "a", **change}):
        side = SchedulerSide(SYNC, model_parts=parts, block_size=BLOCK, hash_block_size=BLOCK)
        side.hello({(0, 0): WorkerHello("l", [])})
        request = FakeRequest("a", range(8))
        side.track(request)
        keys.append(side._keys_of(side._requests["a"]))
    assert not set(keys[0]) & set(keys[1])


def test_a_restart_finds_what_is_on_disk(tmp_path):
    def start():
        return FakeVllm(kvlink.BlockStore(model="m", ram_bytes=1 << 20, cold_dir=str(tmp_path)))

    fake = start()
    serve(fake, "a", range(30))
    fake.close()
    fake = start()
    assert serve(fake, "b", range(30)) == (28, 2)
    fake.close()


def test_two_engines_share_through_redis(tmp_path):
    redis = RedisServer(tmp_path)

    def start():
        store = kvlink.BlockStore(model="m", ram_bytes=1 << 20, remote=redis.url)
        return FakeVllm(store, remote=kvlink.BlockStore(model="m", remote=redis.url),
                        options=ConnectorOptions(load="sync", lookup_timeout_s=5.0))

    a, b = start(), start()
    assert serve(a, "a", range(30))[0] == 0
    assert serve(b, "b", range(30)) == (28, 2)
    assert serve(b, "c", [*range(12), 5, 6]) == (12, 2)
    redis.stop()  # what is in RAM stays; the rest is computed
    assert serve(b, "d", range(30)) == (28, 2)
    assert serve(a, "e", range(100, 130))[0] == 0
    a.close(), b.close()


class LosingStore:
    """A store that says it has blocks which then do not load."""

    def __init__(self, store):
        self._store, self.lost = store, set()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def load(self, keys, buffers, timeout_s):
        names = self._store.load(keys, buffers, timeout_s)
        return [None if key in self.lost else name for key, name in zip(keys, names)]


def test_a_block_that_does_not_load_is_computed_and_stored_again():
    store = LosingStore(ram())
    fake = FakeVllm(store)
    serve(fake, "a", range(30))
    request = FakeRequest("x", range(30))
    fake.scheduler.track(request)
    lost = fake.scheduler._keys_of(fake.scheduler._requests["x"])[3]
    fake.scheduler.finished(request)
    store.lost.add(rank_key(lost, 0, 0))
    loaded, computed = serve(fake, "b", range(30))
    assert loaded == 12 and computed == 2 + 18  # the step's two tokens, then from block 3 on
    assert fake.counters["load_blocks_failed"] == 1
    store.lost.clear()
    assert serve(fake, "c", range(30))[0] == 12  # not offered for a while
    fake.scheduler._failed.clear()
    assert serve(fake, "d", range(30)) == (28, 2)
    fake.close()


def test_nothing_of_a_step_that_computed_on_missing_blocks_is_stored():
    store = LosingStore(ram())
    fake = FakeVllm(store)
    serve(fake, "a", range(16))
    first = FakeRequest("x", range(16))
    fake.scheduler.track(first)
    store.lost.update(rank_key(key, 0, 0)
                      for key in fake.scheduler._keys_of(fake.scheduler._requests["x"]))
    before = store.stats()["ram"]["stored"]
    request = FakeRequest("b", range(30))
    fake.scheduler.track(request)
    assert fake.scheduler.matched_tokens(request, 0) == 16
    table = list(range(40, 48))
    fake.scheduler.allocated(request, table, 16)
    plan = fake.scheduler.build(step_output({"b": 14}, {"b": 16}, {"b": table}, new=["b"]))
    assert plan.saves
    fake.worker.start_loads(plan.loads)
    fake.worker.save(plan.saves)
    store.drain(20)
    assert store.stats()["ram"]["stored"] == before
    fake.close()


def test_every_request_on_pages_of_a_load_that_failed_computes_them():
    side = SchedulerSide(SYNC, model_parts={}, block_size=BLOCK, hash_block_size=BLOCK)
    tables = {"loader": [7, 8, 9, 3], "sharer": [7, 8, 5], "other": [1, 2], "waits": []}
    computed = {"loader": BLOCK, "sharer": 2 * BLOCK, "other": 2 * BLOCK, "waits": 0}
    requests = {name: FakeRequest(name, range(4)) for name in tables}
    for name, request in requests.items():
        request.num_computed_tokens = computed[name]
        side.track(request)
    assert side.take_back({6}, tables.get) == {6}
    assert {name: request.num_computed_tokens for name, request in requests.items()} == computed
    assert side.take_back({8, 9}, tables.get) == {8, 9, 3, 5}
    computed["sharer"] = BLOCK
    assert {name: request.num_computed_tokens for name, request in requests.items()} == computed


def test_evicted_blocks_are_no_longer_offered():
    fake = FakeVllm(kvlink.BlockStore(model="m", ram_bytes=3000))
    serve(fake, "a", range(30))
    for i in range(10):
        serve(fake, f"b{i}", range(100 * i + 1000, 100 * i + 1030))
        fake.worker._next_look = 0
        fake.report()
    assert serve(fake, "c", range(30))[0] == 0
    assert "load_blocks_failed" not in fake.counters
    fake.close()


def test_two_requests_at_once_save_a_block_once(fake):
    tables = {"a": [0, 1, 2], "b": [3, 4, 5]}
    for name in tables:
        fake.scheduler.track(FakeRequest(name, range(12)))
    plan = fake.scheduler.build(step_output({"a": 12, "b": 12}, {"a": 0, "b": 0}, tables, ["a", "b"]))
    assert len(plan.saves) == 3


def test_preemption_recomputes_into_other_pages_and_stays_right(fake):
    request = FakeRequest("a", range(18))
    fake.scheduler.track(request)
    plan = fake.scheduler.build(step_output({"a": 18}, {"a": 0}, {"a": list(range(5))}, ["a"]))
    fake.compute(request, list(range(5)), 0, 18)
    fake.worker.save(plan.saves)
    fake.report()
    # Preempted: its pages go to others; then it comes back and asks again, with a longer prompt.
    for layer in fake.layers:
        layer[:5] = 0
    for token in (50, 51, 52):
        request.append(token)
    external = fake.scheduler.matched_tokens(request, 0)
    assert external == 16  # its own blocks, saved before
    table = list(range(20, 26))
    fake.scheduler.allocated(request, table, external)
    plan = fake.scheduler.build(
        step_output({"a": 5}, {"a": external}, {"a": table}, resumed=["a"]))
    fake.worker.start_loads(plan.loads)
    fake.compute(request, table, external, 21)
    fake.worker.save(plan.saves)
    fake.check(request, [fake.row(table, p) for p in range(21)])
    assert [save.block_id for save in plan.saves] == [table[4]]


def test_a_consumer_does_not_save_and_a_producer_does_not_load():
    store = ram()
    fake = FakeVllm(store)
    serve(fake, "a", range(18))
    for may_load, may_save, want in ((True, False, 16), (False, True, 0)):
        side = SchedulerSide(SYNC, model_parts={"weights": "w"}, block_size=BLOCK,
                             hash_block_size=BLOCK, may_load=may_load, may_save=may_save)
        side.hello({(0, 0): WorkerHello("layout", store.addresses("ram"))})
        request = FakeRequest("b", [*range(18), *range(50, 60)])
        side.track(request)
        assert side.matched_tokens(request, 0) == want
        plan = side.build(step_output({"b": 28}, {"b": 0}, {"b": list(range(7))}, ["b"]))
        assert bool(plan.saves) == may_save
    fake.close()


def test_a_block_is_there_when_every_rank_has_its_part():
    side = SchedulerSide(SYNC, model_parts={}, block_size=BLOCK, hash_block_size=BLOCK)
    ranks = [(0, 0), (0, 1)]
    side.hello({rank: WorkerHello("l", []) for rank in ranks})
    request = FakeRequest("a", range(18))
    side.track(request)
    keys = side._keys_of(side._requests["a"])
    parts = {rank: [rank_key(key, *rank)[:16] for key in keys] for rank in ranks}
    side.reported({(0, 0): RankReport(stored=parts[0, 0])})
    assert side.matched_tokens(request, 0) == 0
    side.reported({(0, 1): RankReport(stored=parts[0, 1][:2])})
    assert side.matched_tokens(request, 0) == 2 * BLOCK
    assert side.matched_tokens(request, BLOCK) == BLOCK  # behind what vLLM has itself
    side.reported({(0, 1): RankReport(dropped=parts[0, 1][:1])})
    assert side.matched_tokens(request, 0) == 0


def test_other_weights_under_way_make_everything_unknown(fake):
    serve(fake, "a", range(18))
    fake.scheduler.forget("epoch")
    assert serve(fake, "b", range(18))[0] == 0
    assert serve(fake, "c", range(18))[0] == 16


def test_hashes_finer_than_blocks_are_combined():
    side = SchedulerSide(SYNC, model_parts={}, block_size=2 * BLOCK, hash_block_size=BLOCK)
    side.hello({(0, 0): WorkerHello("l", [])})
    request = FakeRequest("a", range(20))
    side.track(request)
    assert len(request.block_hashes) == 5
    assert len(side._keys_of(side._requests["a"])) == 2


def test_an_asynchronous_load_ends_with_its_request_and_its_losses():
    store = LosingStore(ram())
    fake = FakeVllm(store, options=ConnectorOptions(load="async"))
    keys = [bytes([i]) * 32 for i in range(4)]
    data = np.random.default_rng(0).integers(0, 256, (4, fake.worker._pages.block_bytes), np.uint8)
    for key, row in zip(keys, data):
        store.put(rank_key(key, 0, 0), row)
    store.drain(20)
    store.lost.add(rank_key(keys[2], 0, 0))
    fake.worker.start_loads([Load("r", keys, [10, 11, 12, 13])])
    finished, limit = set(), threading.Event()
    for _ in range(200):
        finished |= fake.worker.take_finished()
        if finished:
            break
        limit.wait(0.02)
    assert finished == {"r"}
    assert fake.worker.take_invalid() == {12, 13} and fake.worker.take_invalid() == set()
    out = np.empty((2, fake.worker._pages.block_bytes), np.uint8)
    fake.worker._pages.gather([10, 11], out)
    np.testing.assert_array_equal(out, data[:2])
    assert fake.worker.report().failed == [keys[2]]
    assert fake.worker.take_counters()["load_blocks"] == 2
    fake.close()


def test_a_load_that_breaks_still_lets_its_request_go_on():
    class BrokenStore(LosingStore):
        def load(self, *_):
            raise OSError("no")

    fake = FakeVllm(BrokenStore(ram()), options=ConnectorOptions(load="async"))
    fake.worker.start_loads([Load("r", [b"k" * 32], [3])])
    fake.worker._pool.shutdown(wait=True)
    assert fake.worker.take_finished() == {"r"} and fake.worker.take_invalid() == {3}
    fake = FakeVllm(BrokenStore(ram()), options=SYNC)
    fake.worker.start_loads([Load("r", [b"k" * 32], [3])])
    assert fake.worker.take_invalid() == {3} and fake.worker.report().failed == [b"k" * 32]


def test_reports_of_several_workers_come_together():
    merged = merge_reports({(0, 0): RankReport(stored=[b"a"])},
                           {(0, 1): RankReport(failed=[b"k"]), (0, 0): RankReport(dropped=[b"b"])})
    assert merged == {(0, 0): RankReport([b"a"], [b"b"], []), (0, 1): RankReport([], [], [b"k"])}


def test_nothing_is_offered_before_the_workers_are_known():
    side = SchedulerSide(SYNC, model_parts={}, block_size=BLOCK, hash_block_size=BLOCK)
    request = FakeRequest("a", range(18))
    side.track(request)
    with pytest.raises(kvlink.FailedPreconditionError, match="registered"):
        side.matched_tokens(request, 0)


def test_random_requests_always_get_the_rows_that_computing_gives(tmp_path):
    random = np.random.default_rng(7)
    store = LosingStore(kvlink.BlockStore(model="m", ram_bytes=6000, cold_dir=str(tmp_path)))
    fake = FakeVllm(store, blocks=64)
    loaded_in_all = 0
    for i in range(80):
        tokens = list(random.integers(0, 2, size=random.integers(1, 5)).repeat(6))
        salt = [None, "s"][random.integers(2)]
        if i > 20 and random.random() < 0.2:
            request = FakeRequest("x", tokens, salt=salt)
            fake.scheduler.track(request)
            keys = fake.scheduler._keys_of(fake.scheduler._requests["x"])
            store.lost = {rank_key(key, 0, 0) for key in keys if random.random() < 0.5}
        else:
            store.lost = set()
            fake.scheduler._failed.clear()
        chunk = int(random.integers(1, 9)) if random.random() < 0.5 else None
        loaded_in_all += serve(fake, f"r{i}", tokens, salt=salt, chunk=chunk,
                               generate=int(random.integers(0, 4)))[0]
    assert loaded_in_all > 100
    fake.close()


@pytest.mark.parametrize("direct", [True, False])
def test_more_blocks_than_are_staged_at_once_come_through(monkeypatch, direct):
    """direct: read where they lie; or gathered first, as from a device."""
    monkeypatch.setattr("kvlink.vllm.worker.STAGING_BYTES", 3 * 128)
    if not direct:
        monkeypatch.setattr("kvlink.vllm.pages.Pages", lambda layers: None)
    fake = FakeVllm(ram())
    assert (fake.worker._pages.direct is None) != direct
    assert (fake.worker._save_rows is None) == direct and len(fake.worker._load_rows) == 3
    serve(fake, "a", range(41))
    assert serve(fake, "b", range(41)) == (40, 1)
    counters = fake.worker.take_counters()
    assert counters["save_blocks"] == 10 and "save_blocks_dropped" not in counters
    assert counters["save_bytes"] == counters["load_bytes"] == 10 * 128
    fake.close()


def test_blocks_that_no_queue_takes_are_counted_and_not_waited_for():
    fake = FakeVllm(kvlink.BlockStore(model="m", ram_bytes=1 << 20, queue_bytes=100))
    request = FakeRequest("a", range(18))
    fake.scheduler.track(request)
    plan = fake.scheduler.build(step_output({"a": 18}, {"a": 0}, {"a": list(range(5))}, ["a"]))
    fake.worker.save(plan.saves)
    counters = fake.worker.take_counters()
    assert counters["save_blocks_dropped"] == 4 and "save_blocks" not in counters
    assert fake.worker.report() is None and not fake.worker._unconfirmed
    fake.close()


def test_a_block_that_left_ram_before_the_disk_had_it_is_offered_when_the_disk_has_it(tmp_path):
    """Beside steps the disk waits (write_share 0); RAM has room for three blocks."""
    store = kvlink.BlockStore(model="m", ram_bytes=3 * 270, cold_dir=str(tmp_path), write_share=0)
    fake = FakeVllm(store)
    worker = fake.worker
    worker._next_look = float("inf")  # it looks when it is told to
    request = FakeRequest("a", range(26))
    fake.scheduler.track(request)
    addresses = [rank_key(key, 0, 0)[:16]
                 for key in fake.scheduler._keys_of(fake.scheduler._requests["a"])]
    worker.begin_step()
    for first in (0, 3):
        plan = fake.scheduler.build(step_output({"a": 12}, {"a": 4 * first}, {"a": list(range(7))},
                                                ["a"] if first == 0 else []))
        worker.save(plan.saves)
        eventually(lambda stored=first + 3: store.stats()["ram"]["stored"] == stored)
        assert worker.report().stored == addresses[first : first + 3]
    worker._look()
    assert set(worker.report().dropped) == set(addresses[:3])
    assert store.stats()["cold"]["stored"] == 0
    worker.end_step()
    eventually(lambda: store.stats()["cold"]["stored"] == 6)
    worker._look()
    assert set(worker.report().stored) == set(addresses[:3])
    fake.close()

