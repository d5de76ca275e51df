"""The engines that are compared, each at the best setting known for it (docs/bench.md says why these).

A peer can `prepare` (build or install; Failed says why not) and measure what it is able to: `workload_http`,
`workload_process`, `operation`. Figures are dictionaries with the names of docs/bench.md.
"""
import json
import os
import shlex
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import llama_cpp
from environments import HERE, LOGS, python_of
from kvlink_bench import ROOT, kvlink_bench
from processes import Failed, ServerProcess, checked, cpu_seconds, free_port, peak_resident_bytes


def json_of(command, timeout_s, tag, environment=None):
    """The JSON object on the last line of a command's output."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                              timeout=timeout_s, env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired:
        raise Failed(f"no result after {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise Failed(f"{tag} failed ({done.returncode}): {' | '.join((done.stderr + done.stdout).splitlines()[-4:])[-600:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Peer:
    name = ""
    parts = ()  # sections of the comparison that it takes part in

    def __init__(self, settings):
        self.settings = settings

    def prepare(self):
        pass

    def close(self):
        pass


class ServerPeer(Peer):
    """A server meets the load client `kvlink bench --url`; fresh for every measurement unless `keep`."""
    keep = False

    def __init__(self, settings):
        super().__init__(settings)
        self.server = None

    def start(self, case):
        raise NotImplementedError

    def forget(self):
        """Drops what a kept server has cached."""

    def workload_http(self, case):
        self._begin(case)
        try:
            self._warm_up()
            before = cpu_seconds(self.server.pid)
            figures = self._load(case)
            figures["server_cpu_s"] = cpu_seconds(self.server.pid) - before
            figures["server_peak_bytes"] = peak_resident_bytes(self.server.pid)
            return figures
        except BaseException:
            self.close()
            raise
        finally:
            self._end()

    def _begin(self, case):
        if self.server is None:
            self.server = self.start(case)
        else:
            self.server.thaw()
            self.forget()

    def _end(self):
        if self.server is None:
            return
        if self.keep:
            self.server.freeze()  # an idle server may still spin
        else:
            self.close()

    def close(self):
        if self.server is not None:
            self.server.stop()
            self.server = None

    def _warm_up(self):
        # Without the chat template, so that nothing of it is cached when the measurement begins.
        body = {"model": "m", "prompt": "1 2 3 4 5 6 7 8", "max_tokens": 4}
        request = urllib.request.Request(self.server.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=120).read()
        except OSError as error:
            raise Failed(f"the first request failed: {error}") from None

    def _load(self, case):
        settings = self.settings
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            command = [settings.kvlink, "bench", "--quiet", "--url", self.server.url, "--workload", case.workload,
                       "--limit", case.limit, "--concurrency", case.concurrency, "--ignore-eos",
                       "--model-name", "m", "--timeout", settings.run_timeout, "--json", path]
            try:
                done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                                      timeout=settings.run_timeout)
            except subprocess.TimeoutExpired:
                raise Failed(f"not done after {settings.run_timeout:.0f} s") from None
            if done.returncode not in (0, 1) or not path.exists() or not path.read_text():
                raise Failed(f"the load client failed ({done.returncode}): {done.stderr[-600:]}")
            figures = json.loads(path.read_text())["modes"]["url"]
        if figures["errors"]:
            raise Failed(f"{figures['errors']} of {figures['requests']} requests failed: {done.stderr.strip()[-400:]}")
        return figures

    def _process(self, command, environment=None):
        LOGS.mkdir(parents=True, exist_ok=True)
        port = free_port()
        return ServerProcess([*command, "--port", port], port, LOGS / f"bench-{self.name}-serve.log", environment)


class Kvlink(ServerPeer):
    name = "kvlink"
    parts = ("ops", "http", "process", "concurrency", "shared")
    sharing = "exact"

    def prepare(self):
        if not os.access(self.settings.kvlink, os.X_OK):
            raise Failed(f"no executable '{self.settings.kvlink}'; build it, or give --kvlink")

    def start(self, case):
        settings = self.settings
        return self._process([settings.kvlink, "serve", "--quiet", "--model", settings.model, "--model-name", "m",
                              "--threads", settings.threads, "--sharing", self.sharing, "--no-cold", "--kv-memory", settings.kv_memory,
                              "--max-seqs", max(16, case.concurrency * case.branches), *shlex.split(settings.kvlink_args)])

    def workload_process(self, case):
        figures = kvlink_bench(self.settings, "--workload", case.workload, "--limit", str(case.limit), "--ignore-eos",
                               "--concurrency", str(case.concurrency), "--modes", self.sharing,
                               "--kv-memory", str(self.settings.kv_memory))
        return figures["modes"][self.sharing]

    def operation(self, operation):
        figures = kvlink_bench(self.settings, "--synthetic", operation, "--rounds", "1",
                               "--decode-tokens", str(self.settings.decode_tokens))
        return {"tok_per_s": figures["ops"][operation]["tok_per_s"]}


class KvlinkOff(Kvlink):
    name = "kvlink-off"
    parts = ("off", "shared")
    sharing = "off"


class LlamaServer(ServerPeer):
    name = "llama-server"
    parts = ("http", "concurrency", "shared")
    caches = True

    def prepare(self):
        settings = self.settings
        self.tools = llama_cpp.build(llama_cpp.sources(settings.llama_cpp_dir), Path(settings.build_dir), settings.isa)

    def start(self, case):
        settings = self.settings
        cache = ["--cache-ram", settings.kv_memory >> 20] if self.caches else ["--no-cache-prompt", "--cache-ram", "0"]
        slots = max(case.concurrency, case.branches)  # one for each request in flight, with a context of its own
        return self._process([self.tools / "llama-server", "-m", settings.model, "-a", "m", "-t", settings.threads,
                              "-tb", settings.threads, "-fa", "on", "-c", settings.context * slots, "-np", slots,
                              "--no-kv-unified", "--no-webui", "--host", "127.0.0.1", *cache,
                              *shlex.split(settings.llama_args)])


class LlamaServerNoCache(LlamaServer):
    """Computes every prompt, as `--sharing off` does: the same work."""
    name = "llama-server-nocache"
    parts = ("off",)
    caches = False


class LlamaTools(LlamaServer):
    name = "llama.cpp"
    parts = ("ops",)

    def operation(self, operation):
        settings = self.settings
        return {"tok_per_s": llama_cpp.tokens_per_second(self.tools, settings.model, settings.threads, operation,
                                                         settings.decode_tokens, settings.run_timeout)}


class OpenVino(Peer):
    name = "openvino"
    parts = ("ops", "process")

    def prepare(self):
        self.python = python_of("openvino")

    def _worker(self, *arguments):
        command = [self.python, HERE / "openvino_worker.py", self.settings.model, self.settings.threads, *arguments]
        return json_of(command, self.settings.run_timeout, "OpenVINO")

    def workload_process(self, case):
        figures = self._worker("workload", case.workload, case.limit, case.concurrency)
        if figures["errors"]:
            raise Failed(f"{figures['errors']} of {figures['requests']} requests failed")
        return figures

    def operation(self, operation):
        return self._worker("op", operation, self.settings.decode_tokens)


class Vllm(ServerPeer):
    """Starts in a minute, so it is kept, frozen between measurements, with its prefix cache dropped before each."""
    name = "vllm"
    parts = ("http", "concurrency", "shared")
    keep = True

    def prepare(self):
        self.python = python_of("vllm")
        gguf = Path(self.settings.model)
        self.model = ROOT / ".deps" / "bench-vllm" / "models" / gguf.stem
        if not self.model.is_dir():
            self.model.parent.mkdir(parents=True, exist_ok=True)
            checked([self.python, HERE / "vllm_convert.py", gguf.resolve(), self.model], LOGS / "bench-vllm.log",
                    env={**os.environ, "HF_HUB_OFFLINE": "1"})

    def start(self, case):
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1"}
        return self._process([self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model,
                              "--served-model-name", "m", "--host", "127.0.0.1", "--max-num-seqs", 16,
                              "--max-num-batched-tokens", 4096, "--enforce-eager", "--enable-prefix-caching",
                              "--enable-prompt-tokens-details", "--kv-cache-memory-bytes", self.settings.kv_memory,
                              *shlex.split(self.settings.vllm_args)], quiet)

    def forget(self):
        request = urllib.request.Request(self.server.url + "/reset_prefix_cache", b"", method="POST")
        urllib.request.urlopen(request, timeout=60).read()


ALL = [Kvlink, KvlinkOff, LlamaServer, LlamaServerNoCache, LlamaTools, OpenVino, Vllm]
# What --peers names.
FAMILIES = {"llama.cpp": [LlamaServer, LlamaServerNoCache, LlamaTools], "openvino": [OpenVino], "vllm": [Vllm]}
