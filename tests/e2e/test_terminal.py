"""The executable in a terminal and in pipes: run, chat, configuration files, completion, manual pages, the log."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import termios
import time
from pathlib import Path

import httpx
import pytest

from conftest import BINARY, MODEL, PATIENCE_S

def small(context):
    return ["--model", MODEL, "--threads", "1", "--ctx", str(context), "--kv-memory", "128M"]


SMALL = small(2048)
FIGURES = re.compile(r"\[([\d,]+) prompt tokens, ([\d,]+) cached \(\d+ %\); first token after [\d.]+ s; ([\d,]+) tokens")
CLEAN = {key: value for key, value in os.environ.items() if key not in ("KVLINK_API_KEY", "KVLINK_MODEL")}


def kvlink(*arguments, stdin="", **more):
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False, env={**CLEAN, **more})


def count(text):
    return int(text.replace(",", ""))


class Terminal:
    """A process whose input, output and errors are one terminal of its own."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [BINARY, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**CLEAN, "TERM": "xterm"})
        os.close(slave)
        self.seen, self._bytes = "", b""

    def _read(self, deadline):
        """More of the screen; False at its end."""
        ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing came any more behind {self.seen[-500:]!r}"
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            piece = b""
        self._bytes += piece
        self.seen = self._bytes.decode(errors="ignore")
        return bool(piece)

    def wait_for(self, pattern, start=0):
        """The match of a pattern behind `start` in what came so far, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.compile(pattern).search(self.seen, start)):
            assert self._read(deadline), f"ended without {pattern!r}: {self.seen[-500:]!r}"
        return found

    def type(self, text):
        os.write(self.master, text.encode())

    def line(self, text):
        """Types a line at the prompt; answers where on the screen what follows begins."""
        start = len(self.seen)
        self.type(text + "\n")
        return self.wait_for(re.escape(text) + "\r\n", start).end()

    def end(self):
        """Reads to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self.process.wait(timeout=PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=PATIENCE_S)
        os.close(self.master)


# --- chat ---


def test_a_chat_in_a_terminal_keeps_its_history_in_the_cache(tmp_path):
    saved = tmp_path / "chat.json"
    with Terminal("chat", *SMALL, "--temperature", 0, "--max-tokens", 12, "--system", "Be brief.") as chat:
        chat.wait_for(r"loading .*100 %")
        at = chat.wait_for(r"/help lists the commands, Ctrl-D ends\r\n> ").end()
        at = chat.line("My name is Ada. What is the capital of France?")
        first = chat.wait_for(FIGURES.pattern, at)
        chat.wait_for("> $", first.end())
        at = chat.line("And of Spain?")
        second = chat.wait_for(FIGURES.pattern, at)
        # All of the first turn is found again, but for its last block's end.
        assert count(second[2]) >= count(first[1])
        assert count(second[1]) > count(first[1])
        chat.wait_for("> $", second.end())
        at = chat.line("/stats")
        stats = chat.wait_for(r"turns +2 in this conversation, 2 answers in all\r\nprompt tokens +([\d,]+), ([\d,]+) cached", at)
        assert count(stats[1]) == count(first[1]) + count(second[1])
        assert count(stats[2]) == count(first[2]) + count(second[2])
        chat.wait_for(r"KV memory +\S+ MiB of", at)
        at = chat.line(f"/save {saved}")
        chat.wait_for("2 turns are in", at)
        at = chat.line("/system")
        chat.wait_for(r"Be brief\.\r\n", at)
        at = chat.line("/halp")
        chat.wait_for(r"/halp is no command; did you mean '/help'\?", at)
        at = chat.line("/help")
        chat.wait_for("/save FILE", at)
        at = chat.line("/reset")
        at = chat.line("/stats")
        chat.wait_for("turns +0 in this conversation, 2 answers", at)
        chat.type("\x04")
        assert chat.end() == 0
    messages = json.loads(saved.read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[3]["content"] == "And of Spain?"

    # A saved conversation goes on where it was.
    done = kvlink("chat", *SMALL, "--load", saved, "--max-tokens", 4, stdin="Thanks.\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert "turns            3 in this conversation, 1 answers" in done.stderr


def test_ctrl_c_stops_an_answer_and_a_second_one_ends():
    with Terminal("chat", *SMALL, "--temperature", 0, "--system", "Write as much as you can.") as chat:
        chat.wait_for(r"Ctrl-D ends\r\n> ")
        at = chat.line("Write a very long story about a river.")
        chat.wait_for(r"\w+ \w+ \w+", at)
        chat.type("\x03")
        stopped = chat.wait_for(r"; stopped\]\r\n> ", at)
        # Another question: the chat goes on, and the count starts again.
        at = chat.line("Another one, please.")
        chat.wait_for(r"\w+ \w+ \w+", at)
        chat.type("\x03")
        stopped = chat.wait_for(r"; stopped\]\r\n> ", stopped.end())
        chat.type("\x03")
        assert chat.end() == 128 + signal.SIGINT


def test_ctrl_c_at_the_prompt_asks_once():
    with Terminal("chat", *SMALL) as chat:
        at = chat.wait_for(r"Ctrl-D ends\r\n> ").end()
        chat.type("\x03")
        at = chat.wait_for(r"Ctrl-C again ends\r\n> ", at).end()
        at = chat.line("/system Be kind.")  # a line in between
        chat.wait_for("> ", at)
        chat.type("\x03")
        chat.wait_for(r"Ctrl-C again ends\r\n> ", at)
        chat.type("\x03")
        assert chat.end() == 128 + signal.SIGINT


def test_a_long_prompt_shows_how_far_it_is():
    with Terminal("chat", *small(4096), "--max-tokens", 4, "--chunk", 32) as chat:
        chat.wait_for(r"Ctrl-D ends\r\n> ")
        # Over 2,000 tokens, which no thread computes within the time that a bar waits. A terminal takes lines of 4,095 bytes
        # at most.
        chat.type('"""')
        for _ in range(14):
            at = chat.line("seven wonders of the ancient world and then some " * 18)
            chat.wait_for(r"\| $", at)
        at = chat.line('"""')
        bar = chat.wait_for(r"reading the prompt \[[#.]+\] +\d+ %", at)
        chat.wait_for(FIGURES.pattern, bar.end())
        assert "\r\x1b[K" in chat.seen[bar.end():]  # and it leaves nothing behind
        chat.type("\x04")
        assert chat.end() == 0


def test_a_chat_without_a_terminal_answers_line_by_line():
    done = kvlink("chat", *SMALL, "--temperature", 0, "--max-tokens", 8,
                  stdin="Say hello.\n\n//slash\n/stats\n\"\"\"\nTwo\nlines\n\"\"\"\n")
    assert done.returncode == 0, done.stderr
    figures = FIGURES.findall(done.stderr)
    assert len(figures) == 3
    assert count(figures[1][1]) > 0 and count(figures[2][1]) > count(figures[1][1])
    assert len([line for line in done.stdout.splitlines() if line]) >= 3
    for text in (done.stdout, done.stderr):
        assert "\x1b" not in text and "> " not in text
    quiet = kvlink("chat", *SMALL, "--quiet", "--temperature", 0, "--max-tokens", 8, stdin="Say hello.\n")
    assert quiet.stderr == ""
    assert done.stdout.startswith(quiet.stdout)


def test_an_error_in_a_pipe_is_told_by_the_exit_code():
    done = kvlink("chat", *small(64), "--max-tokens", 4, stdin="word " * 200 + "\nSay hello.\n")
    assert done.returncode == 1
    assert re.search(r"kvlink: the prompt has \d+ tokens, and the context is 64", done.stderr)
    assert len(FIGURES.findall(done.stderr)) == 1  # the second line was answered
    unknown = kvlink("chat", *SMALL, stdin="/sttats\n")
    assert unknown.returncode == 1 and "did you mean '/stats'?" in unknown.stderr


# --- run ---


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


# --- completion ---


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "kvlink.bash"
    path.write_text(kvlink("completion", "bash").stdout)
    return path


def complete_in_bash(script, line, folder):
    """What bash offers for the last word of a line (a space at its end: an empty word)."""
    words = [*(re.findall(r"=|[^\s=]+", line))] + ([""] if line.endswith(" ") else [])
    quoted = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        ["bash", "--norc", "-c", f'set -u; source "$1"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _kvlink; '
         'printf "%s\\n" "${COMPREPLY[@]}"', "bash", script],
        capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return set(done.stdout.split())


def test_bash_completes_subcommands_options_and_values(bash_script, tmp_path):
    (tmp_path / "model.gguf").touch()
    (tmp_path / "models").mkdir()

    def offered(line):
        return complete_in_bash(bash_script, line, tmp_path)

    assert {"serve", "chat", "run", "ckpt", "key"} <= offered("kvlink ")
    assert offered("kvlink ser") == {"serve"}
    assert {"--model", "--kv-memory", "--print-config"} <= offered("kvlink serve --")
    assert offered("kvlink serve --kv-mem") == {"--kv-memory"}
    assert offered("kvlink serve --sharing ") == {"off", "exact"}
    assert offered("kvlink serve --sharing=ex") == {"exact"}
    assert offered("kvlink serve --sharing=") == {"off", "exact"}
    assert offered("kvlink serve --quiet --kv-type q") == {"q8_0"}
    assert offered("kvlink serve --model ") == {"model.gguf", "models"}
    assert offered("kvlink serve --cold-dir mo") == {"models"}
    assert offered("kvlink bench --modes off,si") == {"off,similar"}
    assert offered("kvlink serve --port ") == set()
    assert offered("kvlink key ") == {"new"}
    assert "--tenant" in offered("kvlink key new --")
    assert offered("kvlink ckpt add --store list --") >= {"--store", "--base"}  # "list" was a value
    assert offered("kvlink completion ") == {"bash", "zsh", "fish"}


def test_bash_completes_every_option_that_help_lists(bash_script, tmp_path):
    for command in ("serve", "run", "chat", "bench", "calibrate", "doctor", "inspect"):
        listed = set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)", kvlink(command, "--help").stdout, re.M))
        assert len(listed) > 3
        assert listed <= complete_in_bash(bash_script, f"kvlink {command} --", tmp_path)


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes_subcommands_options_and_values(tmp_path):
    script = tmp_path / "kvlink.fish"
    script.write_text(kvlink("completion", "fish").stdout)
    (tmp_path / "model.gguf").touch()

    def offered(line):
        done = subprocess.run(["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"], cwd=tmp_path,
                              capture_output=True, text=True, timeout=60, check=False, env={**CLEAN, "HOME": str(tmp_path)})
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return {entry.split("\t")[0] for entry in done.stdout.splitlines()}

    assert {"serve", "chat", "ckpt"} <= offered("kvlink ")
    assert offered("kvlink serve --kv-mem") == {"--kv-memory"}
    assert offered("kvlink serve --sharing ") == {"off", "exact"}
    assert "model.gguf" in offered("kvlink serve --model mod")
    assert offered("kvlink key ") == {"new"}
    assert "--tenant" in offered("kvlink key new --ten")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes_subcommands_options_and_values(tmp_path):
    (tmp_path / "_kvlink").write_text(kvlink("completion", "zsh").stdout)
    # zsh completes on a terminal only: the keys are typed there, and what stands in the line is shown.
    (tmp_path / ".zshrc").write_text(
        f"fpath=({tmp_path} $fpath)\nautoload -Uz compinit; compinit -u -D\nPS1='ready> '\nsetopt no_list_beep\n"
        "show() { print -r -- \"<$BUFFER>\"; BUFFER=; zle redisplay }\nzle -N show\nbindkey '^G' show\n"
        "bindkey '^I' complete-word\n")

    def completed(text):
        master, slave = pty.openpty()
        process = subprocess.Popen(["zsh", "-i"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                   cwd=tmp_path, env={**CLEAN, "ZDOTDIR": str(tmp_path), "HOME": str(tmp_path), "TERM": "dumb"})
        os.close(slave)
        seen, deadline = b"", time.monotonic() + 120
        try:
            for expected, keys in ((b"ready> ", text + "\t\x07"), (rb"<[^>]*>", None)):
                while not re.search(expected, seen):
                    assert select.select([master], [], [], max(0, deadline - time.monotonic()))[0], seen
                    seen += os.read(master, 65536)
                if keys is not None:
                    os.write(master, keys.encode())
            return re.search(rb"<([^>]*)>", seen)[1].decode().strip()
        finally:
            process.kill()
            process.wait(timeout=60)
            os.close(master)

    assert completed("kvlink ser") == "kvlink serve"
    assert completed("kvlink serve --kv-mem") == "kvlink serve --kv-memory"
    assert completed("kvlink serve --sharing ex") == "kvlink serve --sharing exact"
    assert completed("kvlink key n") == "kvlink key new"
    assert completed("kvlink key new --ten") == "kvlink key new --tenant"


# --- manual pages ---


@pytest.fixture(scope="module")
def manual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    assert kvlink("man", "--dir", folder).returncode == 0
    return folder


def test_there_is_a_page_for_each_subcommand(manual):
    listed = re.findall(r"^  (\w+) ", kvlink("--help").stdout.split("Subcommands:")[1], re.M)
    assert {page.name for page in manual.iterdir()} == {"kvlink.1", *(f"kvlink-{name}.1" for name in listed)}
    assert (manual / "kvlink-serve.1").read_text() == kvlink("man", "serve").stdout
    serve = (manual / "kvlink-serve.1").read_text().replace("\\-", "-")
    for option in ("--model", "--kv-memory", "--log-format", "--print-config"):
        assert f"\\fB{option}\\fR" in serve
    assert "One of text, json." in serve


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_groff_has_nothing_to_say_about_the_pages(manual):
    for page in manual.iterdir():
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rCHECKSTYLE=3", page], capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 0 and done.stderr == "", (page.name, done.stderr)
        text = re.sub(".\b", "", done.stdout)  # bold is struck twice
        assert "NAME" in text and "EXIT STATUS" in text


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="no mandoc")
def test_mandoc_finds_no_error_in_the_pages(manual):
    for page in manual.iterdir():
        done = subprocess.run(["mandoc", "-T", "lint", "-W", "error", page], capture_output=True, text=True, timeout=60,
                              check=False)
        assert done.returncode == 0, (page.name, done.stdout)


def test_an_installation_has_pages_and_completion_where_they_are_looked_for(tmp_path):
    build = Path(BINARY).parent
    made = build / "src" / "cli" / "terminal"
    if not made.is_dir():
        pytest.skip("the whole tree was not built")
    done = subprocess.run(["cmake", "--install", build, "--prefix", tmp_path, "--component", "program"],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    share = tmp_path / "share"
    assert (share / "man" / "man1" / "kvlink-chat.1").is_file()
    assert (share / "bash-completion" / "completions" / "kvlink").read_text() == kvlink("completion", "bash").stdout
    assert (share / "fish" / "vendor_completions.d" / "kvlink.fish").is_file()
    assert list(share.glob("zsh/*/_kvlink"))


# --- the log ---


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
