"""chat in a terminal and in pipes."""
import json
import re
import signal

from terminal_tools import FIGURES, SMALL, Terminal, count, kvlink, small


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
