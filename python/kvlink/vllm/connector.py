"""KVLinkConnector: vLLM's KVConnectorBase_V1 on the scheduler's and the worker's side.

vLLM makes one object in the engine's process (SCHEDULER) and one in each worker (WORKER); they talk
through vLLM's own messages. What is decided and moved is in scheduler.py and worker.py; here is what
must know vLLM: its configuration, its registration hooks, its base classes.
"""

import logging
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from kvlink._errors import UnsupportedError
from kvlink._kvlink import BlockStore
from kvlink.vllm.fingerprint import (
    configuration_digest,
    folder_digest,
    model_folder,
    weights_in_key,
)
from kvlink.vllm.messages import StepPlan, WorkerHello
from kvlink.vllm.observer import Observer
from kvlink.vllm.options import ConnectorOptions
from kvlink.vllm.pages import pages_of
from kvlink.vllm.scheduler import SchedulerSide, merge_reports
from kvlink.vllm.stats import KVLinkPromMetrics, KVLinkStats
from kvlink.vllm.worker import WorkerSide, unpinned

logger = logging.getLogger("vllm.kvlink")

# Of the blocks' bytes; the keys have everything else.
BLOCK_FORMAT = "vllm block 1"
# Every token's K and V stay until the request ends, in pages that one block id names.
SUPPORTED_SPECS = ("FullAttentionSpec", "MLAAttentionSpec")
# Of the threads that write: a core that both want is the model's, nine parts of ten.
WRITER_NICE = 10


@dataclass
class KVLinkMetadata(KVConnectorMetadata):
    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class KVLinkHandshake(KVConnectorHandshakeMetadata):
    hello: WorkerHello = None


@dataclass
class KVLinkWorkerMetadata(KVConnectorWorkerMetadata):
    reports: dict = field(default_factory=dict)  # {(pp_rank, tp_rank): RankReport}

    def aggregate(self, other):
        return KVLinkWorkerMetadata(merge_reports(self.reports, other.reports))


def check_supported(vllm_config, kv_cache_config, options):
    """Raises UnsupportedError, with the reason, for what cannot be cached rightly."""
    groups = kv_cache_config.kv_cache_groups
    specs = sorted({type(group.kv_cache_spec).__name__ for group in groups})
    if len(groups) != 1 or specs[0] not in SUPPORTED_SPECS:
        raise UnsupportedError(
            f"KVLink needs one group of layers that keep every token's K and V; this model has "
            f"{len(groups)} ({', '.join(specs)}). Sliding-window models run with "
            "--disable-hybrid-kv-cache-manager; models with recurrent layers are not supported.")
    if groups[0].is_eagle_group:
        raise UnsupportedError("KVLink does not support draft models that have a KV cache of their own")
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise UnsupportedError(f"KVLink does not support {name} = {getattr(parallel, name)}")
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if not algorithm.startswith("sha256"):
        raise UnsupportedError(
            f"prefix_caching_hash_algo is '{algorithm}', which others can make collide; "
            "KVLink needs sha256 or sha256_cbor")
    if options.load == "sync" and vllm_config.scheduler_config.async_scheduling:
        raise UnsupportedError(
            "load 'sync' needs --no-async-scheduling: vLLM would go on with the token after a load "
            "that failed; or use load 'async'")


def numeric_path():
    """What decides in which bits this process computes, and how its kernels lay a block out."""
    if torch.cuda.is_available():
        return "cuda " + ".".join(map(str, torch.cuda.get_device_capability()))
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return f"cpu {torch.backends.cpu.get_cpu_capability()} amx={int(amx)}"


def step_clock(device):
    """Seconds of computing, for the difference over a step. On CPU that is CPU time: the thread that
    calls computes, and the others of its team as long. Elsewhere it is time."""
    if device != "cpu":
        return time.monotonic
    threads = torch.get_num_threads()
    return lambda: threads * time.thread_time()


def model_parts(vllm_config, options, block_size):
    """The scheduler's share of the fingerprint."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, compilation = vllm_config.parallel_config, vllm_config.compilation_config
    memory = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvlink" / "digests.json"
    weights = weights_in_key(
        vllm_config.load_config.load_format,
        digest=lambda: options.model_digest or folder_digest(
            model_folder(model.model, getattr(model, "revision", None)), memory),
        config_text=lambda: model.hf_config.to_json_string(use_diff=False))
    return {
        "format": BLOCK_FORMAT,
        "tenant": options.tenant,
        "weights": weights,
        "config": configuration_digest(model.hf_config.to_dict()),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "rope": str(getattr(model.hf_config, "rope_parameters", None)
                    or getattr(model.hf_config, "rope_scaling", None)),
        "cache_dtype": str(cache.cache_dtype),
        "block_size": block_size,
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "eager": bool(model.enforce_eager),
        "compilation": str(compilation.mode),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
    }


class KVLinkConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._options = ConnectorOptions.parse(self._kv_transfer_config.kv_connector_extra_config)
        check_supported(vllm_config, kv_cache_config, self._options)
        self._block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._scheduler = self._worker = self._remote = self._observer = None
        self._counters = {}
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._make_scheduler()

    # --- Set-up -----------------------------------------------------------------------------------

    def _make_scheduler(self):
        config, options = self._kv_transfer_config, self._options
        if config.kv_load_failure_policy != "recompute":
            logger.info("KVLink is a cache: kv_load_failure_policy becomes 'recompute'")
            config.kv_load_failure_policy = "recompute"
        if options.remote is not None:
            self._remote = BlockStore(model=BLOCK_FORMAT, remote=options.remote,
                                      remote_ca_file=options.remote_ca_file)
        if options.similar == "observe":
            self._observer = self._make_observer()
        return SchedulerSide(
            options,
            model_parts=model_parts(self._vllm_config, options, self._block_size),
            block_size=self._block_size,
            hash_block_size=self._kv_cache_config.hash_block_size or self._block_size,
            may_load=config.is_kv_consumer,
            may_save=config.is_kv_producer,
            remote=self._remote,
            observer=self._observer,
            counters=self._counters,
        )

    def _make_observer(self):
        from transformers import AutoTokenizer

        model = self._vllm_config.model_config
        tokenizer = AutoTokenizer.from_pretrained(model.tokenizer,
                                                  trust_remote_code=model.trust_remote_code)
        return Observer.create(model.hf_text_config, tokenizer, self._counters)

    def _make_worker(self, device):
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        options, parallel = self._options, self._vllm_config.parallel_config
        rank = (get_pp_group().rank_in_group, get_tp_group().rank_in_group)
        cold_dir = None
        if options.cold_dir is not None:  # a directory belongs to one process
            cold_dir = str(Path(options.cold_dir).expanduser() /
                           f"dp{parallel.data_parallel_index}-pp{rank[0]}-tp{rank[1]}")
            Path(cold_dir).mkdir(parents=True, exist_ok=True)
        with unpinned():
            store = BlockStore(
                model=BLOCK_FORMAT, ram_bytes=options.ram_bytes, cold_dir=cold_dir,
                cold_bytes=options.cold_bytes, remote=options.remote,
                remote_ca_file=options.remote_ca_file, remote_ttl_s=options.remote_ttl_s,
                compression=options.compression, queue_bytes=options.queue_bytes,
                load_timeout_s=options.load_timeout_s, write_share=options.write_share,
                writer_nice=WRITER_NICE)
        self._rank = rank
        return WorkerSide(options, store, rank, step_clock=step_clock(device))

    def register_kv_caches(self, kv_caches):
        names = list(self._kv_cache_config.kv_cache_groups[0].layer_names)
        tensors, seen = [], set()
        for name in names:
            tensor = kv_caches.get(name)
            if tensor is not None and tensor.data_ptr() not in seen:  # layers may share a cache
                seen.add(tensor.data_ptr())
                tensors.append(tensor)
        if not tensors:
            raise UnsupportedError(f"none of the layers {names[:3]}... has a registered KV tensor")
        layout = {
            "layers": [[list(tensor.shape[1:]), str(tensor.dtype)] for tensor in tensors],
            "order": str(self._kv_cache_config.kv_cache_layout),
            "device": tensors[0].device.type,
            "numeric_path": numeric_path(),
        }
        self._worker = self._make_worker(tensors[0].device.type)
        self._worker.register(pages_of(tensors, self._kv_cache_config.num_blocks), str(layout))

    def get_handshake_metadata(self):
        return KVLinkHandshake(self._worker.hello())

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self._scheduler.hello({rank: handshake.hello for rank, handshake in metadata.items()})

    @property
    def requires_kv_delivery(self):
        return False  # a cache: a block that is not saved is computed another time

    # --- Worker -----------------------------------------------------------------------------------

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step()

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.start_loads(self._get_connector_metadata().plan.loads)

    def wait_for_layer_load(self, layer_name):
        return

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        return

    def wait_for_save(self):
        self._worker.save(self._get_connector_metadata().plan.saves)
        self._worker.end_step()

    def get_finished(self, finished_req_ids):
        return None, self._worker.take_finished() or None

    def get_block_ids_with_load_errors(self):
        return self._worker.take_invalid()

    def build_connector_worker_meta(self):
        report = self._worker.report()
        return None if report is None else KVLinkWorkerMetadata({self._rank: report})

    # --- Scheduler --------------------------------------------------------------------------------

    def on_new_request(self, request):
        self._scheduler.track(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, tokens > 0 and self._options.load == "async"

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens > 0:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return KVLinkMetadata(self._scheduler.build(scheduler_output))

    def update_connector_output(self, connector_output):
        metadata = connector_output.kv_connector_worker_meta
        if metadata is not None:
            self._scheduler.reported(metadata.reports)
        invalid = connector_output.invalid_block_ids
        if invalid and self._options.load == "sync":
            # vLLM has taken these pages for loaded already: until they are computed, its own cache would
            # lend them to others.
            manager = self._kv_cache_manager
            manager.evict_blocks(self._scheduler.take_back(
                invalid, lambda request_id: manager.get_block_ids(request_id)[0]))

    def request_finished(self, request, block_ids):
        self._scheduler.finished(request)
        return False, None

    def reset_cache(self):
        """vLLM's weights may have changed under way: nothing stored so far is found any more."""
        self._scheduler.forget(uuid.uuid4().hex)
        return True

    # --- Both -------------------------------------------------------------------------------------

    def get_kv_connector_stats(self):
        if self._worker is not None:
            counters = self._worker.take_counters()
        else:
            counters = dict(self._counters)
            self._counters.clear()
        return KVLinkStats(data=counters) if counters else None

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return KVLinkStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return KVLinkPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self):
        if self._worker is not None:
            self._worker.close()
        if self._remote is not None:
            self._remote.close(0)
        if self._observer is not None:
            self._observer.close()
        self._worker = self._scheduler = self._remote = self._observer = None
