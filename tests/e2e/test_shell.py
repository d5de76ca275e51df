"""What a shell offers about the executable: completion and manual pages."""
import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BINARY, PATIENCE_S
from terminal_tools import CLEAN, kvlink


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
