"""The tutorial does what it says: its commands run, print what it shows, and save what it claims."""
import json
import os
import re

import pytest

from tutorial import TUTORIAL, run, steps


def answers_of(work):
    return [json.loads(line) for line in (work / "answers.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The tutorial, run. A load from disk that takes longer than computing is given up by design, which may happen on a
    machine that is busy; not twice."""
    for attempt in range(2):
        printed, work, port = run(tmp_path_factory.mktemp(f"tutorial{attempt}"), os.environ["KVLINK_BINARY"],
                                  os.environ["KVLINK_MODEL"])
        if answers_of(work)[-1]["kvlink"]["tier"] == "cold":
            break
    return printed, work, port


def shape(text):
    """Words of each line; figures and their units, which differ from machine to machine, are one sign each."""
    lines = []
    for line in text.strip().splitlines():
        line = re.sub(r"[-+]?\d[\d,.]*(e-?\d+)?|(?<!\S)-(?!\S)", "#", line)  # a ratio may be "-": of nothing
        line = re.sub(r"# ?([KMG]i)?B\b|# ?(s|ms|us|x)\b", "# unit", line)
        lines.append(re.sub(r"\s+", " ", line).strip())
    return lines


def test_every_step_prints_what_is_shown(done):
    printed, _, port = done
    shown = [(step, text) for step, text in printed if step.output is not None and not step.background]
    assert len(shown) >= 6
    for step, text in shown:
        assert shape(text.replace(f":{port}", ":8080")) == shape(step.output), step.code


def test_the_second_question_is_answered_from_the_cache(done):
    _, work, _ = done
    answers = answers_of(work)
    first, second, restarted = (answer["kvlink"] for answer in answers)
    assert first["exact"] + first["partial"] < 0.2 * answers[0]["usage"]["prompt_tokens"]
    assert second["exact"] + second["partial"] > 0.8 * answers[1]["usage"]["prompt_tokens"]
    assert restarted["tier"] == "cold" and restarted["tier_tokens"]["cold"] > 0.8 * answers[2]["usage"]["prompt_tokens"]


def test_the_measured_saving_is_real(done):
    _, work, _ = done
    modes = json.loads((work / "mine.json").read_text())
    assert modes["outputs_equal"] is True
    off, exact = modes["modes"]["off"], modes["modes"]["exact"]
    assert exact["computed_tokens"] < 0.4 * off["computed_tokens"]
    assert exact["peak_kv_bytes"] < 0.6 * off["peak_kv_bytes"]
    # A clock in the first line takes it away.
    clock = json.loads((work / "clock.json").read_text())["modes"]["exact"]
    assert clock["computed_tokens"] > 2 * exact["computed_tokens"]


def test_every_block_of_the_tutorial_is_run():
    fences = re.findall(r"^```(\w*)$", TUTORIAL.read_text(), re.M)
    opened = [kind for kind in fences if kind]
    assert set(opened) <= {"sh", "text"}
    assert opened.count("sh") == sum(1 for step in steps(TUTORIAL.read_text()) if not step.stop)
    assert opened.count("text") == sum(1 for step in steps(TUTORIAL.read_text()) if step.output is not None)
