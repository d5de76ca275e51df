"""Clients that are silent, slow or gone keep nobody else from being served."""
import concurrent.futures
import re
import threading

import pytest

import connection_tools as clients
from conftest import Server

MOST = 60


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    log_file = tmp_path_factory.mktemp("connections") / "log"
    running = Server(log_file, "--max-connections", str(MOST))
    running.log_file = log_file
    running.port = int(running.url.rsplit(":", 1)[1])
    yield running
    assert running.stop() == 0


def counters(server):
    """Every series of a counter or histogram, by name and labels."""
    lines = [line.rsplit(" ", 1) for line in server.http.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines
            if name.split("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))}


def test_counters_never_go_down_while_requests_come_and_go(small):
    """Acceptance 26."""
    stop, samples = threading.Event(), [counters(small)]

    def look():
        while not stop.wait(0.02):
            samples.append(counters(small))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for number in range(6):
            body = {"prompt": f"Number {number} is", "max_tokens": 8, "stream": number % 2 == 1}
            assert small.http.post("/v1/completions", json=body).status_code == 200
            left = clients.stream_reader(small.port, tokens=200)
            left.close()  # in the middle of its answer
    finally:
        stop.set()
        watcher.join()
    small.wait_until_idle()
    samples.append(counters(small))
    assert len(samples) > 5 and samples[-1]["vllm:generation_tokens_total" + label_of(samples[-1])] > 0
    for before, after in zip(samples, samples[1:]):
        assert [name for name, value in before.items() if after[name] < value] == []


def label_of(sample):
    """The labels that every line carries."""
    name = next(name for name in sample if name.startswith("vllm:generation_tokens_total"))
    return name[len("vllm:generation_tokens_total"):]


def test_bad_clients_of_all_kinds_keep_nobody_from_being_served(small):
    held = []
    for _ in range(5):
        held += [clients.slow_reader(small.port), clients.stream_reader(small.port, 32), clients.slow_sender(small.port),
                 clients.half_open(small.port)]
    for _ in range(MOST):
        held += [clients.silent(small.port)]
    held += [clients.kept_alive(small.port) for _ in range(5)]

    def ask(number):
        with small.client() as client:
            answer = client.completions.create(model=client.models.list().data[0].id, prompt=f"Number {number} is", max_tokens=4)
            return answer.usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(24))) > 24
    assert small.metric("kvlink_http_connections_made_room_total") > 0
    assert small.metric("kvlink_http_connections") <= MOST + 64
    for made in held:
        made.close()
    small.wait_for(lambda: small.metric("kvlink_http_connections") < 10)
    small.wait_until_idle()


def test_a_head_and_a_body_have_limits(small):
    for head, status in [(b"X: " + b"y" * 20000, b"431"), (b"Content-Length: 100000000", b"413")]:
        made = clients.connect(small.port)
        made.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
        answer = made.recv(4096)
        assert answer.split(b" ")[1] == status
        # Under the same id in the log, although no request was served.
        request_id = re.search(rb"X-Request-Id: (\S+)", answer)[1].decode()
        [line] = [line for line in small.log_file.read_text().splitlines() if f"request_id={request_id} " in line]
        assert f"status={status.decode()}" in line and "error=" in line and "tenant=" not in line
        made.close()


@pytest.fixture(scope="module")
def starved(tmp_path_factory):
    """A server that is to leave more memory than any machine has."""
    running = Server(tmp_path_factory.mktemp("starved") / "log", "--memory-reserve", "1000T")
    yield running
    assert running.stop() == 0


def test_short_of_memory_new_requests_are_refused_and_counted(starved):
    def refusal():
        return starved.http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2})

    starved.wait_for(lambda: refusal().status_code == 503)
    answer = refusal()
    assert answer.json()["error"]["code"] == "memory_pressure" and int(answer.headers["retry-after"]) >= 1
    assert starved.http.get("/health").status_code == 200
    assert starved.metric("kvlink_memory_refusals_total") >= 2
    assert starved.metric("kvlink_memory_available_bytes") > 0
    starved.wait_for(lambda: starved.metric("kvlink_kv_withheld_bytes") > 0)
