"""What the connector counts, in vLLM's log line ("KV Transfer metrics") and in its Prometheus metrics."""

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

DESCRIPTIONS = {
    "load_requests": "Requests for which blocks were loaded.",
    "load_blocks_asked": "Blocks that loads were started for.",
    "load_blocks": "Blocks loaded.",
    "load_blocks_ram": "Blocks loaded from RAM.",
    "load_blocks_cold": "Blocks loaded from disk.",
    "load_blocks_remote": "Blocks loaded from the remote tier.",
    "load_blocks_failed": "Loads that ended at a block that was not there or did not verify.",
    "load_bytes": "Bytes loaded.",
    "load_seconds": "Time spent loading.",
    "save_blocks_asked": "Blocks that the scheduler ordered to be saved.",
    "save_blocks": "Blocks handed to the tiers.",
    "save_blocks_dropped": "Blocks that no tier had room in its queue for.",
    "save_bytes": "Bytes handed to the tiers.",
    "save_seconds": "Time that steps spent copying blocks that are saved.",
    "save_cpu_seconds": "CPU time of that.",
    "write_cpu_seconds": "CPU time of the threads that write to the tiers.",
    "similar_requests": "Prompts that were looked up among similar ones (observe mode).",
    "similar_found": "Prompts for which a donor passed the forward check.",
    "similar_tokens_saveable": "Tokens behind the exact ones that similar reuse would not compute.",
}


@dataclass
class KVLinkStats(KVConnectorStats):
    """Counters since the last interval."""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self):
        return {name: round(value, 3) for name, value in sorted(self.data.items())}

    def is_empty(self):
        return not self.data


class KVLinkPromMetrics(KVConnectorPromMetrics):
    """vllm:kvlink_<name>_total for each counter, and vllm:kvlink_similar_refused_total by reason."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._per_engine(self._counter_cls(
                name=f"vllm:kvlink_{name}", documentation=text, labelnames=labelnames))
            for name, text in DESCRIPTIONS.items()
        }
        self._refused = self._counter_cls(
            name="vllm:kvlink_similar_refused",
            documentation="Prompts without a donor that passed the forward check, by reason.",
            labelnames=[*labelnames, "reason"])

    def _per_engine(self, metric):
        return {engine: metric.labels(*values)
                for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(value)
            elif name.startswith("similar_refused_"):
                labels = [*self.per_engine_labelvalues[engine_idx], name[len("similar_refused_"):]]
                self._refused.labels(*labels).inc(value)


