"""run, alone and against a server; options that are wrong, and files of options."""
import signal
import subprocess

import pytest

from conftest import BINARY, PATIENCE_S
from terminal_tools import CLEAN, FIGURES, SMALL, count, kvlink


def test_run_and_a_server_give_the_same_answer(server):
    local = kvlink("run", *SMALL, "--prompt", "Name three colours.", "--max-tokens", 24)
    assert local.returncode == 0, local.stderr
    assert len(local.stdout) > 10 and local.stdout.endswith("\n")
    assert "\x1b" not in local.stderr and "prompt tokens" not in local.stderr  # no terminal: no figures
    remote = kvlink("run", "--url", server.url, "--prompt", "Name three colours.", "--max-tokens", 24)
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == local.stdout
    again = kvlink("run", "--url", server.url, "--max-tokens", 24, "--stats", stdin="Name three colours.\n")
    assert again.stdout == local.stdout
    assert count(FIGURES.search(again.stderr)[2]) > 0  # of the server's cache


def test_a_chat_with_a_server_shows_its_cache(server):
    done = kvlink("chat", "--url", server.url, "--temperature", 0, "--max-tokens", 8,
                  stdin="Tell me about chats with servers.\nMore.\n/stats\n")
    assert done.returncode == 0, done.stderr
    first, second = FIGURES.findall(done.stderr)
    assert count(second[1]) >= count(first[0]) - 1
    assert "turns            2 in this conversation" in done.stderr


@pytest.mark.parametrize("text", ["你好，世界！你好，世界！你好，", "😀🎉😀🎉😀🎉😀"], ids=["chinese", "emoji"])
def test_characters_of_several_tokens_come_whole(text):
    for arguments in ((), ("--system", "x")):
        raw = [] if arguments else ["--raw"]
        done = subprocess.run([BINARY, "run", *SMALL, *raw, *arguments, "--max-tokens", "24"], input=text.encode(),
                              capture_output=True, timeout=PATIENCE_S, check=False, env=CLEAN)
        assert done.returncode == 0, done.stderr
        answer = done.stdout.decode()  # strict: half a character would raise
        if raw:
            assert any(character in answer for character in text), answer


def test_run_stops_at_sigint_with_what_there_is():
    process = subprocess.Popen([BINARY, "run", *SMALL, "--prompt", "Write a very long story about a river."],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN)
    first = process.stdout.read(8)
    assert first
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert rest.endswith(b"\n")


@pytest.mark.parametrize("arguments,named", [
    (["run", "--prompt", "-"], "--prompt: standard input is empty"),
    (["run"], "--prompt: standard input is empty"),
    (["run", "--prompt", ""], "--prompt: is empty"),
    (["run", "--prompt", "x", "--url", "ftp://x"], "'ftp://x'"),
    (["run", "--prompt", "x", "--url", "http://127.0.0.1:9", "--model", "m"], "--model: not with --url"),
    (["run", "--prompt", "x", "--model-name", "m"], "--model-name: only with --url"),
    (["run", "--prompt", "x", "--raw", "--system", "y"], "--system: not with --raw"),
    (["run", "--prompt", "x", "--temperature", "9"], "--temperature"),
    (["chat", "--load", "/no/such.json"], "'/no/such.json'"),
    (["chat", "--model", "/no/such.gguf"], "'/no/such.gguf'"),
    (["chat", "--modle", "x"], "did you mean '--model'?"),
    (["sevre"], "did you mean 'serve'?"),
    (["completion", "tcsh"], "tcsh"),
    (["man", "sevre"], "did you mean 'serve'?"),
], ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "")
def test_what_is_wrong_is_named_and_exits_2(arguments, named):
    done = kvlink(*arguments)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert done.stdout == ""


def test_nobody_answers_at_the_url():
    done = kvlink("run", "--prompt", "x", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr


# --- configuration ---


def test_the_printed_configuration_reads_back_to_itself(tmp_path):
    config, printed = tmp_path / "kvlink.toml", tmp_path / "printed.toml"
    config.write_text('port = 9000\n[serve]\nkv-memory = "3GiB"\nmodel-name = ["a", "b \\"c\\""]\nsort_tool_keys = true\n'
                      '[chat]\nsystem = "Be brief.\\n"\n')
    first = kvlink("serve", "--config", config, "--threads", 3, "--print-config")
    assert first.returncode == 0, first.stderr
    for line in ('port = 9000', 'kv-memory = "3GiB"', 'model-name = ["a", "b \\"c\\""]', 'sort-tool-keys = true',
                 'threads = 3', '# ctx = N', 'sharing = "exact"'):
        assert f"\n{line}\n" in first.stdout
    printed.write_text(first.stdout)
    again = kvlink("serve", "--config", printed, "--print-config")
    assert again.stdout == first.stdout
    # What serve's options mean to chat is an error, its own table is not.
    chat = kvlink("chat", "--config", config, "--print-config")
    assert chat.returncode == 2 and f"{config}:1: unknown key 'port' for kvlink chat" in chat.stderr
    config.write_text(config.read_text().replace("port = 9000\n", ""))
    chat = kvlink("chat", "--config", config, "--print-config")
    assert chat.returncode == 0 and '\nsystem = "Be brief.\\u000A"\n' in chat.stdout


def test_an_error_that_only_running_shows_names_the_files_line(tmp_path):
    config = tmp_path / "kvlink.toml"
    config.write_text('quiet = true\n[serve]\nport = 0\napi-keys = "/no/such.keys"\n')
    done = kvlink("serve", "--config", config)
    assert done.returncode == 2
    assert "--api-keys: no file '/no/such.keys'" in done.stderr
    assert f"kvlink: from {config}: --quiet (line 1), --port (line 3), --api-keys (line 4)\n" in done.stderr
