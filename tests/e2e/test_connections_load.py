"""500 idle connections beside 100 active ones: how much slower the active ones are. Prints the figures."""
import asyncio
import json
import os
import statistics
import time

import pytest

import connection_tools as clients
from conftest import Server

PAIRS = int(os.environ.get("KVLINK_CONNECTION_PAIRS", "8"))
ACTIVE, REQUESTS_EACH = 100, 2
# 500 in all: silent ones, answered ones that may ask again, and those that behave badly.
KINDS = [(clients.silent, 200), (clients.kept_alive, 150), (clients.slow_sender, 50), (clients.half_open, 50),
         (clients.slow_reader, 50)]
MOST_SLOWER = 1.10


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("load") / "log")
    running.port = int(running.url.rsplit(":", 1)[1])
    yield running
    assert running.stop() == 0


def cpu_seconds(server):
    with open(f"/proc/{server._process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def one_client(port, latencies):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": "The river and the stone", "max_tokens": 4, "temperature": 0}).encode()
    for _ in range(REQUESTS_EACH):
        start = time.perf_counter()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")))
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - start)
    writer.close()


def run_round(server):
    """Median latency of the active requests, and the server's CPU seconds for all of them."""
    latencies = []

    async def run():
        await asyncio.gather(*(one_client(server.port, latencies) for _ in range(ACTIVE)))

    before = cpu_seconds(server)
    asyncio.run(run())
    assert len(latencies) == ACTIVE * REQUESTS_EACH
    return statistics.median(latencies), cpu_seconds(server) - before


def tokenized(server):
    """Answers that slow readers were given."""
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if line.startswith("kvlink_http_requests_total") and 'route="/tokenize"' in line)


def run_with_idle(server):
    before = tokenized(server)
    held = [make(server.port) for make, count in KINDS for _ in range(count)]
    # What slow readers do not read was computed: that is no part of the round.
    server.wait_for(lambda: tokenized(server) - before >= dict(KINDS)[clients.slow_reader])
    open_before = server.metric("kvlink_http_connections")
    figures = run_round(server)
    assert open_before > 450
    for made in held:
        made.close()
    server.wait_for(lambda: server.metric("kvlink_http_connections") < 80)
    return figures


def test_idle_connections_make_active_requests_no_slower(server):
    run_round(server)  # warm
    alone, crowded = [], []
    for pair in range(PAIRS):
        # Which comes first changes, so that what else the machine does falls on both.
        for kind in ("alone", "crowded") if pair % 2 == 0 else ("crowded", "alone"):
            (alone if kind == "alone" else crowded).append(run_round(server) if kind == "alone" else run_with_idle(server))
    slower = statistics.median(b[0] / a[0] for a, b in zip(alone, crowded))
    dearer = statistics.median(b[1] / a[1] for a, b in zip(alone, crowded))
    print(f"\n{ACTIVE} active connections, {sum(count for _, count in KINDS)} idle, {PAIRS} pairs of {ACTIVE * REQUESTS_EACH} requests: "
          f"median latency {statistics.median(a[0] for a in alone) * 1e3:.0f} ms alone, "
          f"{statistics.median(b[0] for b in crowded) * 1e3:.0f} ms beside idle ones, median ratio {slower:.3f}; "
          f"CPU ratio {dearer:.3f}")
    assert slower <= MOST_SLOWER
    assert dearer <= MOST_SLOWER
