"""Starts vllm_session.py in vLLM's Python environment, the one that bench/compare installs."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("KVLINK_SOURCE_DIR", HERE.parent.parent))
# One core is vLLM's, one is for everything else: with a connector vLLM reserves one more, and where
# none is left it computes on all cores and fights with its own processes (docs/vllm.md).
ONE_COMPUTING_CORE = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "1"}


def environment_of_vllm():
    """(python, folder of the default model in Hugging Face's format); makes what is missing."""
    sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "compare")]
    from environments import LOGS, python_of
    from processes import checked

    python = python_of("vllm")
    gguf = Path(os.environ.get("KVLINK_MODEL",
                               ROOT / ".deps" / "models" / "SmolLM2-135M-Instruct-Q4_1.gguf"))
    model = ROOT / ".deps" / "bench-vllm" / "models" / gguf.stem
    if not model.is_dir():
        model.parent.mkdir(parents=True, exist_ok=True)
        checked([python, ROOT / "bench" / "compare" / "vllm_convert.py", gguf.resolve(), model],
                LOGS / "bench-vllm.log", env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return python, model


def shared_memory_of_group(group):
    """Files in /dev/shm that processes of a process group have mapped."""
    files = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                lines = (process / "maps").read_text().splitlines()
                files.update(Path("/dev/shm") / line.split("/dev/shm/")[1].split()[0]
                             for line in lines if "/dev/shm/" in line)
        except (OSError, ValueError):
            continue
    return files


class Vllm:
    """A session. `ask` sends one command; leaving `with` ends it as a service manager would."""

    def __init__(self, connector, log, engine=None, environment=None):
        python, model = environment_of_vllm()
        self.log = Path(log)
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                 "VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOGGING_STREAM": "ext://sys.stderr",
                 "XDG_CACHE_HOME": str(ROOT / ".deps" / "cache")}
        setup = json.dumps({"model": str(model), "connector": connector, "engine": engine or {}})
        with open(self.log, "a", encoding="utf-8") as log_file:
            self.process = subprocess.Popen(
                [str(python), str(HERE / "vllm_session.py"), setup], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log_file, text=True, start_new_session=True,
                env={**os.environ, **quiet,
                     **(ONE_COMPUTING_CORE if environment is None else environment)})
        assert self._answer(patience_s=400) == "ready"

    def _answer(self, patience_s):
        timer = threading.Timer(patience_s, self.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("@ "):
                    return line[2:].strip()
        finally:
            timer.cancel()
        raise RuntimeError(f"vLLM ended: {self.log.read_text()[-3000:]}")

    def ask(self, patience_s=400, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self._answer(patience_s))

    def generate(self, prompts, max_tokens=8, salt=None):
        return self.ask(generate=prompts, max_tokens=max_tokens, salt=salt)

    def metrics(self):
        return self.ask(metrics=None)

    def kill(self):
        """kill -9, the whole session; and what its processes can no longer tidy up."""
        shared = shared_memory_of_group(self.process.pid)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for path in shared:
            path.unlink(missing_ok=True)

    def close(self):
        self.process.stdin.close()  # its main ends, and vLLM shuts down
        try:
            self.process.wait(60)
        finally:
            self.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
