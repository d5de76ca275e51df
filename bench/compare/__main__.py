#!/usr/bin/env python3
"""Compares KVLink with llama.cpp, OpenVINO GenAI and vLLM on this machine: same workloads, model and threads, interleaved.

usage: python3 bench/compare [options]        (docs/bench.md, "Comparisons")

Builds or installs the peers (llama.cpp's tools from the version that KVLink is built on; the others in virtual environments
under .deps/, all pinned), then measures round by round; in each round every case with every peer, one right after the other,
in an order that turns from round to round, so that a busy neighbour hits all. Writes compare.md, compare.json (every round),
latency.png and throughput.png. A peer that cannot be installed or fails is named with the reason and the rest goes on; after
Ctrl-C, or when --minutes are over, the report says what was measured until then.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cases  # noqa: E402
import peers  # noqa: E402
from environments import HERE, python_of  # noqa: E402
from kvlink_bench import ROOT, default_model, write_json  # noqa: E402
from processes import Failed  # noqa: E402
from report import Report  # noqa: E402

PARTS = ["ops", "http", "process", "off", "concurrency", "shared"]


def limits(text):
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    try:
        return {name: int(count) for name, count in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=N,NAME=N") from None


def numbers(text):
    return [int(part) for part in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(prog="bench/compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kvlink", default=str(ROOT / "build" / "release" / "kvlink"), help="executable")
    add("--model", default=default_model(), help="GGUF file")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--out", default=str(ROOT / "build" / "compare"), help="folder for the report")
    add("--peers", default="llama.cpp,openvino,vllm", help="comma-separated; default: %(default)s")
    add("--parts", default=",".join(PARTS), help="comma-separated; default: %(default)s")
    add("--rounds", type=int, default=3)
    add("--workloads", nargs="+", default=[str(ROOT / "bench" / "workloads" / "smoke.jsonl")],
        help="files of conversations, or folders of them (*.jsonl)")
    add("--limits", type=limits, default={}, metavar="NAME=N,...", help="first N lines of a workload; 0: all")
    add("--limit", type=int, help="first N lines of every workload, for a quick look")
    add("--concurrency", type=int, default=10)
    add("--operations", default=",".join(cases.OPERATIONS), help="default: %(default)s")
    add("--decode-tokens", type=int, default=64)
    add("--concurrencies", type=numbers, default=cases.CONCURRENCIES, metavar="N,N,...")
    add("--shared-lengths", type=numbers, default=cases.SHARED_LENGTHS, metavar="N,N,...")
    add("--sweep-rounds", type=int, default=1, help="rounds of the parts concurrency and shared")
    add("--slow", type=float, default=0, metavar="S",
        help="what takes a peer longer than this is not repeated with it; 0: everything is")
    add("--minutes", type=float, default=0, help="begin no measurement after so many; 0: no limit")
    add("--run-timeout", type=float, default=600, metavar="S", help="seconds that one measurement may take")
    add("--context", type=int, default=8192, help="tokens of a slot of llama-server")
    add("--kv-memory", type=int, default=4 << 30, metavar="BYTES",
        help="KV that kvlink and vLLM may hold, and host cache of llama-server beside its slots")
    add("--kvlink-args", default="", help="further options of kvlink serve")
    add("--llama-args", default="", help="further options of llama-server")
    add("--vllm-args", default="", help="further options of vLLM's server")
    add("--llama-cpp-dir", help="whole llama.cpp tree; default: the pinned version, fetched with pip")
    add("--build-dir", help="where llama.cpp is built; default: build/llama-bench, with --isa avx2 build/llama-bench-avx2")
    add("--isa", choices=["native", "avx2"], default="native",
        help="avx2: KVLink and llama.cpp without AVX-512, as on older processors; the other peers stay away")
    add("--install-only", action="store_true", help="build and install the peers, then stop")
    add("--check", action="store_true", help="exit 1 when a ratio is below its aim")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.split(",") if arguments.peers else []
    if arguments.isa == "avx2":
        arguments.peers = [name for name in arguments.peers if name == "llama.cpp"]
        os.environ["KVLINK_ISA"] = "avx2"
    if arguments.build_dir is None:
        arguments.build_dir = str(ROOT / "build" / ("llama-bench" if arguments.isa == "native" else "llama-bench-avx2"))
    arguments.parts = arguments.parts.split(",")
    for name, known in (("peers", peers.FAMILIES), ("parts", PARTS)):
        for value in getattr(arguments, name):
            if value not in known:
                parser.error(f"--{name}: '{value}' is none of {', '.join(known)}")
    paths = []
    for name in arguments.workloads:
        path = Path(name)
        paths += sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not path.exists():
            parser.error(f"--workloads: no file or folder '{name}'")
    arguments.workloads = paths
    return arguments


class Comparison:
    def __init__(self, settings, scratch):
        self.settings, self.scratch = settings, scratch
        self.out = Path(settings.out)
        self.results, self.unavailable, self.machine = {}, {}, {}
        self.started = time.monotonic()
        self.peers = []

    # Preparing

    def prepare(self):
        wanted = [peers.Kvlink, peers.KvlinkOff]
        for family in self.settings.peers:
            wanted += peers.FAMILIES[family]
        for kind in wanted:
            peer = kind(self.settings)
            if not set(peer.parts) & set(self.settings.parts):
                continue
            try:
                peer.prepare()
                self.peers.append(peer)
            except (Failed, OSError, SystemExit) as error:
                if isinstance(peer, peers.Kvlink):
                    raise SystemExit(f"compare: {error}") from None
                self.unavailable[peer.name] = str(error)
                self.say(f"{peer.name} cannot take part: {error}")
        done = subprocess.run([self.settings.kvlink, "version"], capture_output=True, text=True, check=True)
        cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                    if line.startswith("model name")), "unknown")
        self.machine = {"cpu": cpu, "logical_cpus": len(os.sched_getaffinity(0)), "kvlink": done.stdout.strip().splitlines()}

    def all_cases(self):
        """Part -> its cases."""
        settings = self.settings
        own_limits = {**cases.LIMITS, **settings.limits}
        off_limits = {**cases.OFF_LIMITS, **settings.limits}
        if settings.limit is not None:
            own_limits = off_limits = {path.stem: settings.limit for path in settings.workloads}
        whole = cases.workload_cases(settings.workloads, own_limits, settings.concurrency)
        return {"ops": [cases.Case(operation) for operation in settings.operations.split(",")],
                "http": whole, "process": whole,
                "off": cases.workload_cases(settings.workloads, off_limits, settings.concurrency),
                "concurrency": cases.concurrency_cases(self.scratch, settings.concurrencies),
                "shared": cases.shared_cases(self.scratch, settings.shared_lengths, settings.concurrency)}

    # Measuring

    def measure(self):
        by_part = self.all_cases()
        rounds = max(self.settings.rounds, self.settings.sweep_rounds)
        for number in range(rounds):
            for part in self.settings.parts:
                sweep = part in ("concurrency", "shared")
                if number >= (self.settings.sweep_rounds if sweep else self.settings.rounds):
                    continue
                for case in by_part[part]:
                    self._measure_case(number, part, case)

    def _measure_case(self, number, part, case):
        able = [peer for peer in self.peers if part in peer.parts]
        turn = number % len(able)
        for peer in able[turn:] + able[:turn]:
            result = self.results.setdefault(part, {}).setdefault(case.name, {}).setdefault(
                peer.name, {"rounds": {}, "failure": "", "requests": case.requests, "x": case.x})
            if result["failure"] or self._too_slow(result):
                continue
            if self.settings.minutes and time.monotonic() - self.started > self.settings.minutes * 60:
                raise TimeoutError
            self._measure(number, part, case, peer, result)
            self.save()

    def _too_slow(self, result):
        slow = self.settings.slow
        return bool(slow) and any(figures.get("wall_s", figures["took_s"]) > slow
                                  for figures in result["rounds"].values())

    def _measure(self, number, part, case, peer, result):
        start = time.monotonic()
        try:
            if part == "ops":
                figures = peer.operation(case.name)
            elif part == "process":
                figures = peer.workload_process(case)
            else:
                figures = peer.workload_http(case)
        except (Failed, SystemExit, OSError, ValueError, KeyError) as error:
            result["failure"] = f"round {number + 1}: {error}"
            self.say(f"round {number + 1} {part} {case.name} {peer.name}: {error}")
            return
        figures["took_s"] = time.monotonic() - start
        result["rounds"][str(number)] = figures
        shown = f"{figures['wall_s']:.2f} s" if "wall_s" in figures else f"{figures['tok_per_s']:.1f} tokens/s"
        self.say(f"round {number + 1}/{self.settings.rounds} {part} {case.name} {peer.name}: {shown}")

    def close(self):
        for peer in self.peers:
            peer.close()

    # Reporting

    def say(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)

    def save(self):
        self.out.mkdir(parents=True, exist_ok=True)
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self.settings).items()}
        settings["workloads"] = [path.name for path in self.settings.workloads]
        for key in ("kvlink", "model", "out", "build_dir", "llama_cpp_dir"):  # paths say nothing elsewhere
            settings.pop(key)
        data = {"model": Path(self.settings.model).name, "machine": self.machine, "threads": self.settings.threads,
                "concurrency": self.settings.concurrency, "settings": settings, "unavailable": self.unavailable,
                "results": self.results}
        write_json(self.out / "compare.json.part", data)
        (self.out / "compare.json.part").rename(self.out / "compare.json")

    def report(self):
        aims = cases.OPERATION_AIMS if self.settings.isa == "native" else cases.OPERATION_AIMS_AVX2
        report = Report(self.results, next((aims[name] for name in aims if name in Path(self.settings.model).name), {}))
        body = report.text()
        machine = self.machine
        lines = [f"# KVLink compared, {Path(self.settings.model).name}, {self.settings.threads} threads", "",
                 f"{machine.get('cpu')}, {machine.get('logical_cpus')} logical CPUs; " + "; ".join(machine.get("kvlink", [])) + ".",
                 f"{self.settings.concurrency} requests in flight; spread: (highest - lowest) / median.", ""]
        lines += [f"{name} did not take part: {reason}" for name, reason in self.unavailable.items()]
        text = "\n".join([*lines, "", body, ""])
        if report.missed:
            text += "\n## Below the aim\n\n" + "\n".join(f"- {line}" for line in report.missed) + "\n"
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "compare.md").write_text(text, encoding="utf-8")
        print(text)
        self._plot()
        return report.missed

    def _plot(self):
        if not {"concurrency", "shared"} & set(self.results):
            return
        try:
            python = python_of("plots")
            subprocess.run([str(python), str(HERE / "plots.py"), str(self.out / "compare.json"), str(self.out)], check=True)
        except (Failed, OSError, subprocess.CalledProcessError) as error:
            self.say(f"no plots: {error}")


def main():
    settings = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with tempfile.TemporaryDirectory() as scratch:
        comparison = Comparison(settings, Path(scratch))
        comparison.prepare()
        if settings.install_only:
            return 1 if comparison.unavailable else 0
        stopped = False
        try:
            comparison.measure()
        except KeyboardInterrupt:
            stopped = True
            comparison.say("stopped; reporting what was measured")
        except TimeoutError:
            comparison.say(f"{settings.minutes:g} minutes are over; reporting what was measured")
        finally:
            comparison.close()
        missed = comparison.report()
        if stopped:
            return 130
        return 1 if settings.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
