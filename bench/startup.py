#!/usr/bin/env python3
"""Start-up of `kvlink serve`: time from exec to the first 200 of GET /health, with a warm page cache.

Each round starts the server with nothing but a free port, asks /health until it answers, notes the process's CPU time at
that moment, and ends it. The first rounds warm the page cache and are not counted. Prints Markdown; --json keeps every round.

  python3 bench/startup.py                      the default model, 9 rounds
  python3 bench/startup.py --blocks             also with a disk tier that holds blocks of an earlier run
"""
import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from kvlink_bench import add_common_arguments, markdown, median, write_json

PATIENCE_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def cpu_seconds(pid):
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_once(arguments, folder, after_start=None):
    """Wall and CPU seconds until /health is ready, and the resident bytes then."""
    port = free_port()
    command = [arguments.kvlink, "serve", "--model", arguments.model, "--threads", str(arguments.threads), "--port", str(port),
               *arguments.option]
    environment = {**os.environ, "XDG_CACHE_HOME": folder}  # a disk tier of its own, as by default
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        while not is_ready(port):
            if process.poll() is not None:
                raise SystemExit(f"'{' '.join(command)}' ended with {process.returncode}")
            if time.monotonic() - begin > PATIENCE_S:
                raise SystemExit(f"'{' '.join(command)}' was not ready after {PATIENCE_S} s")
            time.sleep(0.002)
        wall = time.monotonic() - begin
        cpu = cpu_seconds(process.pid)
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            resident = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
        if after_start:
            after_start(port)
        return {"wall_s": wall, "cpu_s": cpu, "resident_bytes": resident}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)


def fill_with_blocks(port):
    """Prompts of a few thousand tokens, so that the disk tier has something to find at the next start."""
    for number in range(8):
        words = " ".join(f"item {number} of {i}" for i in range(120))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        body = json.dumps({"messages": [{"role": "user", "content": words}], "max_tokens": 1})
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        if connection.getresponse().status != 200:
            raise SystemExit("a prompt was refused")
        connection.close()


def measure(arguments, name, folder, after_first=None):
    for number in range(arguments.warm):
        start_once(arguments, folder, after_first if number == 0 else None)
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(start_once(arguments, folder))
        print(f"{name}: round {number + 1} of {arguments.rounds}: {rounds[-1]['wall_s']:.3f} s", file=sys.stderr)
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm", type=int, default=2, help="rounds in front that are not counted; at least 1")
    parser.add_argument("--blocks", action="store_true", help="also with a disk tier that holds blocks")
    parser.add_argument("--option", action="append", default=[], help="further option of kvlink serve (several times)")
    parser.add_argument("--most", type=float, default=2.0, help="largest median that is fine, in seconds")
    parser.add_argument("--check", action="store_true", help="exit 1 when a median is above --most")
    arguments = parser.parse_args()

    figures = {"model": os.path.basename(arguments.model), "threads": arguments.threads, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        figures["cases"]["empty disk tier"] = measure(arguments, "empty", folder)
    if arguments.blocks:
        with tempfile.TemporaryDirectory() as folder:
            figures["cases"]["disk tier with blocks"] = measure(arguments, "blocks", folder, fill_with_blocks)
    rows = []
    for name, rounds in figures["cases"].items():
        walls = [r["wall_s"] for r in rounds]
        rows.append([name, f"{median(walls):.3f}", f"{min(walls):.3f} to {max(walls):.3f}",
                     f"{median([r['cpu_s'] for r in rounds]):.2f}",
                     f"{median([r['resident_bytes'] for r in rounds]) / 2**20:.0f} MiB"])
    print(markdown(["start", "median s to /health", "lowest to highest", "median CPU s", "resident"], rows))
    write_json(arguments.json, figures)
    slow = [row[0] for row in rows if float(row[1]) > arguments.most]
    if arguments.check and slow:
        raise SystemExit(f"above {arguments.most} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
