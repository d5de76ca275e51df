"""The log as JSON: starts that fail, and the lines of a request."""
import json
import re
import signal
import socket
import subprocess

import httpx
import pytest

from conftest import BINARY, PATIENCE_S
from terminal_tools import CLEAN, SMALL, kvlink


def json_errors(done):
    """What a start that failed said, every line of it an object."""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines and all({"time", "level", "message"} <= set(line) for line in lines), done.stderr
    assert lines[0]["level"] == "error"
    return lines


@pytest.mark.parametrize("arguments,option,value", [
    (["--port", "70000"], "--port", "70000"), (["--ctx", "many"], "--ctx", "many"), (["--no-such-option"], "--no-such-option", None),
    (["--model", "/no/such.gguf"], "--model", "/no/such.gguf"), (["--api-keys", "/no/such.keys"], "--api-keys", "/no/such.keys"),
    (["--similar", "on", "--sharing", "off"], "--similar", "on"), (["--config", "/no/such.toml"], "--config", "/no/such.toml"),
    (["--remote", "redis://me:secret@"], "--remote", "redis://"), (["--kv-events", "tcp://nowhere"], "--kv-events", "tcp://nowhere"),
    (["--tls-cert", "/no/c.pem", "--tls-key", "/no/k.pem"], "--tls-cert", "/no/c.pem")])
def test_a_start_that_fails_is_a_line_of_the_json_log_with_option_and_value(arguments, option, value):
    done = kvlink("serve", "--log-format", "json", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    line = json_errors(done)[0]
    assert line["option"] == option and line.get("value") == value, line
    assert "secret" not in done.stderr


def test_a_start_that_fails_late_or_by_its_file_of_options_says_so_in_json_too(tmp_path):
    config = tmp_path / "kvlink.toml"
    config.write_text('[serve]\nlog-format = "json"\nkv_memory = "lots"\n')
    done = kvlink("serve", "--config", config)
    line = json_errors(done)[0]
    assert done.returncode == 2 and line["option"] == "--kv-memory" and line["value"] == "lots"
    assert f"{config}:3: " in line["message"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        config.write_text(f'[serve]\nlog-format = "json"\nport = {port}\n')
        done = kvlink("serve", "--config", config, "--no-cold", *SMALL)
    line = json_errors(done)[0]
    assert done.returncode == 1 and line["option"] == "--port" and line["value"] == port, line
    assert "cannot listen on 127.0.0.1:" in line["message"]


def test_every_line_of_a_json_log_is_json_and_a_requests_lines_have_its_id(tmp_path):
    log = tmp_path / "log"
    with open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen([BINARY, "serve", *SMALL, "--port", "0", "--no-cold", "--log-format", "json"],
                                   stdout=subprocess.PIPE, stderr=errors, text=True, env=CLEAN)
        banner = ""
        for line in process.stdout:
            banner += line
            if line.startswith("Stop:"):
                break
        url = re.search(r"address\s+(http://\S+)", banner)[1]
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        answer = httpx.post(f"{url}/v1/chat/completions", timeout=PATIENCE_S,
                            headers={"X-Request-Id": "e2e-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
                            json={"messages": [{"role": "user", "content": "secret words"}], "max_tokens": 4})
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"time", "level", "message"} <= set.intersection(*(set(line) for line in lines))
    assert lines[-1]["message"] == "stopped"
    assert answer.headers["x-request-id"] == "e2e-1"
    assert answer.headers["traceresponse"].startswith(f"00-{trace}-")
    [line] = [line for line in lines if line.get("request_id") == "e2e-1"]
    assert line["trace_id"] == trace and line["status"] == 200 and line["generated_tokens"] > 0
    assert "secret words" not in log.read_text()
