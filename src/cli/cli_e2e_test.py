"""The executable as its users meet it: bad options, start-up, shutdown, and `bench` on the smoke workload."""
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

KVLINK = os.environ["KVLINK_BINARY"]
MODEL = os.environ["KVLINK_MODEL"]
SOURCE = Path(os.environ["KVLINK_SOURCE_DIR"])
SMOKE = SOURCE / "bench" / "workloads" / "smoke.jsonl"
ONE_THREAD = ["--threads", "1"]  # no barriers: the tests beside this one may take the other cores
MASKED_PROCESSOR = "Haswell"  # x86-64-v3, no AVX-512


def kvlink(*arguments, timeout=300, **environment):
    return subprocess.run([KVLINK, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False,
                          env={**os.environ, **environment})


# Options and errors

BAD_OPTIONS = [
    (["serve", "--port", "70000"], ["--port", "70000"]),
    (["serve", "--port", "many"], ["--port", "many"]),
    (["serve", "--threads", "0"], ["--threads", "0"]),
    (["serve", "--ctx", "-5"], ["--ctx", "-5"]),
    (["serve", "--kv-memory", "lots"], ["--kv-memory", "'lots'"]),
    (["serve", "--kv-memory", "3X"], ["--kv-memory: '3X' is not a size", "K, M, G or T", "4GiB"]),
    (["serve", "--sharing", "maybe"], ["--sharing", "maybe"]),
    (["serve", "--model", "/no/such.gguf"], ["--model", "'/no/such.gguf'"]),
    (["serve", "--api-keys", "/no/such.keys"], ["--api-keys", "'/no/such.keys'"]),
    (["serve", "--log-dir", "/proc/nowhere"], ["--log-dir", "'/proc/nowhere'"]),
    (["serve", "--config", "/no/such.toml"], ["--config", "'/no/such.toml'"]),
    (["serve", "--no-such-option"], ["--no-such-option"]),
    (["bench"], ["--workload", "--synthetic"]),
    (["bench", "--workload", "/no/such.jsonl"], ["--workload", "'/no/such.jsonl'"]),
    (["bench", "--workload", SMOKE, "--modes", "off,on"], ["--modes", "on"]),
    (["bench", "--workload", SMOKE, "--modes", "off,off"], ["--modes", "'off'"]),
    (["bench", "--workload", SMOKE, "--json", "/no/such/folder/f.json"], ["--json", "'/no/such/folder/f.json'"]),
    (["bench", "--workload", SMOKE, "--url", "ftp://x"], ["--url", "'ftp://x'"]),
    (["bench", "--synthetic", "prefil:512"], ["--synthetic", "'prefil:512'"]),
    (["bench", "--shape", "llama2-7b,llama9"], ["--shape", "'llama9'"]),
    (["bench", "--shape", "llama2-7b", "--synthetic", "prefill:8"], ["--shape", "--synthetic"]),
    (["frobnicate"], ["frobnicate"]),
    ([], ["subcommand"]),
]


@pytest.mark.parametrize("arguments,named", BAD_OPTIONS, ids=lambda value: " ".join(map(str, value))[:60])
def test_a_bad_option_is_named_with_its_value_and_exits_2(arguments, named):
    done = kvlink(*arguments, timeout=60)
    assert done.returncode == 2, done.stderr
    for text in named:
        assert text in done.stderr
    assert done.stdout == ""


def test_an_unknown_key_of_the_config_file_is_named(tmp_path):
    config = tmp_path / "kvlink.toml"
    config.write_text("port = 0\nporrt = 1\n")
    done = kvlink("serve", "--config", config, timeout=60)
    assert done.returncode == 2
    assert f"{config}:2: unknown key 'porrt'" in done.stderr


def test_a_file_that_is_no_model_is_refused(tmp_path):
    fake = tmp_path / "fake.gguf"
    fake.write_text("not a model")
    done = kvlink("serve", "--model", fake, timeout=60)
    assert done.returncode == 2  # with which a service is not started again
    assert "--model" in done.stderr and str(fake) in done.stderr


def test_help_lists_the_options_of_a_subcommand():
    done = kvlink("serve", "--help", timeout=60)
    assert done.returncode == 0
    for option in ("--model", "--host", "--port", "--threads", "--ctx", "--max-seqs", "--kv-memory", "--sharing",
                   "--chunk", "--api-keys", "--config", "--log-dir"):
        assert option in done.stdout


@pytest.mark.parametrize("command", [["run"], ["chat"], ["bench"], ["doctor"], ["cache", "stats"]])
def test_whoever_asks_a_server_takes_the_key_from_the_environment(command):
    assert re.search(r"--api-key TEXT \(Env:KVLINK_API_KEY\)", kvlink(*command, "--help", timeout=60).stdout)


def test_bench_shape_shows_the_memory_that_sharing_saves(tmp_path):
    figures = tmp_path / "figures.json"
    done = kvlink("bench", "--quiet", "--shape", "llama2-7b,4x2x64", "--json", figures)
    assert done.returncode == 0, done.stderr
    shapes = json.loads(figures.read_text())["shapes"]
    assert list(shapes) == ["llama2-7b", "4x2x64"]
    for modes in shapes["llama2-7b"]["scenarios"].values():
        assert modes["off"]["prompt_tokens"] == modes["exact"]["prompt_tokens"]
        assert modes["exact"]["cached_tokens"] > 0 == modes["off"]["cached_tokens"]
        assert modes["exact"]["peak_kv_bytes"] <= 0.25 * modes["off"]["peak_kv_bytes"]
    assert shapes["llama2-7b"]["page_bytes"] == 16 << 20


def test_version_names_the_kernels():
    done = kvlink("version", timeout=60)
    assert done.returncode == 0
    assert re.search(r"^kvlink \d+\.\d+\.\d+$", done.stdout, re.M)
    assert re.search(r"^kernels \w+", done.stdout, re.M)


def test_version_refuses_kernels_that_there_are_not_as_a_start_does():
    done = subprocess.run([KVLINK, "version"], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "KVLINK_ISA": "foo"})
    assert done.returncode == 2 and done.stdout == ""
    assert "KVLINK_ISA: 'foo' is none of avx512, avx2, neon" in done.stderr


# serve


class Serving:
    """A `kvlink serve` on a free port; leaving the context ends it with SIGTERM and checks that it ends well."""

    def __init__(self, *arguments, start_new_session=False, **environment):
        self.arguments, self.environment, self.start_new_session = arguments, environment, start_new_session

    def __enter__(self):
        self.process = subprocess.Popen([KVLINK, "serve", "--port", "0", "--no-cold", *ONE_THREAD,
                                         *map(str, self.arguments)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **self.environment}, start_new_session=self.start_new_session)
        self.banner = ""
        for line in self.process.stdout:
            self.banner += line
            if line.startswith("Stop:"):
                break
        found = re.search(r"address\s+(http://\S+)", self.banner)
        if not found:
            raise AssertionError(self.banner + self.process.communicate(timeout=60)[1])
        self.url = found.group(1)
        return self

    def ask(self, text, max_tokens=4):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def __exit__(self, *failure):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            _, self.stderr = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        if failure[0] is None:
            assert self.process.returncode == 0, self.stderr


def test_serve_says_what_it_serves_answers_and_ends_on_sigterm():
    with Serving("--kv-memory", "64M", "--ctx", "512") as server:
        port = int(server.url.rsplit(":", 1)[1])
        assert port > 0
        assert "sequences of 512" in server.banner and "64.0 MiB" in server.banner
        assert "curl " + server.url + "/v1/chat/completions" in server.banner
        answer = server.ask("Say hello.")
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert server.ask("Say hello.")["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_config_file_sets_what_the_command_line_does_not(tmp_path):
    config = tmp_path / "kvlink.toml"
    config.write_text('kv-memory = "64M"\n[serve]\nctx = 256\nsharing = "off"\nmax_seqs = 3\n')
    with Serving("--config", config, "--ctx", "512") as server:
        assert "sequences of 512" in server.banner
        assert "sharing off" in server.banner
        assert "at most 3 run" in server.banner


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = kvlink("serve", "--port", port, "--kv-memory", "64M", timeout=120)
    assert done.returncode == 1
    assert str(port) in done.stderr and "in use" in done.stderr


def test_loading_shows_progress_as_lines_when_no_terminal_watches():
    with Serving("--kv-memory", "64M") as server:
        pass
    assert re.search(r"^loading .*gguf: 100 %", server.stderr, re.M)
    assert "\r" not in server.stderr


def test_sigint_while_an_answer_is_written_lets_it_finish():
    with Serving("--kv-memory", "64M") as server:
        body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 200, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.readline()
            server.process.send_signal(signal.SIGINT)
            assert b"[DONE]" in answer.read()


def health(url):
    with urllib.request.urlopen(url + "/health", timeout=120) as answer:
        return answer.status


def test_sighup_does_not_end_a_server_without_a_terminal():
    """A service that has no files to read again, told to do so all the same."""
    with Serving("--kv-memory", "64M", start_new_session=True) as server:
        server.process.send_signal(signal.SIGHUP)
        for line in server.process.stderr:
            if "SIGHUP: without --api-keys" in line:
                break
        assert server.process.poll() is None and health(server.url) == 200


def test_a_server_ends_with_its_terminal():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(KVLINK, [KVLINK, "serve", "--port", "0", "--no-cold", "--kv-memory", "64M", *ONE_THREAD])
    shown = b""
    while b"Stop: Ctrl-C" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)  # hangs up
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, shown.decode()


def test_a_server_whose_output_cannot_be_written_says_so_serves_and_ends_well():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen([KVLINK, "serve", "--port", str(port), "--no-cold", "--kv-memory", "64M", "--ctx", "512",
                                    *ONE_THREAD], stdout=full, stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        while "standard output cannot be written" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said + rest
    assert "standard output" not in rest


def test_systemd_is_told_when_requests_are_answered_and_when_it_ends(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        with Serving("--kv-memory", "64M", NOTIFY_SOCKET=str(tmp_path / "notify")) as server:
            assert systemd.recv(4096).decode().splitlines() == ["READY=1", f"STATUS=Serving at {server.url}"]
            assert health(server.url) == 200
        assert systemd.recv(4096) == b"STOPPING=1"


# bench

FIGURES = {"requests", "errors", "wall_s", "req_per_s", "gen_tok_per_s", "prompt_tokens", "cached_tokens",
           "computed_tokens", "ttft_mean", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "latency_mean", "latency_p50",
           "latency_p95", "peak_kv_bytes", "running_at_peak", "cached_bytes", "rss_bytes", "hit_rate", "match_share",
           "tracking_share", "cpu_s", "deadline_missed"}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    done = kvlink("bench", "--workload", SMOKE, "--concurrency", 5, "--modes", "off,exact", "--json", path, *ONE_THREAD,
                  timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, json.loads(path.read_text())


def test_bench_writes_every_figure_of_both_modes(smoke):
    _, figures = smoke
    assert set(figures) == {"model", "machine", "modes", "outputs_equal"}
    assert list(figures["modes"]) == ["off", "exact"]
    for mode in figures["modes"].values():
        assert set(mode) == FIGURES
        assert mode["errors"] == 0
        assert mode["requests"] == sum(len(json.loads(line)["turns"]) for line in SMOKE.open())
        assert mode["prompt_tokens"] == mode["cached_tokens"] + mode["computed_tokens"]
        assert 0 < mode["ttft_mean"] <= mode["latency_mean"] <= mode["wall_s"]
        assert mode["gen_tok_per_s"] > 0 and mode["rss_bytes"] > 0 and mode["cpu_s"] > 0


def test_sharing_changes_no_token_and_saves_memory_and_work(smoke):
    _, figures = smoke
    off, exact = figures["modes"]["off"], figures["modes"]["exact"]
    assert figures["outputs_equal"] is True
    assert off["prompt_tokens"] == exact["prompt_tokens"]
    assert off["cached_tokens"] == 0
    assert exact["hit_rate"] > 0.5
    assert exact["computed_tokens"] < off["computed_tokens"] / 2
    assert 0 < exact["peak_kv_bytes"] < off["peak_kv_bytes"] / 2
    assert exact["cached_bytes"] > 0 and off["cached_bytes"] == 0
    assert 0 < exact["match_share"] < 0.05 and 0 < exact["tracking_share"] < 0.05


def test_bench_prints_a_table_and_progress_lines(smoke):
    done, _ = smoke
    assert re.search(r"hit rate +0\.0000 % +[\d.]+ %", done.stdout)
    assert "outputs equal: yes" in done.stdout
    assert re.search(r"^off: 100 %, \d+/\d+ requests$", done.stderr, re.M)


def test_bench_runs_against_a_server(tmp_path):
    path = tmp_path / "figures.json"
    with Serving("--kv-memory", "256M") as server:
        done = kvlink("bench", "--workload", SMOKE, "--limit", 3, "--concurrency", 2, "--url", server.url, "--json", path)
    assert done.returncode == 0, done.stderr
    url = json.loads(path.read_text())["modes"]["url"]
    assert url["errors"] == 0 and url["cached_tokens"] > 0
    assert 0 < url["ttft_mean"] < url["latency_mean"]
    assert "peak_kv_bytes" not in url


def test_bench_measures_raw_operations(tmp_path):
    path = tmp_path / "figures.json"
    operations = ["prefill:64", "decode:64", "shared:4x64", "distinct:4x64"]
    done = kvlink("bench", "--synthetic", ",".join(operations), "--rounds", 2, "--decode-tokens", 4, "--json", path,
                  *ONE_THREAD)
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    assert list(figures["ops"]) == operations
    for operation in figures["ops"].values():
        assert len(operation["rounds"]) == 2 and operation["tok_per_s"] > 0


def test_a_conversation_past_the_context_is_an_error_with_the_figures():
    done = kvlink("bench", "--workload", SMOKE, "--limit", 1, "--modes", "exact", "--ctx", 256, *ONE_THREAD)
    assert done.returncode == 1
    assert "256" in done.stderr


def test_the_smoke_workload_is_what_its_script_writes():
    made = subprocess.run([sys.executable, SMOKE.parent / "make_smoke.py"], capture_output=True, text=True, check=True)
    assert made.stdout == SMOKE.read_text()


# Other processors: the release executable runs on any x86-64-v3 machine.


def test_lowered_to_avx2_the_whole_executable_works():
    with Serving("--kv-memory", "64M", KVLINK_ISA="avx2") as server:
        assert "avx2 kernels" in server.banner
        assert server.ask("Say hello.")["choices"][0]["message"]["content"]


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-user")
def test_on_a_processor_without_avx512_version_and_a_generation_work(tmp_path):
    """Emulated, so that the executable's own detection is what masks AVX-512."""
    qemu = ["qemu-x86_64", "-cpu", MASKED_PROCESSOR]
    done = subprocess.run([*qemu, KVLINK, "version"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "kernels avx2" in done.stdout
    workload = tmp_path / "tiny.jsonl"
    workload.write_text(json.dumps({"id": "t", "turns": [{"messages": [{"role": "user", "content": "Hi"}],
                                                          "max_tokens": 2}]}) + "\n")
    done = subprocess.run([*qemu, KVLINK, "bench", "--model", MODEL, "--workload", workload, "--modes", "exact",
                           "--threads", "1", "--kv-memory", "16M"], capture_output=True, text=True, timeout=1500,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
